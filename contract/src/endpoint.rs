//! Endpoints that end something when they get a `POST`: plain HTTP, on the pod's own loopback only.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::str::FromStr;

/// `http://127.0.0.1:PORT/PATH`, or the same with `localhost` or `[::1]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// Address and port; the address is a loopback one.
    pub address: SocketAddr,
    /// The path, with the slash it begins with.
    pub path: String,
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}{}", self.address, self.path)
    }
}

/// The text is not such a URL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ParseEndpointError;

impl fmt::Display for ParseEndpointError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("must be http://127.0.0.1:PORT/PATH: plain HTTP, on loopback, with its port")
    }
}

impl std::error::Error for ParseEndpointError {}

impl FromStr for Endpoint {
    type Err = ParseEndpointError;

    fn from_str(text: &str) -> Result<Self, ParseEndpointError> {
        let rest = text.strip_prefix("http://").ok_or(ParseEndpointError)?;
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let address = match authority.strip_prefix("localhost:") {
            Some(port) => {
                SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port.parse().map_err(|_| ParseEndpointError)?)
            }
            None => authority.parse().map_err(|_| ParseEndpointError)?,
        };
        // What goes into the request line must not end it.
        let is_clean = path.bytes().all(|byte| byte.is_ascii_graphic());
        if !address.ip().is_loopback() || address.port() == 0 || !is_clean {
            return Err(ParseEndpointError);
        }
        let path = if path.is_empty() { "/" } else { path };
        Ok(Self { address, path: path.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_urls_are_parsed() {
        let cases = [
            ("http://127.0.0.1:9091/quitquitquit", "http://127.0.0.1:9091/quitquitquit"),
            ("http://localhost:1/a?b=c", "http://127.0.0.1:1/a?b=c"),
            ("http://[::1]:9091/x", "http://[::1]:9091/x"),
            ("http://127.0.0.1:9091", "http://127.0.0.1:9091/"),
        ];
        for (text, same) in cases {
            assert_eq!(text.parse::<Endpoint>().map(|endpoint| endpoint.to_string()), Ok(same.to_owned()), "{text}");
        }
    }

    #[test]
    fn other_urls_are_rejected() {
        let cases = [
            "",
            "https://127.0.0.1:1/x",
            "http://10.0.0.1:80/x",
            "http://example.com:80/x",
            "http://127.0.0.1/x",
            "http://localhost/x",
            "http://127.0.0.1:0/x",
            "http://127.0.0.1:99999/x",
            "http://user@127.0.0.1:1/x",
            "http://127.0.0.1:1/a b",
            "http://127.0.0.1:1/a\r\nHost: x",
            "127.0.0.1:1/x",
        ];
        for text in cases {
            assert_eq!(text.parse::<Endpoint>(), Err(ParseEndpointError), "{text:?}");
        }
    }
}
