//! The images by their Dockerfiles: the same binaries, and the same image each time. Needs root, on Debian or Ubuntu.

use std::fs;
use std::path::PathBuf;

use e2e::command::{printed, run};

const IMAGES: [(&str, &str, &str); 2] = [("shim", "aux-shim", "65019:65019"), ("webhook", "istio-aux", "65018:65018")];

fn built(path: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../target")).join(path)
}

fn contents(path: &str) -> Vec<u8> {
    let file = built(path);
    fs::read(&file).unwrap_or_else(|error| panic!("{}: {error}; next: make images", file.display()))
}

fn by_dockerfile(name: &str, options: &[&str]) -> String {
    let _ = printed(&run("../e2e/dockerfiles/build", &[&[name], options].concat(), ""));
    fs::read_to_string(built(&format!("dockerfiles/{name}.id"))).expect("it says which image it built")
}

/// In one test: what is built is left in one place.
#[test]
fn dockerfiles_build_the_binaries_that_make_images_builds_and_the_same_image_each_time() {
    for (name, binary, user) in IMAGES {
        let id = by_dockerfile(name, &[]);
        let [ours, theirs] = ["images", "dockerfiles"].map(|folder| contents(&format!("{folder}/{binary}")));
        assert!(ours == theirs, "{binary}: {} bytes by make images, {} by its Dockerfile", ours.len(), theirs.len());
        let config = fs::read_to_string(built(&format!("dockerfiles/{name}.config"))).expect("it has a configuration");
        for part in [user, &format!("[/{binary}]"), "org.opencontainers.image.version:0.1.0"] {
            assert!(config.contains(part), "{name}: no {part} in {config}");
        }
        // The webhook's takes minutes.
        if name == "shim" {
            assert_eq!(id, by_dockerfile(name, &["--no-cache"]), "built again");
        }
    }
}
