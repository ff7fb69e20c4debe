//! Frames, headers and the admission of packets, as all programs share them.

use sumac_fuzz::{Fields, edited};
use sumac_wire::{
    Header, admit, checksum,
    frame::{self, Endpoints, OVERHEAD, Parsed, Ports},
    header::HEADER_LEN,
    tables::{HostJobEntry, JobEntry, WorkerEntry},
};

use crate::{
    fuzz,
    support::{TOKEN, dynamic, frames, job_of},
};

const PORTS: Ports = Ports { base: 48700, shards: 2 };

/// Contributions of static and dynamic jobs, with and without a VLAN tag.
pub fn example_frames() -> Vec<Vec<u8>> {
    let (own, shared) = (job_of(3, 17), dynamic::dynamic_job(3, 17));
    let contribution = frames::contribution(&own, 1, 4, 17);
    let header = dynamic::header(&shared, 2, 1, 3);
    let tagged = frames::tag(contribution.clone());
    vec![contribution, dynamic::contribution(&shared, 2, &header), tagged]
}

fn admit_everywhere(header: &Header, numbers: &mut Fields<'_>) {
    let (flags, shards, world) = (numbers.word() as u16, numbers.below(9) as u16, numbers.below(33) as u16);
    let job = JobEntry {
        token: TOKEN,
        result_token: TOKEN,
        slot_base: numbers.word(),
        slots: numbers.below(1024),
        epoch: 3,
        world: world.clamp(1, 32),
        elements: 17,
        flags: flags | 1,
        shards: shards.clamp(1, 8),
        lane_slots_log2: numbers.below(8).min(31) as u16,
        racks: 2,
        hosts: 1,
        ..JobEntry::default()
    };
    let _ = admit::sender(header, &job);
    let _ = admit::source(numbers.word(), &WorkerEntry::default());
    let shard = numbers.below(8) as u16;
    let _ = admit::request(header, &job, shard);
    let _ = admit::dynamic::request(header, &job, shard);
    let host = HostJobEntry {
        token: TOKEN,
        result_token: TOKEN,
        ip: 1,
        aggregator_ip: 2,
        epoch: 3,
        elements: 17,
        world: 3,
        flags: flags | 1,
        ..HostJobEntry::default()
    };
    let _ = admit::answer(header, numbers.below(4), numbers.below(4), &host);
}

#[test]
fn parsing_a_frame() {
    let examples = example_frames();
    fuzz!(|input: &[u8]| {
        let frame = edited(&examples, input);
        let Parsed::Ours(parsed) = frame::parse(&frame[..], PORTS) else { return };
        let (start, len) = (parsed.payload(), parsed.payload_len());
        let payload = &frame[start..start + len];
        let _ = frame::has_valid_checksum(&frame, &parsed);
        let header = Header::read(&frame[..], start, len);
        assert_eq!(Header::read(payload, 0, len), header, "the same bytes at another offset");
        if let Ok(header) = header {
            let written = [&header.to_bytes(), &payload[HEADER_LEN..]].concat();
            assert_eq!(Header::read(&written[..], 0, len), Ok(header), "what is read is written");
            admit_everywhere(&header, &mut Fields(input));
        }
    });
}

#[test]
fn writing_a_frame() {
    fuzz!(|input: &[u8]| {
        let mut numbers = Fields(input);
        let to = Endpoints {
            src_mac: [2; 6],
            dst_mac: [4; 6],
            src_ip: numbers.word(),
            dst_ip: numbers.word(),
            src_port: numbers.word() as u16,
            dst_port: PORTS.base + (numbers.word() % 2) as u16,
            dscp_ecn: numbers.word() as u8,
        };
        let mut bytes = vec![0; OVERHEAD];
        bytes.extend_from_slice(numbers.0);
        let len = bytes.len() - OVERHEAD;
        let with_checksum = numbers.word() % 2 == 0;
        let Some(written) = frame::emit(&mut bytes, &to, len, with_checksum) else { return };
        assert_eq!(written, bytes.len());
        assert_eq!(checksum::fold(checksum::add(0, &bytes[14..34])), 0xffff, "the IPv4 header's checksum");
        match frame::parse(&bytes[..], PORTS) {
            Parsed::Ours(parsed) => {
                assert_eq!(frame::has_valid_checksum(&bytes, &parsed), with_checksum);
                assert_eq!((parsed.src_ip, parsed.dst_ip), (to.src_ip, to.dst_ip));
                assert_eq!((parsed.src_port, parsed.dst_port), (to.src_port, to.dst_port));
                assert_eq!((parsed.dscp_ecn, parsed.payload_len()), (to.dscp_ecn, len));
            }
            Parsed::Bad(_) => assert!(len < HEADER_LEN),
            Parsed::Foreign => panic!("a frame to our port is foreign"),
        }
    });
}
