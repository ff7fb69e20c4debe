//! Builds contributions and parses replies.

use sumac_agg_job::NewJob;
use sumac_wire::{
    DEFAULT_BASE_PORT, Header, Kind,
    bytes::Bytes,
    checksum,
    frame::{self, Endpoints, Frame, OVERHEAD, Parsed, Ports},
    header::{HEADER_LEN, flag},
    tables::job_flag,
};

use super::AGGREGATOR_MAC;

/// Returns the value that `rank` contributes to element `i` of chunk `seq`. Sums of 32 stay within an i32,
/// and each bit of the value depends on all three.
pub fn value(rank: usize, seq: u32, i: usize) -> i32 {
    let mixed = (rank as u32 + 1).wrapping_mul(0x9e37_79b9)
        ^ seq.wrapping_mul(0x85eb_ca6b)
        ^ (i as u32).wrapping_mul(0xc2b2_ae35);
    (mixed ^ mixed >> 15) as i32 >> 5
}

/// Returns the sum of `ranks` for chunk `seq`.
pub fn sum(ranks: impl IntoIterator<Item = usize> + Clone, seq: u32, elements: usize) -> Vec<i32> {
    (0..elements).map(|i| ranks.clone().into_iter().map(|rank| value(rank, seq, i)).sum()).collect()
}

/// Returns the header of `rank`'s contribution to chunk `seq`.
pub fn header(job: &NewJob, rank: usize, seq: u32, elements: u16) -> Header {
    Header {
        kind: Kind::Contribution as u8,
        flags: if seq & job.entry.slots != 0 { flag::POOL_VERSION } else { 0 },
        job: job.job,
        epoch: job.entry.epoch,
        seq,
        received: seq,
        slot: seq % job.entry.slots,
        fan_in_0: job.workers.len() as u8,
        elements,
        bitmap_0: 1 << rank,
        tensor: 7,
        offset: seq.wrapping_mul(u32::from(elements)),
        timestamp: 1000 + rank as u32,
        token: job.entry.token,
        ..Header::default()
    }
}

/// Returns the frame of `rank`'s contribution to chunk `seq`.
pub fn contribution(job: &NewJob, rank: usize, seq: u32, elements: u16) -> Vec<u8> {
    frame_of(job, rank, &header(job, rank, seq, elements))
}

/// Returns a frame from `rank` with this header and its chunk's elements.
pub fn frame_of(job: &NewJob, rank: usize, header: &Header) -> Vec<u8> {
    let mut payload = header.to_bytes().to_vec();
    payload.extend((0..usize::from(header.elements)).flat_map(|i| value(rank, header.seq, i).to_be_bytes()));
    let mut frame = emit(job, rank, &payload);
    let shard = header.slot / job.entry.lane_slots() % u32::from(job.entry.shards);
    move_to_port(&mut frame, DEFAULT_BASE_PORT + shard as u16);
    frame
}

/// Sends an untagged frame to another UDP port.
pub fn move_to_port(frame: &mut [u8], port: u16) {
    let parsed = frame::parse(&*frame, Ports { base: frame.be16(36).unwrap(), shards: 1 });
    let Parsed::Ours(parsed) = parsed else { panic!("{parsed:?}") };
    frame[36..38].copy_from_slice(&port.to_be_bytes());
    if frame[40..42] != [0, 0] {
        frame[40..42].fill(0);
        let sum = checksum::pseudo_header(parsed.src_ip, parsed.dst_ip, parsed.udp_len);
        let sum = checksum::add(sum, &frame[34..34 + usize::from(parsed.udp_len)]);
        frame[40..42].copy_from_slice(&checksum::finish_udp(sum).to_ne_bytes());
    }
}

/// Returns a frame from `rank` with this UDP payload.
pub fn emit(job: &NewJob, rank: usize, payload: &[u8]) -> Vec<u8> {
    let worker = &job.workers[rank];
    let to = Endpoints {
        src_mac: worker.mac,
        dst_mac: AGGREGATOR_MAC,
        src_ip: worker.ip,
        dst_ip: worker.aggregator_ip,
        src_port: 50_000 + rank as u16,
        dst_port: DEFAULT_BASE_PORT,
        dscp_ecn: 0x28,
    };
    let mut bytes = vec![0; OVERHEAD];
    bytes.extend(payload);
    frame::emit(&mut bytes, &to, payload.len(), job.entry.flags & job_flag::CHECKSUM != 0).unwrap();
    bytes
}

/// Puts an 802.1Q tag into a frame.
pub fn tag(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.splice(12..12, [0x81, 0x00, 0x00, 0x07]);
    bytes
}

/// A parsed reply with correct checksums.
pub struct Answer {
    pub macs: [[u8; 6]; 2],
    pub frame: Frame,
    pub header: Header,
    pub values: Vec<i32>,
}

/// Parses a reply, and checks the checksums of IPv4 and UDP.
pub fn answer(bytes: &[u8]) -> Answer {
    // A reply goes to any port of a worker, which `parse` needs.
    let l3 = if bytes.be16(12) == Some(0x8100) { 18 } else { 14 };
    let base = bytes.be16(l3 + 22).unwrap();
    let Parsed::Ours(frame) = frame::parse(bytes, Ports { base, shards: 1 }) else {
        panic!("the answer does not parse: {bytes:02x?}")
    };
    assert!(
        sumac_wire::checksum::is_intact(sumac_wire::checksum::add(0, &bytes[l3..l3 + 20])),
        "IPv4 checksum"
    );
    if bytes.be16(frame.l4() + 6) != Some(0) {
        assert!(frame::has_valid_checksum(bytes, &frame), "UDP checksum");
    }
    let header = Header::read(bytes, frame.payload(), frame.payload_len()).unwrap();
    let elements = &bytes[frame.payload() + HEADER_LEN..][..usize::from(header.elements) * 4];
    let values = elements.as_chunks::<4>().0.iter().map(|chunk| i32::from_be_bytes(*chunk)).collect();
    let mac = |at: usize| bytes[at..at + 6].try_into().unwrap();
    Answer { macs: [mac(0), mac(6)], frame, header, values }
}
