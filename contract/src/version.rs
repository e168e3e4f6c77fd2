//! Versions of Kubernetes and of kernels.

use std::fmt;

/// The first version in which native sidecars are on by default (KEP-753).
const NATIVE_SIDECARS_SINCE: Version = Version { major: 1, minor: 29 };

/// The first Linux version that reports the exit codes of processes to others than their parents.
const EXIT_CODES_SINCE: Version = Version { major: 6, minor: 15 };

/// A version of Kubernetes, or of a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// The major version.
    pub major: u32,
    /// The minor version.
    pub minor: u32,
}

impl Version {
    /// Returns true if native sidecars are on by default.
    #[must_use]
    pub fn has_native_sidecars(self) -> bool {
        self >= NATIVE_SIDECARS_SINCE
    }

    /// Returns true if this version of Linux reports the exit codes of sibling containers.
    #[must_use]
    pub fn reports_exit_codes(self) -> bool {
        self >= EXIT_CODES_SINCE
    }

    /// Parses `1.34`, `v1.34.4-eks-1`, or a minor version with a suffix, as some providers have it (`29+`).
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.trim_start_matches('v').split('.');
        let mut number = || {
            let part = parts.next()?;
            let digits = part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len());
            part[..digits].parse().ok()
        };
        Some(Self { major: number()?, minor: number()? })
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_with_suffixes_of_providers_are_parsed() {
        let cases = [
            ("1.29", Some((1, 29))),
            ("v1.34.4", Some((1, 34))),
            ("1.28+", Some((1, 28))),
            ("v1.30.5-gke.1014001", Some((1, 30))),
            ("", None),
            ("1", None),
            ("x.y", None),
        ];
        for (text, expected) in cases {
            assert_eq!(Version::parse(text), expected.map(|(major, minor)| Version { major, minor }), "{text}");
        }
    }

    #[test]
    fn native_sidecars_are_on_since_1_29() {
        for (text, has) in [("1.28", false), ("1.29", true), ("1.36", true), ("2.0", true)] {
            assert_eq!(Version::parse(text).unwrap().has_native_sidecars(), has, "{text}");
        }
    }
}
