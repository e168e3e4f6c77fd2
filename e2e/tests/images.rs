//! The images are small.

use std::fs;

#[test]
fn images_are_small() {
    for (image, at_most) in [("webhook", 8_800_000), ("shim", 600_000)] {
        let file = format!("{}/../target/images/{image}.tar", env!("CARGO_MANIFEST_DIR"));
        let size = fs::metadata(&file).unwrap_or_else(|error| panic!("{file}: {error}; next: make images")).len();
        assert!(size <= at_most, "{image}.tar has {size} bytes, and {at_most} are allowed");
    }
}
