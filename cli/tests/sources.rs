//! The image of the webhook has the command line, so it is built from what that includes.

use std::fs;
use std::path::{Path, PathBuf};

/// Returns all files below a directory.
fn files(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

#[test]
fn image_is_built_from_each_file_that_the_program_includes() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().canonicalize().unwrap();
    let list = |file: &str| fs::read_to_string(root.join(file)).unwrap();
    let (contents, context) = (list("deploy/images/contents.sh"), list(".dockerignore"));
    let sources = contents.lines().find_map(|line| line.trim().strip_prefix("sources=(api cli ")).unwrap();
    let sources: Vec<_> = sources.trim_end_matches(')').split(' ').chain(["cli"]).collect();
    let context: Vec<_> = context.lines().filter_map(|line| line.strip_prefix('!')).collect();
    let mut included = 0;
    for file in files(&root.join("cli/src")) {
        let text = fs::read_to_string(&file).unwrap_or_default();
        for path in text.split("include_str!(\"").skip(1) {
            let path = file.parent().unwrap().join(path.split_once('"').unwrap().0).canonicalize().unwrap();
            for folders in [&sources, &context] {
                let is_in = |folder: &&str| path.starts_with(root.join(folder));
                assert!(folders.iter().any(is_in), "{} is in none of {folders:?}", path.display());
            }
            included += 1;
        }
    }
    assert!(included > 5, "{included}");
}
