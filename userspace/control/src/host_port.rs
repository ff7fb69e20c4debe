//! The address of a control plane as configurations and command lines give it: a host by name or address, and
//! a port.

use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::str::FromStr;

use serde::Deserialize;

/// `host:port`. A host name is resolved when the process starts.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct HostPort(String);

#[derive(Debug, thiserror::Error)]
pub enum ResolveError {
    #[error("cannot resolve {given}: {source}; is the name right, and does this host's resolver know it?")]
    Lookup { given: HostPort, source: std::io::Error },
    #[error("{given} has no address")]
    NoAddress { given: HostPort },
    /// Packets have IPv4 headers, and a member's address is that of its connection.
    #[error(
        "{given} has IPv6 addresses only ({}); control plane and data path use IPv4: give an IPv4 address, \
        or the name an A record",
        .found.iter().map(|address| address.ip().to_string()).collect::<Vec<_>>().join(", ")
    )]
    NoIpv4 { given: HostPort, found: Vec<SocketAddr> },
}

impl HostPort {
    /// Returns the first address, an IPv4 one if there is one.
    pub fn resolve(&self) -> Result<SocketAddr, ResolveError> {
        let found = self.look_up()?;
        let first = found.iter().find(|address| address.is_ipv4()).or(found.first());
        first.copied().ok_or_else(|| ResolveError::NoAddress { given: self.clone() })
    }

    /// Returns the addresses of a control plane, at least one: those of IPv4.
    pub fn resolve_control(&self) -> Result<Vec<SocketAddr>, ResolveError> {
        let found = self.look_up()?;
        let ipv4: Vec<_> = found.iter().copied().filter(SocketAddr::is_ipv4).collect();
        match (ipv4.is_empty(), found.is_empty()) {
            (false, _) => Ok(ipv4),
            (true, true) => Err(ResolveError::NoAddress { given: self.clone() }),
            (true, false) => Err(ResolveError::NoIpv4 { given: self.clone(), found }),
        }
    }

    fn look_up(&self) -> Result<Vec<SocketAddr>, ResolveError> {
        let found = self.0.to_socket_addrs();
        Ok(found.map_err(|source| ResolveError::Lookup { given: self.clone(), source })?.collect())
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for HostPort {
    type Err = String;

    fn from_str(text: &str) -> Result<HostPort, String> {
        let is_port = |port: &str| port.parse::<u16>().is_ok_and(|port| port > 0);
        match text.rsplit_once(':') {
            // An IPv6 address has brackets, else its end looks like a port.
            Some((host, port)) if is_host(host) && is_port(port) => Ok(HostPort(text.to_owned())),
            _ => Err(format!("{text:?} is not host:port; write it like 10.77.0.1:48600")),
        }
    }
}

impl TryFrom<String> for HostPort {
    type Error = String;

    fn try_from(text: String) -> Result<HostPort, String> {
        text.parse()
    }
}

fn is_host(host: &str) -> bool {
    let is_bracketed = host.starts_with('[') && host.ends_with(']');
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
    !host.is_empty() && (is_bracketed || host.chars().all(is_plain))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_a_name_or_an_address() {
        for good in ["10.77.0.1:48600", "localhost:1", "agg-1.example:48600", "[::1]:48600"] {
            assert!(good.parse::<HostPort>().is_ok(), "{good}");
        }
        for bad in ["", "10.77.0.1", ":1", "host:", "host:0", "host:70000", "::1:48600", "a b:1", "a/b:1"] {
            assert!(bad.parse::<HostPort>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_name_is_resolved_to_an_ipv4_address_and_a_failure_says_why() {
        let localhost: HostPort = "localhost:48600".parse().unwrap();
        assert_eq!(localhost.resolve().unwrap(), "127.0.0.1:48600".parse().unwrap());
        assert_eq!(localhost.resolve_control().unwrap(), ["127.0.0.1:48600".parse().unwrap()]);
        // RFC 6761: this name has no address.
        let nowhere: HostPort = "nowhere.invalid:1".parse().unwrap();
        let failed = nowhere.resolve().unwrap_err().to_string();
        assert!(failed.starts_with("cannot resolve nowhere.invalid:1: "), "{failed}");
    }

    #[test]
    fn a_control_plane_with_ipv6_addresses_alone_is_refused_by_their_name() {
        let given: HostPort = "[::1]:48600".parse().unwrap();
        assert_eq!(given.resolve().unwrap(), "[::1]:48600".parse().unwrap(), "a switch may have one");
        let refused = given.resolve_control().unwrap_err().to_string();
        assert!(refused.contains("IPv6 addresses only (::1)") && refused.contains("IPv4"), "{refused}");
    }
}
