//! The size of packets on the path to an aggregator.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};

use sumac_wire::header::{ELEMENT_LEN, HEADER_LEN};
use sumac_wire::{MAX_ELEMENTS, PAGE_ELEMENTS};

/// IPv4 and UDP headers.
const ENVELOPE: usize = 20 + 8;
/// The largest MTU whose frames fit one buffer, on veths as on most NICs with XDP.
const ONE_BUFFER: usize = 3506;

/// The MTU of a path for which the kernel has none.
const DEFAULT_MTU: usize = 1500;

/// Returns the 32-bit words of a packet that fits an MTU: a multiple of 8, and at most a buffer's where
/// frames have one.
fn words(mtu: usize) -> u16 {
    let fit = mtu.saturating_sub(ENVELOPE + HEADER_LEN) / ELEMENT_LEN;
    let most = if mtu <= ONE_BUFFER { PAGE_ELEMENTS } else { MAX_ELEMENTS };
    let words = fit.min(most);
    let words = if words > 8 { words - words % 8 } else { words.max(1) };
    u16::try_from(words).unwrap_or(u16::MAX)
}

/// Returns the 32-bit words of a packet on the path to a control plane, which the data is assumed to take.
pub(crate) fn words_to(control: SocketAddr) -> u16 {
    let SocketAddr::V4(control) = control else { return words(DEFAULT_MTU) };
    words(mtu(*control.ip()).unwrap_or_else(|error| {
        log_limited!(warn, %control, %error,
            "the kernel has no MTU for the path to the aggregator; assuming {DEFAULT_MTU}");
        DEFAULT_MTU
    }))
}

/// Returns the name of the interface that has an address.
pub(crate) fn interface_of(ip: Ipv4Addr) -> Option<String> {
    let has_it = |interface: &nix::ifaddrs::InterfaceAddress| {
        interface
            .address
            .as_ref()
            .and_then(|address| address.as_sockaddr_in())
            .is_some_and(|address| address.ip() == ip)
    };
    nix::ifaddrs::getifaddrs().ok()?.find(has_it).map(|interface| interface.interface_name)
}

/// Returns the kernel's MTU of the path to an address.
fn mtu(to: Ipv4Addr) -> std::io::Result<usize> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    // Sends nothing; it only selects the route. Any port is valid.
    socket.connect((to, 9))?;
    let mtu = rustix::net::sockopt::ip_mtu(&socket)?;
    Ok(usize::try_from(mtu).unwrap_or(usize::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_fill_the_mtu() {
        let cases =
            [(576, 120), (1500, 352), (3506, 832), (4000, 976), (9000, 2224), (65536, 2224), (90, 1), (0, 1)];
        for (mtu, expected) in cases {
            assert_eq!(words(mtu), expected, "MTU {mtu}");
        }
    }

    #[test]
    fn the_loopback_has_an_mtu() {
        assert!(mtu(Ipv4Addr::LOCALHOST).unwrap() >= 1500);
        assert_eq!(interface_of(Ipv4Addr::LOCALHOST).as_deref(), Some("lo"));
    }
}
