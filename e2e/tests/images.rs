//! Holds the sizes of the programs and of the images that `make images` makes.

use std::fs;

#[test]
fn programs_and_images_are_small() {
    let limits = [
        ("istio-aux-webhook", 7_150_000),
        ("istio-aux-controller", 6_350_000),
        // With the proxies that a kubeconfig may name, exec sessions in node agents, results in YAML, the rules of a container's end,
        // and several kubeconfigs at once.
        ("istio-aux", 7_680_000),
        ("webhook.tar", 6_700_000),
        ("aux-shim", 300_000),
        ("shim.tar", 200_000),
    ];
    for (file, at_most) in limits {
        let path = format!("{}/../target/images/{file}", env!("CARGO_MANIFEST_DIR"));
        let size = fs::metadata(&path).unwrap_or_else(|error| panic!("{path}: {error}; next: make images")).len();
        assert!(size <= at_most, "{file} has {size} bytes, and {at_most} are allowed");
    }
}
