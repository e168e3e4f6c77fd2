//! Shows that the Dockerfiles with their build stages give the images that `make images` makes by compiling outside. Needs root and
//! buildah. The builder has this machine's own programs, since no registry is at hand.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use e2e::command::{printed, run};
use serde_json::Value;

const IMAGES: [&str; 2] = ["shim", "webhook"];
const BUILDER: &str = "localhost/builder";

fn target(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../target").join(path)
}

/// Runs buildah in a storage of its own, and returns what it prints.
fn buildah(storage: &Path, words: &[&str]) -> String {
    let storage = storage.display();
    let script =
        format!("cd .. && exec buildah --root {storage}/root --runroot {storage}/run --storage-driver vfs \"$@\"");
    printed(&run("bash", &[&["-c", &script, "buildah"], words].concat(), ""))
}

/// Makes an image that is empty but for the folders on which this machine's are mounted.
fn make_builder(storage: &Path) {
    let root = storage.join("builder");
    for folder in ["etc", "root", "tmp", "usr"] {
        fs::create_dir_all(root.join(folder)).expect("the folder is made");
    }
    for link in ["bin", "lib", "lib64", "sbin"] {
        symlink(format!("usr/{link}"), root.join(link)).expect("the link is made");
    }
    let dockerfile = storage.join("Dockerfile");
    let path = std::env::var("PATH").expect("there is a PATH");
    // The one that `make images` was run with.
    let profile = std::env::var("PROFILE").unwrap_or_else(|_| "release".to_owned());
    let text = format!("FROM scratch\nCOPY . /\nENV PATH={path} HOME=/root PROFILE={profile}\n");
    fs::write(&dockerfile, text).expect("it is written");
    let [root, dockerfile] = [root, dockerfile].map(|path| path.display().to_string());
    buildah(storage, &["build", "--pull=never", "--tag", BUILDER, "--file", &dockerfile, &root]);
}

/// Builds an image by its whole Dockerfile, and returns its ID.
fn build(storage: &Path, image: &str) -> String {
    let home = std::env::var("HOME").expect("there is a HOME");
    let mounts = [
        "/usr:/usr:ro".to_owned(),
        "/etc:/etc:ro".to_owned(),
        format!("{home}/.cargo:/root/.cargo"),
        format!("{home}/.rustup:/root/.rustup:ro"),
    ]
    .map(|mount| format!("--volume={mount}"));
    let [builder, file] = [format!("--build-arg=BUILDER={BUILDER}"), format!("--file=Dockerfile.{image}")];
    let as_packed = ["--timestamp=0", "--omit-history", "--identity-label=false"];
    let own = ["build", "--quiet", "--isolation=chroot", "--network=host", "--pull=never", &builder, &file];
    let mounts = mounts.each_ref().map(String::as_str);
    let printed = buildah(storage, &[&own[..], &as_packed, &mounts, &["."]].concat());
    printed.lines().last().expect("it prints the ID").to_owned()
}

/// Returns the ID of an image that `make images` has made: the digest of its configuration.
fn id_of_archive(image: &str) -> String {
    let archive = target(&format!("images/{image}.tar")).display().to_string();
    let read = |file: &str| -> Value {
        serde_json::from_str(&printed(&run("tar", &["-xOf", &archive, file], ""))).expect("it is JSON")
    };
    let manifest = digest(&read("index.json")["manifests"][0]);
    digest(&read(&format!("blobs/sha256/{manifest}"))["config"])
}

fn digest(descriptor: &Value) -> String {
    let digest = descriptor["digest"].as_str().and_then(|digest| digest.strip_prefix("sha256:"));
    digest.expect("it has a digest").to_owned()
}

#[test]
fn dockerfiles_give_the_images_of_make_images() {
    let storage = target("dockerfiles");
    let _ = fs::remove_dir_all(&storage);
    fs::create_dir_all(&storage).expect("the folder is made");
    let storage = fs::canonicalize(&storage).expect("it is there");
    make_builder(&storage);
    for image in IMAGES {
        assert_eq!(
            build(&storage, image),
            id_of_archive(image),
            "{image}: next: make images, if that is of other source"
        );
    }
    fs::remove_dir_all(&storage).expect("the storage is removed");
}
