//! An image of two architectures: one index that names both, and the same bytes each time. Needs Python and no cluster.

use std::fs;
use std::path::PathBuf;

use e2e::command::{printed, run};
use serde_json::Value;

const NAME: &str = "registry.invalid/istio-aux/shim:0.1.0";

/// A folder below `target`, as seen from the folder `deploy`.
fn folder(name: &str) -> String {
    let path = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../target")).join(name);
    let _ = fs::remove_dir_all(&path);
    fs::create_dir_all(path.join("root")).expect("the folder is made");
    fs::write(path.join("root/aux-shim"), name).expect("the file is written");
    format!("../target/{name}")
}

/// The archive of an image for one architecture.
fn archive(folder: &str, architecture: &str, name: &str) -> String {
    let file = format!("{folder}/{architecture}.tar");
    let words = ["images/oci_archive.py", &format!("{folder}/root"), name, &file, "--architecture", architecture];
    let _ = printed(&run("python3", &words, ""));
    file
}

fn read(archive: &str, file: &str) -> Value {
    let text = printed(&run("tar", &["-xOf", archive, file], ""));
    serde_json::from_str(&text).expect("it is JSON")
}

#[test]
fn joined_archives_are_an_index_of_their_architectures_and_the_same_bytes_each_time() {
    let folder = folder("image-index");
    let parts = ["amd64", "arm64"].map(|architecture| archive(&folder, architecture, NAME));
    let join = |file: &str| {
        let file = format!("{folder}/{file}");
        let _ = printed(&run("python3", &["images/oci_index.py", &file, &parts[0], &parts[1]], ""));
        file
    };
    let (first, second) = (join("first.tar"), join("second.tar"));
    let entry = read(&first, "index.json")["manifests"][0].clone();
    assert_eq!(entry["annotations"]["io.containerd.image.name"], NAME);
    let digest = entry["digest"].as_str().and_then(|digest| digest.strip_prefix("sha256:")).expect("it has a digest");
    let index = read(&first, &format!("blobs/sha256/{digest}"));
    let platforms = index["manifests"].as_array().expect("there are images").iter().map(|image| &image["platform"]);
    let architectures: Vec<&Value> = platforms.map(|platform| &platform["architecture"]).collect();
    assert_eq!(architectures, ["amd64", "arm64"]);
    assert_eq!(
        printed(&run("sha256sum", &["--", &first], ""))[..64],
        printed(&run("sha256sum", &["--", &second], ""))[..64]
    );
}

#[test]
fn archives_of_two_images_are_not_joined() {
    let folder = folder("image-index-of-two");
    let parts =
        [archive(&folder, "amd64", NAME), archive(&folder, "arm64", "registry.invalid/istio-aux/webhook:0.1.0")];
    let file = format!("{folder}/joined.tar");
    let output = run("python3", &["images/oci_index.py", &file, &parts[0], &parts[1]], "");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && errors.contains("different names"), "{errors}");
}
