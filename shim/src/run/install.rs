//! `aux-shim install`: copies the program into a directory that the pod's other containers mount.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Name of the copy.
const NAME: &str = "aux-shim";

/// Copies this program into a directory, whole or not at all.
pub(crate) fn run(directory: &Path) -> io::Result<()> {
    let part = directory.join("aux-shim.part");
    // An earlier attempt's file may be read-only.
    match fs::remove_file(&part) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    fs::copy("/proc/self/exe", &part)?;
    // Executable for every user, writable for none.
    fs::set_permissions(&part, Permissions::from_mode(0o555))?;
    fs::rename(part, directory.join(NAME))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn installed_copy_is_whole_and_executable() {
        let directory = tempfile::tempdir().unwrap();
        let part = directory.path().join("aux-shim.part");
        fs::write(&part, "half").unwrap();
        fs::set_permissions(part, Permissions::from_mode(0o555)).unwrap();
        for _ in 0..2 {
            run(directory.path()).unwrap();
        }
        let copy = directory.path().join(NAME);
        assert_eq!(fs::metadata(&copy).unwrap().permissions().mode() & 0o777, 0o555);
        assert_eq!(fs::read(copy).unwrap(), fs::read("/proc/self/exe").unwrap());
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn missing_directory_is_an_error() {
        assert_eq!(run(Path::new("/no/such")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
