//! Copies the root of Istio's proxy image onto the node, from an init container of that image: the kubelet has pulled it, and a
//! distroless image needs no `cp` of its own.

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;

/// Copies the root `from` into the directory `to`, without mounts, unless `to` exists.
pub fn copy(from: &Path, to: &Path) -> io::Result<()> {
    if to.exists() {
        return Ok(());
    }
    let temporary = to.with_extension("new");
    if temporary.exists() {
        fs::remove_dir_all(&temporary)?;
    }
    fs::create_dir_all(&temporary)?;
    copy_directory(from, &temporary, fs::metadata(from)?.dev())?;
    fs::rename(temporary, to)
}

fn copy_directory(from: &Path, to: &Path, device: u64) -> io::Result<()> {
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        let metadata = fs::symlink_metadata(&source)?;
        if metadata.is_symlink() {
            symlink(fs::read_link(&source)?, &target)?;
        } else if metadata.is_dir() {
            fs::create_dir(&target)?;
            if metadata.dev() == device {
                copy_directory(&source, &target, device)?;
            }
            fs::set_permissions(&target, metadata.permissions())?;
        } else if metadata.is_file() {
            fs::copy(&source, &target)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_is_copied_once() {
        let directory = tempfile::tempdir().unwrap();
        let (from, to) = (directory.path().join("from"), directory.path().join("to"));
        fs::create_dir_all(from.join("usr/bin")).unwrap();
        fs::write(from.join("usr/bin/envoy"), "1").unwrap();
        symlink("usr/bin", from.join("bin")).unwrap();
        // A copy that was interrupted.
        fs::create_dir_all(directory.path().join("to.new/half")).unwrap();
        copy(&from, &to).unwrap();
        assert_eq!(fs::read_to_string(to.join("bin/envoy")).unwrap(), "1");
        assert!(!to.join("half").exists());
        fs::write(from.join("usr/bin/envoy"), "2").unwrap();
        copy(&from, &to).unwrap();
        assert_eq!(fs::read_to_string(to.join("bin/envoy")).unwrap(), "1");
    }
}
