//! How large packets may be on the way to an aggregator.

use std::net::{Ipv4Addr, UdpSocket};

use sumac_wire::header::{ELEMENT_LEN, HEADER_LEN};
use sumac_wire::{MAX_ELEMENTS, PAGE_ELEMENTS};

/// IPv4 and UDP headers.
const ENVELOPE: usize = 20 + 8;
/// The largest MTU whose frames lie in one buffer, on veths as on most NICs with XDP.
const ONE_BUFFER: usize = 3506;

/// What is taken for the MTU of a path that the kernel does not tell it of.
pub(crate) const USUAL_MTU: usize = 1500;

/// The 32-bit words of a packet that fits an MTU: a multiple of 8, and no more than one buffer holds where frames have one.
pub(crate) fn words(mtu: usize) -> u16 {
    let fit = mtu.saturating_sub(ENVELOPE + HEADER_LEN) / ELEMENT_LEN;
    let most = if mtu <= ONE_BUFFER { PAGE_ELEMENTS } else { MAX_ELEMENTS };
    let words = fit.min(most);
    let words = if words > 8 { words - words % 8 } else { words.max(1) };
    u16::try_from(words).unwrap_or(u16::MAX)
}

/// The MTU of the way to an address, as the kernel knows it.
pub(crate) fn mtu(to: Ipv4Addr) -> std::io::Result<usize> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    // Sends nothing; it only picks the route. Any port does.
    socket.connect((to, 9))?;
    let mtu = rustix::net::sockopt::ip_mtu(&socket)?;
    Ok(usize::try_from(mtu).unwrap_or(usize::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_are_as_large_as_the_mtu_lets_them() {
        let cases =
            [(576, 120), (1500, 352), (3506, 832), (4000, 976), (9000, 2224), (65536, 2224), (90, 1), (0, 1)];
        for (mtu, expected) in cases {
            assert_eq!(words(mtu), expected, "MTU {mtu}");
        }
    }

    #[test]
    fn the_loopback_has_an_mtu() {
        assert!(mtu(Ipv4Addr::LOCALHOST).unwrap() >= 1500);
    }
}
