//! Answers ARP and ICMP echo for an address that no kernel has: the aggregator's own.

use sumac_wire::bytes::{Bytes, Load};

use crate::{maps::OWN, packet::Packet};

const ARP: u16 = 0x0806;
const IPV4: u16 = 0x0800;
const ARP_LEN: usize = 14 + 28;
const ECHO_LEN: usize = 14 + 20 + 8;

/// Makes a request for `own_ip` its answer, in place; `false`: it is none.
#[inline(always)]
pub fn answer(packet: Packet, own_ip: u32, ingress: u32) -> bool {
    match packet.be16(12) {
        Some(ARP) => arp(packet, own_ip, ingress),
        Some(IPV4) => echo(packet, own_ip),
        _ => false,
    }
}

/// RFC 826: who has our address?
#[inline(always)]
fn arp(packet: Packet, own_ip: u32, ingress: u32) -> bool {
    const REQUEST: u16 = 1;
    let Some(frame) = packet.writable(ARP_LEN) else { return false };
    // Ethernet, IPv4, 6 and 4 bytes of address.
    if packet.be64(14) != Some(0x0001_0800_0604_0000 | u64::from(REQUEST)) || packet.be32(38) != Some(own_ip)
    {
        return false;
    }
    // SAFETY: the value is read once.
    let Some(mac) = (unsafe { OWN.get(ingress) }) else { return false };
    let mac = [*mac as u16, (*mac >> 16) as u16, (*mac >> 32) as u16];
    let (Some(ip), Some(sender)) = (packet.load::<u32>(28), half_words(packet, 22)) else { return false };
    if is_copy(sender) {
        return false;
    }
    frame.set_mac(0, sender);
    frame.set_mac(6, mac);
    frame.set(20, 2u16.to_be());
    frame.set_mac(22, mac);
    frame.set(28, own_ip.to_be());
    frame.set_mac(32, sender);
    frame.set(38, ip);
    true
}

/// RFC 792: are you there? The payload goes back as it came.
#[inline(always)]
fn echo(packet: Packet, own_ip: u32) -> bool {
    const ICMP: u8 = 1;
    const ECHO: u16 = 8 << 8;
    let Some(frame) = packet.writable(ECHO_LEN) else { return false };
    if packet.u8(14) != Some(0x45) || packet.u8(23) != Some(ICMP) || packet.be32(30) != Some(own_ip) {
        return false;
    }
    let Some(fragment) = packet.be16(20) else { return false };
    if fragment & 0x3fff != 0 || packet.be16(34) != Some(ECHO) {
        return false;
    }
    let (Some(from), Some(checksum)) = (packet.load::<u32>(26), packet.be16(36)) else { return false };
    let (Some(to), Some(sender)) = (half_words(packet, 0), half_words(packet, 6)) else { return false };
    if is_copy(sender) {
        return false;
    }
    frame.set_mac(0, sender);
    frame.set_mac(6, to);
    // The IPv4 header's checksum is the same: its two addresses only change places.
    frame.set(26, own_ip.to_be());
    frame.set(30, from);
    frame.set(34, 0u16);
    // RFC 1624: the sum of the new word and the old one's complement, which is -0x0800.
    let sum = u32::from(checksum) + u32::from(ECHO);
    frame.set(36, ((sum & 0xffff) as u16 + (sum >> 16) as u16).to_be());
    true
}

/// Whether an answer to this address would pass for a copy of a result on its way out.
#[inline(always)]
fn is_copy(mac: [u16; 3]) -> bool {
    mac[0] | mac[1] | mac[2] == 0
}

#[inline(always)]
fn half_words(packet: Packet, at: usize) -> Option<[u16; 3]> {
    Some([packet.load(at)?, packet.load(at + 2)?, packet.load(at + 4)?])
}
