//! The ids of a sandbox' containers: `SANDBOX-proxy-GENERATION` and `SANDBOX-redirect`.

/// Between the sandbox' id and the proxy's generation in a container's id.
const PROXY_INFIX: &str = "-proxy-";
const REDIRECT_SUFFIX: &str = "-redirect";

pub(super) fn proxy_id(sandbox: &str, generation: u32) -> String {
    format!("{sandbox}{PROXY_INFIX}{generation}")
}

/// How often the proxy of this container's sandbox was upgraded until then; nothing where it is no proxy's.
pub(super) fn generation_of(id: &str) -> Option<u32> {
    id.rsplit_once(PROXY_INFIX)?.1.parse().ok()
}

/// The sandbox that a container belongs to.
pub(super) fn sandbox_id(id: &str) -> &str {
    id.rsplit_once(PROXY_INFIX).map_or(id.trim_end_matches(REDIRECT_SUFFIX), |(sandbox, _)| sandbox)
}

pub(super) fn redirect_id(sandbox: &str) -> String {
    format!("{sandbox}{REDIRECT_SUFFIX}")
}

/// The sandbox of a proxy's container; nothing where it is no proxy's.
pub(crate) fn sandbox_of_proxy(id: &str) -> Option<&str> {
    generation_of(id).map(|_| sandbox_id(id))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_containers_id_names_its_sandbox_and_a_proxys_its_generation_too() {
        for (id, generation) in
            [(proxy_id("abc", 0), Some(0)), (proxy_id("abc", 12), Some(12)), (redirect_id("abc"), None)]
        {
            assert_eq!((sandbox_id(&id), generation_of(&id)), ("abc", generation), "{id}");
        }
    }
}
