//! Common parts of the host program's tests.
#![allow(dead_code, reason = "each test uses a part of it")]

pub mod net;

use sumac_wire::{
    Header, Kind,
    header::{ELEMENT_LEN, HEADER_LEN},
    tables::HostJobEntry,
};

/// The aggregator's and the host's address in every packet of these tests.
pub const AGGREGATOR: u32 = 0x0a4d_0001;
pub const HOST: u32 = 0x0a4d_0002;
pub const PORT: u16 = 48700;

/// The job of these tests, numbered [`JOB`].
pub const JOB: u16 = 3;
pub const ENTRY: HostJobEntry = HostJobEntry {
    token: 0x0123_4567_89ab_cdef,
    result_token: 0x7654_3210_fedc_ba98,
    ip: HOST,
    group_ip: 0,
    aggregator_ip: AGGREGATOR,
    epoch: 7,
    elements: 256,
    world: 4,
    flags: sumac_wire::tables::job_flag::ACTIVE | sumac_wire::tables::job_flag::CHECKSUM,
    host_ips: [0; sumac_wire::MAX_HOSTS],
    reserved: 0,
};

/// The header of a valid result of the job.
pub fn header(elements: u16) -> Header {
    Header {
        kind: Kind::Result as u8,
        job: JOB,
        epoch: ENTRY.epoch,
        fan_in_0: 4,
        bitmap_0: 0b1111,
        contributors: 4,
        elements,
        token: ENTRY.result_token,
        ..Header::default()
    }
}

/// The UDP payload with that header.
pub fn payload(header: &Header) -> Vec<u8> {
    let elements = (0..u32::from(header.elements)).flat_map(|n| n.wrapping_mul(0x9e37_79b9).to_be_bytes());
    let bytes: Vec<u8> = header.to_bytes().into_iter().chain(elements).collect();
    assert_eq!(bytes.len(), HEADER_LEN + usize::from(header.elements) * ELEMENT_LEN);
    bytes
}
