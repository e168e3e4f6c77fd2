//! Copies the root of Istio's proxy image onto the node, from an init container of that image: the kubelet has pulled it, and a
//! distroless image needs no `cp` of its own. Removes the roots that no proxy needs any more.

use std::collections::BTreeSet;
use std::fs::{self, File, Metadata, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::time::{Duration, SystemTime};

use nix::unistd::syncfs;

/// The permissions of copied files, without setuid and setgid: an image's programs must give no one on the node root.
const MODE_MASK: u32 = 0o1777;
/// The agent of the next image may have copied its root, and not have started yet.
const MIN_AGE: Duration = Duration::from_hours(1);

/// Copies the root `from` into the directory `to`, without mounts, unless `to` exists. Only root enters the directory above.
pub fn copy(from: &Path, to: &Path) -> io::Result<()> {
    let above = to.parent().unwrap_or(to);
    fs::create_dir_all(above)?;
    fs::set_permissions(above, Permissions::from_mode(0o700))?;
    if to.exists() {
        // Reset its age, so that it is not removed.
        return File::open(to)?.set_modified(SystemTime::now());
    }
    let temporary = to.with_added_extension("new");
    if temporary.exists() {
        fs::remove_dir_all(&temporary)?;
    }
    fs::create_dir_all(&temporary)?;
    // Both may be on one device, where the runtime's snapshots are directories of it.
    let (device, without) = (fs::metadata(from)?.dev(), file_of(&fs::metadata(above)?));
    let copied = copy_directory(from, &temporary, device, without)
        // A directory of this name is complete even after a power loss.
        .and_then(|()| Ok(syncfs(File::open(&temporary)?)?))
        .and_then(|()| fs::rename(&temporary, to));
    // A partial copy may fill the disk, so remove it. The first error is the useful one.
    copied.inspect_err(|_| drop(fs::remove_dir_all(&temporary)))
}

/// Removes the roots in a directory that are not in use, and returns their names.
pub fn remove_unused(directory: &Path, used: &BTreeSet<String>) -> io::Result<Vec<String>> {
    let mut removed = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let age = entry.metadata()?.modified()?.elapsed().unwrap_or_default();
        if !used.contains(&name) && age >= MIN_AGE {
            // What has its name is complete, also where the removal is interrupted.
            let old = directory.join(format!("{name}.old"));
            fs::rename(entry.path(), &old)?;
            fs::remove_dir_all(old)?;
            removed.push(name);
        }
    }
    Ok(removed)
}

/// Identifies a file or directory, whatever its path.
fn file_of(metadata: &Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

/// Copies what is on a device, without one directory.
fn copy_directory(from: &Path, to: &Path, device: u64, without: (u64, u64)) -> io::Result<()> {
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        let metadata = fs::symlink_metadata(&source)?;
        if file_of(&metadata) == without {
            continue;
        }
        let permissions = Permissions::from_mode(metadata.mode() & MODE_MASK);
        if metadata.is_symlink() {
            symlink(fs::read_link(&source)?, &target)?;
        } else if metadata.is_dir() {
            fs::create_dir(&target)?;
            if metadata.dev() == device {
                copy_directory(&source, &target, device, without)?;
            }
            fs::set_permissions(&target, permissions)?;
        } else if metadata.is_file() {
            fs::copy(&source, &target)?;
            fs::set_permissions(&target, permissions)?;
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

    #[test]
    fn failed_copy_leaves_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let from = directory.path().join("from");
        fs::create_dir(&from).unwrap();
        let name = "a".repeat(200);
        fs::write(from.join(&name), "1").unwrap();
        let mut above = directory.path().to_owned();
        // The kernel takes no path beyond 4,096 bytes: the copy's own has room, its file's has none.
        while above.as_os_str().len() < 3_900 {
            above.push(&name[..100]);
        }
        assert_eq!(copy(&from, &above.join("to")).unwrap_err().kind(), io::ErrorKind::InvalidFilename);
        assert_eq!(fs::read_dir(&above).unwrap().count(), 0);
    }

    #[test]
    fn copy_below_its_root_has_no_copies() {
        let directory = tempfile::tempdir().unwrap();
        let roots = directory.path().join("var/roots");
        fs::write(directory.path().join("envoy"), "1").unwrap();
        for name in ["proxyv2_1.31.0", "proxyv2_1.31.1"] {
            copy(directory.path(), &roots.join(name)).unwrap();
        }
        assert_eq!(fs::read_dir(&roots).unwrap().count(), 2);
        assert!(roots.join("proxyv2_1.31.1/envoy").exists());
        for name in ["proxyv2_1.31.0", "proxyv2_1.31.1"] {
            assert!(!roots.join(name).join("var/roots").exists(), "{name}");
        }
    }

    #[test]
    fn copy_has_no_setuid_programs_and_is_roots_only() {
        let directory = tempfile::tempdir().unwrap();
        let (from, to) = (directory.path().join("from"), directory.path().join("roots/to"));
        fs::create_dir_all(from.join("bin")).unwrap();
        fs::write(from.join("bin/su"), "").unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o7777;
        for (path, of_image, of_copy) in [("bin/su", 0o6755, 0o755), ("bin", 0o3755, 0o1755)] {
            fs::set_permissions(from.join(path), Permissions::from_mode(of_image)).unwrap();
            let _ = fs::remove_dir_all(&to);
            copy(&from, &to).unwrap();
            assert_eq!(mode(&to.join(path)), of_copy, "{path}");
        }
        assert_eq!(mode(to.parent().unwrap()), 0o700);
    }

    #[test]
    fn old_root_is_removed_unless_it_is_used() {
        let directory = tempfile::tempdir().unwrap();
        let root = |name: &str, age: Duration| {
            let path = directory.path().join(name);
            fs::create_dir_all(path.join("bin")).unwrap();
            File::open(path).unwrap().set_modified(std::time::SystemTime::now() - age).unwrap();
        };
        for name in ["current", "draining", "unused", "half.new"] {
            root(name, MIN_AGE + Duration::from_secs(1));
        }
        root("next", Duration::ZERO);
        let used = BTreeSet::from(["current", "draining"].map(str::to_owned));
        let mut removed = remove_unused(directory.path(), &used).unwrap();
        removed.sort_unstable();
        assert_eq!(removed, ["half.new", "unused"]);
        assert!(["current", "draining", "next"].iter().all(|name| directory.path().join(name).exists()));
    }
}
