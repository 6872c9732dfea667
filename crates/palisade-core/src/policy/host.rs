//! Hosts: those that requests name, and the patterns that routes match them with (I-ROUTE).

/// Longest host name, in bytes.
pub const HOST_BYTES_MAX: usize = 255;

/// A host in the one spelling that routes compare: lower case, without port and trailing dot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host(Box<str>);

impl Host {
    /// Reads the authority of a request: `shop.example`, `shop.example:8443`, `[::1]:80`. `None`
    /// if readers could take it for different hosts.
    #[must_use]
    pub fn parse(authority: &str) -> Option<Self> {
        let name = without_port(authority)?;
        let name = name.strip_suffix('.').unwrap_or(name);
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:[]".contains(&byte);
        let fits = !name.is_empty()
            && name.len() <= HOST_BYTES_MAX
            && !name.starts_with('.')
            && name.bytes().all(is_plain);
        fits.then(|| Self(name.to_ascii_lowercase().into()))
    }

    /// The host itself.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Splits the port off an authority. An IPv6 address stands in brackets; elsewhere the first colon
/// starts the port.
fn without_port(authority: &str) -> Option<&str> {
    let (name, port) = match authority.find(']') {
        Some(end) if authority.starts_with('[') => authority.split_at(end + 1),
        Some(_) => return None,
        None => authority.split_at(authority.find(':').unwrap_or(authority.len())),
    };
    let digits = port.strip_prefix(':').unwrap_or(port);
    digits
        .bytes()
        .all(|byte| byte.is_ascii_digit())
        .then_some(name)
}

/// Hosts that a route is about: one name, or every name under one (`*.example.com`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostPattern {
    /// This host only.
    Exact(Host),
    /// Every host whose name ends in a dot and this name, at any depth.
    Under(Host),
}

impl HostPattern {
    /// Reads `shop.example` or `*.example.com`; `None` if no request could have such a host.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (name, wrap): (_, fn(Host) -> Self) = match text.strip_prefix("*.") {
            Some(name) => (name, Self::Under),
            None => (text, Self::Exact),
        };
        let host = Host::parse(name)?;
        // Routes compare hosts without their ports, so that a pattern with one never matches.
        let is_whole = host.as_str().len() == name.trim_end_matches('.').len();
        is_whole.then(|| wrap(host))
    }

    /// True if the pattern covers `host`.
    #[must_use]
    pub fn covers(&self, host: &Host) -> bool {
        match self {
            Self::Exact(name) => name == host,
            Self::Under(name) => {
                let start = host.as_str().strip_suffix(name.as_str());
                start.is_some_and(|start| start.len() > 1 && start.ends_with('.'))
            }
        }
    }

    /// Returns a host that the pattern covers.
    #[must_use]
    pub fn example(&self) -> Host {
        match self {
            Self::Exact(name) => name.clone(),
            Self::Under(name) => Host(format!("x.{}", name.as_str()).into()),
        }
    }

    /// Sort key of patterns that cover the same host: the highest decides.
    pub(super) fn rank(&self) -> (bool, usize) {
        match self {
            Self::Exact(name) => (true, name.as_str().len()),
            Self::Under(name) => (false, name.as_str().len()),
        }
    }
}

impl std::fmt::Display for HostPattern {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Exact(name) => f.write_str(name.as_str()),
            Self::Under(name) => write!(f, "*.{}", name.as_str()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn i_route_a_host_has_one_spelling() {
        for (authority, host) in [
            ("Shop.Example", Some("shop.example")),
            ("shop.example:8443", Some("shop.example")),
            ("shop.example.:80", Some("shop.example")),
            ("shop.example:", Some("shop.example")),
            ("[::1]:80", Some("[::1]")),
            ("192.0.2.1", Some("192.0.2.1")),
            ("", None),
            (".", None),
            (".example", None),
            (":80", None),
            ("a:b", None),
            ("a:80:90", None),
            ("user@shop.example", None),
            ("shop.example, other.example", None),
            ("shop.example/x", None),
            ("[::1", None),
            ("a]", None),
        ] {
            let found = Host::parse(authority);
            assert_eq!(found.as_ref().map(Host::as_str), host, "{authority}");
        }
        assert!(Host::parse(&"a".repeat(HOST_BYTES_MAX + 1)).is_none());
    }

    #[test]
    fn i_route_a_pattern_covers_one_host_or_all_under_a_name() {
        for (pattern, host, covered) in [
            ("shop.example", "SHOP.example:1", true),
            ("shop.example", "a.shop.example", false),
            ("*.example", "shop.example", true),
            ("*.example", "a.shop.example", true),
            ("*.example", "example", false),
            ("*.example", "evilexample", false),
        ] {
            let pattern = HostPattern::parse(pattern).unwrap();
            let host = Host::parse(host).unwrap();
            assert_eq!(pattern.covers(&host), covered, "{pattern} {host:?}");
        }
        for never in ["", "*", "*.", "a.*", "shop.example:80", "a b"] {
            assert_eq!(HostPattern::parse(never), None, "{never}");
        }
    }
}
