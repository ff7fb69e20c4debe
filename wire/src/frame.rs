//! Ethernet II, at most one 802.1Q tag, IPv4 and UDP around a Sumac packet.

use crate::{Header, Reason, bytes::Bytes, checksum, header::HEADER_LEN};

/// Bytes of an Ethernet header without a tag.
pub const ETH_LEN: usize = 14;
/// Bytes of an 802.1Q tag.
pub const VLAN_LEN: usize = 4;
/// Bytes of an IPv4 header without options; frames with options are not ours.
pub const IPV4_LEN: usize = 20;
/// Bytes of a UDP header.
pub const UDP_LEN: usize = 8;
/// Bytes in front of the UDP payload of an untagged frame.
pub const OVERHEAD: usize = ETH_LEN + IPV4_LEN + UDP_LEN;

const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_VLAN: u16 = 0x8100;
const PROTOCOL_UDP: u8 = 17;
const MORE_FRAGMENTS: u16 = 0x2000;
const FRAGMENT_OFFSET: u16 = 0x1fff;

/// The UDP destination ports that are Sumac's: `base + shard`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ports {
    /// Shard 0's port.
    pub base: u16,
    /// The number of shards.
    pub shards: u16,
}

impl Ports {
    /// Whether `port` is one of them.
    #[inline(always)]
    pub const fn contain(self, port: u16) -> bool {
        port.wrapping_sub(self.base) < self.shards
    }
}

/// A frame that is Sumac's, and where its parts are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Whether an 802.1Q tag precedes the IPv4 header.
    pub tagged: bool,
    /// Source address, host order.
    pub src_ip: u32,
    /// Destination address, host order.
    pub dst_ip: u32,
    /// UDP source port.
    pub src_port: u16,
    /// UDP destination port.
    pub dst_port: u16,
    /// IPv4's DSCP and ECN byte.
    pub dscp_ecn: u8,
    /// Bytes of UDP header and payload; at least [`UDP_LEN`] + [`HEADER_LEN`].
    pub udp_len: u16,
}

impl Frame {
    /// The offset of the IPv4 header.
    #[inline(always)]
    pub const fn l3(&self) -> usize {
        if self.tagged { ETH_LEN + VLAN_LEN } else { ETH_LEN }
    }

    /// The offset of the UDP header.
    #[inline(always)]
    pub const fn l4(&self) -> usize {
        self.l3() + IPV4_LEN
    }

    /// The offset of the UDP payload, Sumac's header.
    #[inline(always)]
    pub const fn payload(&self) -> usize {
        self.l4() + UDP_LEN
    }

    /// Bytes of the UDP payload: Sumac's header and the elements.
    #[inline(always)]
    pub const fn payload_len(&self) -> usize {
        self.udp_len as usize - UDP_LEN
    }
}

/// The classification of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parsed {
    /// Somebody else's: never to be touched.
    Foreign,
    /// Ours by its port, and refused.
    Bad(Reason),
    /// Ours.
    Ours(Frame),
}

/// Looks at a frame. Whatever cannot be shown to be for one of `ports` is foreign, a frame that
/// ends before its ports and a later fragment (which has none) among them.
#[inline(always)]
pub fn parse<B: Bytes + ?Sized>(bytes: &B, ports: Ports) -> Parsed {
    // Two calls with a constant offset each: the verifier follows constants, not sums.
    match bytes.be16(12) {
        Some(ETHERTYPE_IPV4) => ipv4(bytes, false, ports),
        Some(ETHERTYPE_VLAN) => match bytes.be16(16) {
            Some(ETHERTYPE_IPV4) => ipv4(bytes, true, ports),
            _ => Parsed::Foreign,
        },
        _ => Parsed::Foreign,
    }
}

#[inline(always)]
fn ipv4<B: Bytes + ?Sized>(bytes: &B, tagged: bool, ports: Ports) -> Parsed {
    let l3 = if tagged { ETH_LEN + VLAN_LEN } else { ETH_LEN };
    // One question at a time: joined conditions become arithmetic that the verifier refuses.
    if bytes.u8(l3) != Some(0x45) {
        return Parsed::Foreign;
    }
    let Some(fragment) = bytes.be16(l3 + 6) else { return Parsed::Foreign };
    if fragment & FRAGMENT_OFFSET != 0 {
        return Parsed::Foreign;
    }
    if bytes.u8(l3 + 9) != Some(PROTOCOL_UDP) {
        return Parsed::Foreign;
    }
    match bytes.be16(l3 + IPV4_LEN + 2) {
        Some(port) if ports.contain(port) => {}
        _ => return Parsed::Foreign,
    }
    if fragment & MORE_FRAGMENTS != 0 {
        return Parsed::Bad(Reason::Fragment);
    }
    match datagram(bytes, tagged, l3) {
        Ok(frame) => Parsed::Ours(frame),
        Err(reason) => Parsed::Bad(reason),
    }
}

#[inline(always)]
fn datagram<B: Bytes + ?Sized>(bytes: &B, tagged: bool, l3: usize) -> Result<Frame, Reason> {
    let l4 = l3 + IPV4_LEN;
    let total_len = bytes.be16(l3 + 2).ok_or(Reason::Truncated)? as usize;
    let udp_len = bytes.be16(l4 + 4).ok_or(Reason::Truncated)?;
    if total_len != IPV4_LEN + udp_len as usize {
        return Err(Reason::BadLength);
    }
    // A frame may be longer (Ethernet pads short ones), never shorter.
    if bytes.len() < l3 + total_len {
        return Err(Reason::Truncated);
    }
    if (udp_len as usize) < UDP_LEN + HEADER_LEN {
        if udp_len as usize > UDP_LEN {
            Header::check_version(bytes, l4 + UDP_LEN)?;
        }
        return Err(Reason::BadLength);
    }
    Ok(Frame {
        tagged,
        src_ip: bytes.be32(l3 + 12).ok_or(Reason::Truncated)?,
        dst_ip: bytes.be32(l3 + 16).ok_or(Reason::Truncated)?,
        src_port: bytes.be16(l4).ok_or(Reason::Truncated)?,
        dst_port: bytes.be16(l4 + 2).ok_or(Reason::Truncated)?,
        dscp_ecn: bytes.u8(l3 + 1).ok_or(Reason::Truncated)?,
        udp_len,
    })
}

/// The addresses of a frame that is to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it; addresses are in host order")]
pub struct Endpoints {
    pub src_mac: [u8; 6],
    pub dst_mac: [u8; 6],
    pub src_ip: u32,
    pub dst_ip: u32,
    pub src_port: u16,
    pub dst_port: u16,
    pub dscp_ecn: u8,
}

/// Writes Ethernet, IPv4 and UDP headers in front of a payload that stands at [`OVERHEAD`] already.
///
/// `checksum` asks for a UDP checksum over the payload; without it the field says "none". Returns
/// the frame's length, or `None` when `frame` is shorter than that or the payload too long for IPv4.
pub fn emit(frame: &mut [u8], to: &Endpoints, payload_len: usize, checksum: bool) -> Option<usize> {
    let len = OVERHEAD + payload_len;
    let total_len = u16::try_from(len - ETH_LEN).ok()?;
    let udp_len = total_len - IPV4_LEN as u16;
    let (headers, payload) = frame.get_mut(..len)?.split_first_chunk_mut::<OVERHEAD>()?;
    headers[0..6].copy_from_slice(&to.dst_mac);
    headers[6..12].copy_from_slice(&to.src_mac);
    headers[12..14].copy_from_slice(&ETHERTYPE_IPV4.to_be_bytes());
    let ip = &mut headers[ETH_LEN..ETH_LEN + IPV4_LEN];
    // No identification and "do not fragment": an oversized packet must fail, not fall apart.
    ip.fill(0);
    (ip[0], ip[1], ip[6], ip[8], ip[9]) = (0x45, to.dscp_ecn, 0x40, 64, PROTOCOL_UDP);
    ip[2..4].copy_from_slice(&total_len.to_be_bytes());
    ip[12..16].copy_from_slice(&to.src_ip.to_be_bytes());
    ip[16..20].copy_from_slice(&to.dst_ip.to_be_bytes());
    let ip_checksum = !checksum::fold(checksum::add(0, ip));
    ip[10..12].copy_from_slice(&ip_checksum.to_ne_bytes());
    let udp = &mut headers[ETH_LEN + IPV4_LEN..];
    udp[0..2].copy_from_slice(&to.src_port.to_be_bytes());
    udp[2..4].copy_from_slice(&to.dst_port.to_be_bytes());
    udp[4..6].copy_from_slice(&udp_len.to_be_bytes());
    udp[6..8].copy_from_slice(&[0, 0]);
    if checksum {
        let sum = checksum::pseudo_header(to.src_ip, to.dst_ip, udp_len);
        let sum = checksum::add(checksum::add(sum, udp), payload);
        udp[6..8].copy_from_slice(&checksum::finish_udp(sum).to_ne_bytes());
    }
    Some(len)
}

/// Puts an 802.1Q tag into a frame that [`emit`] has written [`VLAN_LEN`] bytes behind the start of `bytes`.
/// The tagged frame begins at the start, and is as much longer. Returns `None`, and changes nothing, when
/// `bytes` has no such frame.
pub fn tag(bytes: &mut [u8], vlan: u16) -> Option<()> {
    const ADDRESSES: usize = 12;
    let head = bytes.first_chunk_mut::<{ ADDRESSES + VLAN_LEN }>()?;
    head.copy_within(VLAN_LEN.., 0);
    head[ADDRESSES..ADDRESSES + 2].copy_from_slice(&ETHERTYPE_VLAN.to_be_bytes());
    head[ADDRESSES + 2..].copy_from_slice(&vlan.to_be_bytes());
    Some(())
}

/// Whether the UDP checksum of a parsed frame is there and right.
pub fn has_valid_checksum(bytes: &[u8], frame: &Frame) -> bool {
    let Some(udp) = bytes.get(frame.l4()..frame.l4() + frame.udp_len as usize) else {
        return false;
    };
    let sum = checksum::pseudo_header(frame.src_ip, frame.dst_ip, frame.udp_len);
    udp[6..8] != [0, 0] && checksum::is_intact(checksum::add(sum, udp))
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use crate::header::VERSION;
    use std::{vec, vec::Vec};

    const PORTS: Ports = Ports { base: 48700, shards: 4 };

    fn example(payload_len: usize, dst_port: u16) -> Vec<u8> {
        let mut bytes = vec![0xa5; OVERHEAD + payload_len];
        let to = Endpoints {
            src_mac: [2, 0, 0, 0, 0, 1],
            dst_mac: [2, 0, 0, 0, 0, 2],
            src_ip: 0x0a4d_0102,
            dst_ip: 0x0a4d_0101,
            src_port: 50000,
            dst_port,
            dscp_ecn: 0x2e << 2,
        };
        assert_eq!(emit(&mut bytes, &to, payload_len, true), Some(bytes.len()));
        bytes
    }

    fn tagged(mut bytes: Vec<u8>) -> Vec<u8> {
        bytes.splice(12..12, [0x81, 0x00, 0x00, 0x07]);
        bytes
    }

    #[test]
    fn a_tag_is_put_into_a_frame_behind_room_for_it() {
        let plain = example(64, 48700);
        let mut bytes = [&[0xa5; VLAN_LEN][..], &plain].concat();
        assert_eq!(tag(&mut bytes, 7), Some(()));
        assert_eq!(bytes, tagged(plain));
        assert_eq!(tag(&mut [0; 15], 7), None);
    }

    #[test]
    fn what_is_emitted_is_parsed() {
        for is_tagged in [false, true] {
            let plain = example(64, 48703);
            let bytes = if is_tagged { tagged(plain) } else { plain };
            let Parsed::Ours(frame) = parse(&bytes[..], PORTS) else { panic!("tagged: {is_tagged}") };
            assert_eq!((frame.tagged, frame.src_ip, frame.dst_ip), (is_tagged, 0x0a4d_0102, 0x0a4d_0101));
            assert_eq!((frame.src_port, frame.dst_port, frame.dscp_ecn), (50000, 48703, 0xb8));
            assert_eq!((frame.payload_len(), bytes.len() - frame.payload()), (64, 64));
            assert!(has_valid_checksum(&bytes, &frame));
            let l3 = &bytes[frame.l3()..frame.l4()];
            assert!(checksum::is_intact(checksum::add(0, l3)), "IPv4 checksum");
        }
    }

    #[test]
    fn frames_cut_short_are_foreign_until_their_port_and_refused_from_there() {
        for bytes in [example(64, 48700), tagged(example(64, 48700))] {
            let port_ends = bytes.len() - 64 - UDP_LEN + 4;
            for cut in 0..bytes.len() {
                let expected = if cut < port_ends { Parsed::Foreign } else { Parsed::Bad(Reason::Truncated) };
                assert_eq!(parse(&bytes[..cut], PORTS), expected, "cut at {cut} of {}", bytes.len());
            }
        }
    }

    #[test]
    fn verdicts() {
        type Change = fn(&mut Vec<u8>);
        let table: [(&str, Change, Parsed); 10] = [
            ("ARP", |b| b[13] = 0x06, Parsed::Foreign),
            ("IPv6", |b| b[12..14].copy_from_slice(&[0x86, 0xdd]), Parsed::Foreign),
            ("IPv4 options", |b| b[14] = 0x46, Parsed::Foreign),
            ("TCP", |b| b[23] = 6, Parsed::Foreign),
            ("a later fragment", |b| b[21] = 1, Parsed::Foreign),
            ("port below", |b| b[36..38].copy_from_slice(&48699u16.to_be_bytes()), Parsed::Foreign),
            ("port above", |b| b[36..38].copy_from_slice(&48704u16.to_be_bytes()), Parsed::Foreign),
            ("a first fragment", |b| b[20] |= 0x20, Parsed::Bad(Reason::Fragment)),
            ("UDP length", |b| b[39] ^= 1, Parsed::Bad(Reason::BadLength)),
            ("IPv4 length", |b| b[17] ^= 1, Parsed::Bad(Reason::BadLength)),
        ];
        for (what, change, expected) in table {
            let mut bytes = example(64, 48700);
            change(&mut bytes);
            assert_eq!(parse(&bytes[..], PORTS), expected, "{what}");
        }
        let short = [
            (VERSION, Reason::BadLength),
            (VERSION - 1, Reason::BadVersion),
            (VERSION + 1, Reason::BadVersion),
        ];
        for (version, reason) in short {
            let mut bytes = example(HEADER_LEN - 8, 48700);
            bytes[OVERHEAD] = version << 4 | 3;
            assert_eq!(
                parse(&bytes[..], PORTS),
                Parsed::Bad(reason),
                "version {version}, shorter than a header"
            );
        }
        assert_eq!(parse(&example(0, 48700)[..], PORTS), Parsed::Bad(Reason::BadLength), "no payload");
        let mut padded = example(64, 48700);
        padded.extend([0; 10]);
        assert!(matches!(parse(&padded[..], PORTS), Parsed::Ours(frame) if frame.payload_len() == 64));
    }

    #[test]
    fn a_changed_byte_fails_the_checksum() {
        let bytes = example(64, 48700);
        let Parsed::Ours(frame) = parse(&bytes[..], PORTS) else { panic!("not ours") };
        for at in (frame.l3() + 12)..bytes.len() {
            let mut bad = bytes.clone();
            bad[at] ^= 0x10;
            if let Parsed::Ours(frame) = parse(&bad[..], PORTS) {
                assert!(!has_valid_checksum(&bad, &frame), "byte {at}");
            }
        }
        let mut none = bytes;
        none[40..42].copy_from_slice(&[0, 0]);
        assert!(!has_valid_checksum(&none, &frame), "none");
    }

    #[test]
    fn emit_refuses_what_does_not_fit() {
        let to = Endpoints {
            src_mac: [0; 6],
            dst_mac: [0; 6],
            src_ip: 0,
            dst_ip: 0,
            src_port: 0,
            dst_port: 0,
            dscp_ecn: 0,
        };
        assert_eq!(emit(&mut [0; 100], &to, 59, true), None);
        assert_eq!(emit(&mut vec![0; 70_000], &to, 65_600, true), None);
    }
}
