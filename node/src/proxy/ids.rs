//! The ids of a sandbox' proxies, `SANDBOX-proxy-REVISION`, and their user.

/// Separates the sandbox' id and the proxy's revision in a container's id.
const PROXY_INFIX: &str = "-proxy-";
/// The lowest user ID of a proxy. systemd's `UIDS-GIDS.md` lists no use from here to 2147483647, runc's highest.
const LEAST_USER: u32 = 7 << 28;
/// The number of digits of a sandbox' id that form the user ID.
const DIGITS_OF_USER: usize = 7;

/// Returns the user and group of a sandbox' proxies. The sandbox' id is random and later than the pod's spec, so no container can ask
/// for this user: the rules that exempt the proxy's connections exempt no payload's, and per-user limits of the kernel are not shared.
pub(super) fn user_of(sandbox: &str) -> u32 {
    let digits = sandbox.get(..DIGITS_OF_USER).unwrap_or(sandbox);
    LEAST_USER + u32::from_str_radix(digits, 16).unwrap_or_default()
}

pub(super) fn proxy_id(sandbox: &str, revision: u32) -> String {
    format!("{sandbox}{PROXY_INFIX}{revision}")
}

/// Returns the revision of a proxy's container; `None` for another container.
pub(super) fn revision_of(id: &str) -> Option<u32> {
    id.rsplit_once(PROXY_INFIX)?.1.parse().ok()
}

/// Returns the sandbox that a container belongs to, also one of an earlier agent.
pub(super) fn sandbox_id(id: &str) -> &str {
    id.split_once('-').map_or(id, |(sandbox, _)| sandbox)
}

/// Returns the sandbox of a proxy's container; `None` for another container.
pub(crate) fn sandbox_of_proxy(id: &str) -> Option<&str> {
    revision_of(id).map(|_| sandbox_id(id))
}

/// Returns the name of a proxy's cgroup. cAdvisor takes one with 64 hexadecimal digits for the pod's own sandbox, and exports its
/// metrics twice (the regular expression in its container/containerd/factory.go).
pub(super) fn cgroup_name(sandbox: &str, revision: u32) -> String {
    let sandbox: String = sandbox.chars().take(12).collect();
    format!("istio-aux-proxy-{revision}-{sandbox}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cgroup_has_no_whole_id_of_a_sandbox() {
        let sandbox = "0123456789abcdef".repeat(4);
        assert_eq!(cgroup_name(&sandbox, 2), "istio-aux-proxy-2-0123456789ab");
    }

    #[test]
    fn proxys_user_is_of_a_range_without_other_use() {
        let users = [
            ("0000000", 1_879_048_192),
            ("fffffff", 2_147_483_647),
            ("0000001", 1_879_048_193),
            ("no id", 1_879_048_192),
        ];
        for (digits, user) in users {
            assert_eq!(user_of(&format!("{digits}{}", "a".repeat(57))), user, "{digits}");
        }
    }

    #[test]
    fn container_id_has_sandbox_and_revision() {
        let ids = [(proxy_id("abc", 0), Some(0)), (proxy_id("abc", 12), Some(12)), ("abc-other".to_owned(), None)];
        for (id, revision) in ids {
            assert_eq!((sandbox_id(&id), revision_of(&id)), ("abc", revision), "{id}");
        }
    }
}
