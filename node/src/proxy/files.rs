//! The files of a sandbox' proxy, in a directory of its own below `/run`, where no key reaches a disk.

use std::cmp::Ordering;
use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::time::Duration;

use cni::protocol::{Dns, Sandbox};
use nix::time::{ClockId, clock_gettime};
use serde_json::json;

use super::ids::{revision_of, user_of};
use crate::certificate::{WorkloadCertificate, now, renewal_due, renewal_due_in, validity};
use crate::injector::{self, Rendered};
use crate::pod::PodFacts;

/// The directory of the file of firewall rules, which is a mount of the proxy's container, and the file.
pub(super) const RULES: &str = "rules";
/// Limits what a pod says in its files, together, and what istiod gave its proxy: files in a tmpfs count to the agent's memory.
const SIZE_LIMIT: usize = 128 << 10;

/// Reads and writes the directory of one sandbox.
#[derive(Debug)]
pub(crate) struct SandboxFiles {
    /// The directory's path.
    pub(super) directory: PathBuf,
    /// The user and group of its proxies.
    user: u32,
}

/// Returns the directory of all sandboxes' directories.
pub(super) fn all(run_dir: &Path) -> PathBuf {
    run_dir.join("sandbox")
}

impl SandboxFiles {
    /// Names the directory of a sandbox, which need not exist yet.
    pub(crate) fn of(run_dir: &Path, id: &str) -> Self {
        Self { directory: all(run_dir).join(id), user: user_of(id) }
    }

    /// Writes the pod's metadata for pilot-agent, and the resolver's configuration.
    pub(super) fn write_pod(&self, sandbox: &Sandbox, pod: &PodFacts) -> io::Result<()> {
        let metadata = &pod.object.metadata;
        let annotations = metadata.annotations.as_ref().map(injector::annotations);
        let annotations = downward_api(annotations.iter().flatten());
        let labels = downward_api(metadata.labels.iter().flatten());
        let hosts = format!("127.0.0.1 localhost\n::1 localhost\n{}", pod.hosts);
        let (sandbox_json, resolver) = (json!(sandbox).to_string(), resolv_conf(&sandbox.dns));
        let of_pod = [&labels, &annotations, &hosts, &sandbox_json].into_iter().chain(&resolver);
        check("labels, annotations, hostAliases and dnsConfig", of_pod.map(String::len).sum())?;
        let directory = self.directory.join("pod");
        fs::create_dir_all(&directory)?;
        fs::set_permissions(&self.directory, fs::Permissions::from_mode(0o700))?;
        replace(&self.directory, "sandbox.json", &sandbox_json, |_| Ok(()))?;
        fs::write(directory.join("labels"), labels)?;
        fs::write(directory.join("annotations"), annotations)?;
        fs::write(self.directory.join("hosts"), hosts)?;
        let to = self.directory.join("resolv.conf");
        match resolver {
            Some(text) => fs::write(to, text),
            // The runtime named no resolver: the agent's is used.
            None => fs::copy("/etc/resolv.conf", to).map(|_| ()),
        }
    }

    /// Writes the certificate. The chain is last, because pilot-agent reads all three when one has changed.
    pub(super) fn write_certificate(&self, certificate: &WorkloadCertificate) -> io::Result<()> {
        let directory = self.certificate_directory()?;
        let for_proxy = |file: &Path| for_group(self.user, file, 0o440);
        replace(&directory, "key.pem", &certificate.key, for_proxy)?;
        replace(&directory, "root-cert.pem", &certificate.root, for_proxy)?;
        replace(&directory, "cert-chain.pem", &certificate.chain, for_proxy)
    }

    /// Returns the certificate's directory, which is created.
    fn certificate_directory(&self) -> io::Result<PathBuf> {
        let directory = self.directory.join("certificate");
        fs::create_dir_all(&directory)?;
        for_group(self.user, &directory, 0o750)?;
        Ok(directory)
    }

    /// Returns the time until the renewal is due: zero without a certificate that can be read.
    pub(super) fn renewal_due_in(&self) -> Duration {
        renewal_due_in(&self.chain())
    }

    /// Returns the time at which half of the certificate's life is over, in seconds since 1970.
    pub(crate) fn renewal_due(&self) -> Option<u64> {
        renewal_due(&self.chain())
    }

    /// Returns the time for which the certificate is valid; `None` where it has expired.
    pub(crate) fn certificate_expires_in(&self) -> Option<Duration> {
        let [_, not_after] = validity(&self.chain())?;
        not_after.checked_sub(now()).map(Duration::from_secs)
    }

    /// Reads the certificate; empty without one.
    fn chain(&self) -> Vec<u8> {
        fs::read(self.directory.join("certificate/cert-chain.pem")).unwrap_or_default()
    }

    /// Reads the sandbox, for an agent that adopts its proxy.
    pub(crate) fn sandbox(&self) -> Option<Sandbox> {
        serde_json::from_slice(&fs::read(self.directory.join("sandbox.json")).ok()?).ok()
    }

    /// Reads what istiod's injector gave the proxy; `None` where it was not asked yet.
    pub(super) fn rendered(&self) -> io::Result<Option<Rendered>> {
        let text = existing(fs::read(self.directory.join("rendered.json")))?;
        Ok(text.map(|text| serde_json::from_slice(&text)).transpose()?)
    }

    /// Records what istiod's injector gave the proxy: see [`record_of`].
    pub(super) fn write_rendered(&self, record: &str) -> io::Result<()> {
        replace(&self.directory, "rendered.json", record, |_| Ok(()))
    }

    /// Returns the revision that serves: the number of upgrades before it. `None` where none has served yet.
    pub(crate) fn revision(&self) -> io::Result<Option<u32>> {
        let text = existing(fs::read_to_string(self.directory.join("revision")))?;
        text.map(|text| text.parse().map_err(io::Error::other)).transpose()
    }

    /// Compares a container of the sandbox with the proxy that serves: less is earlier.
    pub(crate) fn age(&self, id: &str) -> io::Result<Ordering> {
        Ok(revision_of(id).cmp(&self.revision()?.or(Some(0))))
    }

    /// Records the revision that serves from now on.
    pub(super) fn write_revision(&self, revision: u32) -> io::Result<()> {
        replace(&self.directory, "revision", &revision.to_string(), |_| Ok(()))
    }

    /// Returns the time since a revision was replaced by the next.
    pub(super) fn replaced_for(&self, revision: u32) -> Duration {
        let began = fs::read_to_string(self.directory.join(beginning(revision.wrapping_add(1))))
            .ok()
            .and_then(|text| text.parse().ok());
        began.map_or(Duration::ZERO, |began| since_boot().saturating_sub(Duration::from_secs(began)))
    }

    /// Records that the ports are redirected to a revision from now on, in place of the one before.
    pub(super) fn write_beginning(&self, revision: u32) -> io::Result<()> {
        replace(&self.directory, &beginning(revision), &since_boot().as_secs().to_string(), |_| Ok(()))
    }

    /// Returns true if the ports may have been redirected to a revision.
    pub(super) fn has_begun(&self, revision: u32) -> io::Result<bool> {
        self.directory.join(beginning(revision)).try_exists()
    }

    /// Records that the ports are not redirected to a revision any more.
    pub(super) fn remove_beginning(&self, revision: u32) -> io::Result<()> {
        fs::remove_file(self.directory.join(beginning(revision)))
    }

    /// Creates the directories of the certificate and of the file of rules, which are mounts of the proxy's container. The certificate may
    /// come later.
    pub(super) fn create_mounts(&self) -> io::Result<()> {
        self.certificate_directory()?;
        let rules = self.directory.join(RULES);
        fs::create_dir_all(&rules)?;
        fs::set_permissions(rules, fs::Permissions::from_mode(0o700))
    }

    /// Writes a file of rules for `iptables-restore`, or for `iptables-save` to write to.
    pub(super) fn write_rules(&self, rules: &str) -> io::Result<()> {
        fs::write(self.rules_file(), rules)
    }

    /// Reads that file, and removes it.
    pub(super) fn take_rules(&self) -> io::Result<String> {
        let file = self.rules_file();
        let rules = fs::read(&file)?;
        fs::remove_file(file)?;
        Ok(String::from_utf8_lossy(&rules).into_owned())
    }

    fn rules_file(&self) -> PathBuf {
        self.directory.join(RULES).join(RULES)
    }

    /// Removes the directory.
    pub(super) fn remove(&self) -> io::Result<()> {
        existing(fs::remove_dir_all(&self.directory)).map(drop)
    }
}

/// Names the file of the time at which a revision began to serve, in seconds since the node's boot.
fn beginning(revision: u32) -> String {
    format!("revision-{revision}")
}

/// Returns the time since the node's boot, which no change of its clock moves. The files do not outlive a boot.
fn since_boot() -> Duration {
    clock_gettime(ClockId::CLOCK_BOOTTIME).map(Duration::from).unwrap_or_default()
}

/// Returns the result for a file; `None` where it does not exist.
pub(super) fn existing<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        result => result.map(Some),
    }
}

/// Returns the record of what istiod's injector gave a proxy. Fails where it would be larger than the limit.
pub(super) fn record_of(rendered: &Rendered) -> io::Result<String> {
    let text = json!(rendered).to_string();
    check("arguments and variables", text.len()).map(|()| text)
}

/// Fails where files would be larger than the limit.
fn check(what: &str, size: usize) -> io::Result<()> {
    let too_large = || io::Error::other(format!("the {what} are larger than {SIZE_LIMIT} bytes"));
    (size <= SIZE_LIMIT).then_some(()).ok_or_else(too_large)
}

/// Writes a file atomically, after `prepare` has set its owner and mode.
fn replace(directory: &Path, name: &str, text: &str, prepare: impl Fn(&Path) -> io::Result<()>) -> io::Result<()> {
    let temporary = directory.join(format!(".{name}"));
    fs::write(&temporary, text)?;
    prepare(&temporary)?;
    fs::rename(temporary, directory.join(name))
}

/// Lets a proxy's group read a path that stays root's: root writes below it, where a proxy could otherwise plant symlinks.
fn for_group(group: u32, path: &Path, mode: u32) -> io::Result<()> {
    fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
    chown(path, Some(0), Some(group))
}

/// Renders a resolver's configuration, as container runtimes do; `None` without a name server. Values with spaces are left out:
/// they would be more than one value of their line.
fn resolv_conf(dns: &Dns) -> Option<String> {
    let words = |values: &[String]| {
        let words = values.iter().filter(|value| !value.is_empty() && !value.contains(char::is_whitespace));
        words.cloned().collect::<Vec<_>>()
    };
    let [servers, searches, options] = [&dns.servers, &dns.searches, &dns.options].map(|values| words(values));
    let line = |key: &str, values: &[String]| {
        if values.is_empty() { String::new() } else { format!("{key} {}\n", values.join(" ")) }
    };
    let servers = servers.iter().map(|server| format!("nameserver {server}\n")).collect::<Vec<_>>().concat();
    (!servers.is_empty()).then(|| [line("search", &searches), servers, line("options", &options)].concat())
}

/// Renders labels or annotations as a volume of the downward API does.
fn downward_api<'a>(entries: impl Iterator<Item = (&'a String, &'a String)>) -> String {
    entries.fold(String::new(), |text, (key, value)| text + key + "=" + &json!(value).to_string() + "\n")
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::super::ids::proxy_id;
    use super::*;

    #[test]
    fn resolver_is_the_pods() {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let (servers, searches) = (words("10.96.0.10 fd00::a"), words("a.svc.cluster.local svc.cluster.local"));
        let options = vec!["ndots:5".to_owned(), "x\nnameserver 10.0.0.1".to_owned()];
        let expected = "search a.svc.cluster.local svc.cluster.local\nnameserver 10.96.0.10\nnameserver fd00::a\noptions ndots:5\n";
        assert_eq!(resolv_conf(&Dns { servers, searches, options }).as_deref(), Some(expected));
        assert_eq!(resolv_conf(&Dns::default()), None);
    }

    #[test]
    fn first_proxy_serves_until_another_is_recorded() {
        let run_dir = tempfile::tempdir().unwrap();
        let files = SandboxFiles::of(run_dir.path(), "abc");
        fs::create_dir_all(&files.directory).unwrap();
        let ages = || [0, 1, 2].map(|revision| files.age(&proxy_id("abc", revision)).unwrap());
        assert_eq!(files.revision().unwrap(), None);
        assert_eq!(ages(), [Ordering::Equal, Ordering::Greater, Ordering::Greater]);
        files.write_revision(1).unwrap();
        assert_eq!(files.revision().unwrap(), Some(1));
        assert_eq!(ages(), [Ordering::Less, Ordering::Equal, Ordering::Greater]);
    }

    #[test]
    fn unreadable_record_is_an_error() {
        let run_dir = tempfile::tempdir().unwrap();
        let files = SandboxFiles::of(run_dir.path(), "abc");
        for name in ["revision", "rendered.json"] {
            fs::create_dir_all(files.directory.join(name)).unwrap();
        }
        assert!(files.revision().is_err() && files.rendered().is_err());
        for name in ["revision", "rendered.json"] {
            fs::remove_dir(files.directory.join(name)).unwrap();
            fs::write(files.directory.join(name), "x").unwrap();
        }
        assert!(files.revision().is_err() && files.rendered().is_err() && files.age(&proxy_id("abc", 0)).is_err());
    }

    #[test]
    fn pod_whose_files_would_be_large_is_an_error() {
        let run_dir = tempfile::tempdir().unwrap();
        let files = SandboxFiles::of(run_dir.path(), "abc");
        let with = |length: usize| {
            let quotes = PodFacts::annotated("sidecar.istio.io/extraStatTags", &"\"".repeat(length));
            files.write_pod(&Sandbox::default(), &quotes).map_err(|error| error.to_string())
        };
        assert_eq!(with(60 << 10), Ok(()));
        let refused = Err("the labels, annotations, hostAliases and dnsConfig are larger than 131072 bytes".to_owned());
        assert_eq!(with(66 << 10), refused);
        // Two files have it, each below the limit.
        let dns = Dns { servers: vec!["10.0.0.10".into()], options: vec!["x".repeat(65 << 10)], ..Dns::default() };
        let sandbox = Sandbox { dns, ..Sandbox::default() };
        let written = files.write_pod(&sandbox, &PodFacts::annotated("other", "x"));
        assert_eq!(written.map_err(|error| error.to_string()), refused);
    }

    #[test]
    fn record_that_would_be_large_is_an_error() {
        let with = |length: usize| {
            let mut rendered = Rendered::default();
            rendered.proxy.args.push("x".repeat(length));
            record_of(&rendered).map(drop).map_err(|error| error.to_string())
        };
        assert_eq!(with(126 << 10), Ok(()));
        assert_eq!(with(128 << 10), Err("the arguments and variables are larger than 131072 bytes".to_owned()));
    }

    #[test]
    fn time_since_an_upgrade_is_changed_by_no_other_and_no_clock() {
        let run_dir = tempfile::tempdir().unwrap();
        let files = SandboxFiles::of(run_dir.path(), "abc");
        fs::create_dir_all(&files.directory).unwrap();
        let half_a_minute = Duration::from_secs(30);
        let began = since_boot().checked_sub(half_a_minute).expect("this machine has run for longer").as_secs();
        fs::write(files.directory.join(beginning(1)), began.to_string()).unwrap();
        files.write_beginning(2).unwrap();
        // The clock is set, which changes what the file's own time means.
        for clock in [SystemTime::UNIX_EPOCH, SystemTime::now() + Duration::from_hours(1)] {
            fs::File::open(files.directory.join(beginning(1))).unwrap().set_modified(clock).unwrap();
            assert!((half_a_minute..Duration::from_hours(1)).contains(&files.replaced_for(0)));
        }
        assert!(files.replaced_for(1) < half_a_minute);
        assert_eq!(files.replaced_for(2), Duration::ZERO, "it serves");
    }
}
