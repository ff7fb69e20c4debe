//! `own.p4`: the switch's own addresses, for which it answers ARP and ICMP echo requests.

use std::net::Ipv4Addr;

use super::numbers::mac;
use crate::target::Entry;

pub fn entry(ip: Ipv4Addr, own: [u8; 6]) -> Entry {
    Entry::new("own", "set_own").exact("ip", ip.to_bits()).parameter("own_mac", mac(own))
}
