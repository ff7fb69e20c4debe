//! Turns a frame, in place, into the answer to it. Tag and payload stay where they are.

use sumac_wire::{
    Header, Kind, Reason, checksum,
    frame::{Frame, IPV4_LEN, UDP_LEN},
    header::{HEADER_LEN, VERSION, flag, offset},
    tables::{JobEntry, WorkerEntry},
    tos,
};

use crate::{packet::Headers, work::Work};

/// The addresses of an answer, in host order.
#[derive(Clone, Copy)]
pub struct Addresses {
    pub src_ip: u32,
    pub dst_ip: u32,
    pub src_port: u16,
    pub dst_port: u16,
}

impl Addresses {
    /// To a worker, or a parent, from the aggregator's address on its side.
    #[inline(always)]
    pub fn to(worker: &WorkerEntry, base_port: u16, shard: u16) -> Addresses {
        Addresses {
            src_ip: worker.aggregator_ip,
            dst_ip: worker.ip,
            src_port: base_port.wrapping_add(shard),
            dst_port: worker.port.wrapping_add(shard),
        }
    }
}

/// Offsets from the IPv4 header.
const DSCP_ECN: usize = 1;
const TOTAL_LENGTH: usize = 2;
const TTL: usize = 8;
const IP_CHECKSUM: usize = 10;
const SRC_IP: usize = 12;
const DST_IP: usize = 16;
const SRC_PORT: usize = Headers::UDP;
const DST_PORT: usize = Headers::UDP + 2;
const UDP_LENGTH: usize = Headers::UDP + 4;
const UDP_CHECKSUM: usize = Headers::UDP + 6;

const IP_WORDS: usize = IPV4_LEN / 4;
const UDP_WORDS: usize = UDP_LEN / 4;
const SUMAC_WORDS: usize = HEADER_LEN / 4;

const HOPS: u8 = 64;

/// Notes the checksum's sum over what is in front of the payload.
#[inline(always)]
pub fn sum_headers(headers: Headers, frame: &Frame, work: &mut Work) -> Result<(), Reason> {
    let sum = headers_sum(headers);
    if sum.is_none() && work.is_checked != 0 {
        return Err(Reason::BadChecksum);
    }
    let pseudo_header = checksum::pseudo_header(frame.src_ip, frame.dst_ip, frame.udp_len);
    work.headers_sum = sum.unwrap_or(0) + pseudo_header;
    Ok(())
}

/// The checksum's sum over UDP header and Sumac header, of a frame that has a checksum.
#[inline(always)]
fn headers_sum(headers: Headers) -> Option<u64> {
    if headers.get::<u16>(UDP_CHECKSUM) == 0 {
        return None;
    }
    Some(headers.sum(Headers::UDP, UDP_WORDS + SUMAC_WORDS))
}

/// Writes the fields of `header` in which any answer differs from its request.
#[inline(always)]
pub fn write_header(headers: Headers, header: &Header) {
    const AT: usize = Headers::SUMAC;
    set_kind(headers, header.kind);
    headers.set(AT + offset::FLAGS, header.flags.to_be());
    headers.set(AT + offset::FAN_IN_0, header.fan_in_0);
    headers.set(AT + offset::FAN_IN_1, header.fan_in_1);
    headers.set(AT + offset::BITMAP_0, header.bitmap_0.to_be());
    headers.set(AT + offset::BITMAP_1, header.bitmap_1.to_be());
    headers.set(AT + offset::CONTRIBUTORS, header.contributors.to_be());
    headers.set(AT + offset::EXPONENT, header.exponent);
    headers.set(AT + offset::NEXT_EXPONENT, header.next_exponent);
    headers.set(AT + offset::TENSOR, header.tensor.to_be());
    headers.set(AT + offset::NEXT_SEQ, header.next_seq.to_be());
    headers.set(AT + offset::TOKEN, header.token.to_be());
}

/// Takes the mark off a frame that is about to be addressed: ECT(0) (RFC 3168). One that is not ECN-capable
/// stays so: its sender does not react to marks.
#[inline(always)]
pub fn unmark(headers: Headers) {
    headers.set(DSCP_ECN, tos::unmarked(headers.get::<u8>(DSCP_ECN)));
}

#[inline(always)]
pub fn change_flags(headers: Headers, set: u16, clear: u16) {
    const AT: usize = Headers::SUMAC + offset::FLAGS;
    let flags = u16::from_be(headers.get(AT));
    headers.set(AT, (flags & !clear | set).to_be());
}

/// Makes a contribution without values one of `elements` zeros, which follow the headers already. The
/// checksum is adjusted.
#[inline(always)]
pub fn fill_with_zeros(headers: Headers, elements: u16) {
    let before = header_sum(headers, |word| !word);
    headers.set(Headers::SUMAC + offset::ELEMENTS, elements.to_be());
    change_flags(headers, 0, flag::EMPTY);
    let udp_len = (UDP_LEN + HEADER_LEN) as u16 + elements * size_of::<u32>() as u16;
    // Once in the header, and once in the pseudo header.
    let change = 2 * (u64::from(!headers.get::<u16>(UDP_LENGTH)) + u64::from(udp_len.to_be()));
    adjust_checksum(headers, before + header_sum(headers, |word| word) + change);
    headers.set(UDP_LENGTH, udp_len.to_be());
    headers.set(TOTAL_LENGTH, (IPV4_LEN as u16 + udp_len).to_be());
    write_ip_checksum(headers);
}

#[inline(always)]
pub fn make_report(headers: Headers, job: &JobEntry) {
    set_kind(headers, Kind::Report as u8);
    headers.set(Headers::SUMAC + offset::TOKEN, job.result_token.to_be());
}

/// Makes a worker's packet the report that its job is not here any more ([`sumac_wire::admit::unknown_job`]).
/// The checksum is adjusted.
#[inline(always)]
pub fn make_unknown_job(headers: Headers, job: &JobEntry, to: Addresses) {
    let before = header_sum(headers, |word| !word);
    make_report(headers, job);
    change_flags(headers, flag::UNKNOWN_JOB, !flag::LEVEL);
    adjust_checksum(headers, before + header_sum(headers, |word| word));
    headers.set(DSCP_ECN, headers.get::<u8>(DSCP_ECN) & !tos::ECN_MASK);
    readdress(headers, to);
}

/// The sum over the Sumac header's words, or over their complements.
#[inline(always)]
pub fn header_sum(headers: Headers, form: fn(u32) -> u32) -> u64 {
    (0..SUMAC_WORDS).map(|word| u64::from(form(headers.get(Headers::SUMAC + 4 * word)))).sum()
}

#[inline(always)]
pub fn set_kind(headers: Headers, kind: u8) {
    headers.set(Headers::SUMAC + offset::VERSION_KIND, VERSION << 4 | kind);
}

#[inline(always)]
pub fn address(headers: Headers, to: Addresses, work: &Work) {
    set_addresses(headers, to);
    headers.set(UDP_CHECKSUM, 0u16);
    if work.is_checked != 0 {
        let udp_len = u16::from_be(headers.get(UDP_LENGTH));
        let sum = checksum::pseudo_header(to.src_ip, to.dst_ip, udp_len);
        let sum = sum + headers.sum(Headers::UDP, UDP_WORDS + SUMAC_WORDS) + work.payload_sum;
        headers.set(UDP_CHECKSUM, checksum::finish_udp(sum));
    }
}

/// Writes other addresses into a frame that [`address`] finished; its checksum is adjusted without
/// another pass over the payload (RFC 1624, equation 3).
#[inline(always)]
pub fn readdress(headers: Headers, to: Addresses) {
    let before = addresses_sum(headers, |word| !word);
    set_addresses(headers, to);
    adjust_checksum(headers, before + addresses_sum(headers, |word| word));
}

/// Adjusts the UDP checksum, if there is one, by the sum of the new words and the old ones' complements.
#[inline(always)]
pub fn adjust_checksum(headers: Headers, change: u64) {
    let old = headers.get::<u16>(UDP_CHECKSUM);
    if old != 0 {
        headers.set(UDP_CHECKSUM, checksum::finish_udp(u64::from(!old) + change));
    }
}

#[inline(always)]
fn addresses_sum(headers: Headers, form: impl Fn(u32) -> u32) -> u64 {
    [SRC_IP, DST_IP, SRC_PORT].into_iter().map(|at| u64::from(form(headers.get(at)))).sum()
}

#[inline(always)]
fn set_addresses(headers: Headers, to: Addresses) {
    headers.set(TTL, HOPS);
    headers.set(SRC_IP, to.src_ip.to_be());
    headers.set(DST_IP, to.dst_ip.to_be());
    headers.set(SRC_PORT, to.src_port.to_be());
    headers.set(DST_PORT, to.dst_port.to_be());
    write_ip_checksum(headers);
}

#[inline(always)]
fn write_ip_checksum(headers: Headers) {
    headers.set(IP_CHECKSUM, 0u16);
    headers.set(IP_CHECKSUM, !checksum::fold(headers.sum(0, IP_WORDS)));
}

/// The MAC address of an IPv4 multicast group (RFC 1112, 6.4).
#[inline(always)]
pub fn group_mac(ip: u32) -> [u8; 6] {
    let [_, b, c, d] = ip.to_be_bytes();
    [0x01, 0x00, 0x5e, b & 0x7f, c, d]
}
