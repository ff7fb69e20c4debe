//! Measures the program through the kernel's test run: no interface, no attachment, one CPU.

use aya::{
    Ebpf, TestRun as _, TestRunOptions,
    maps::Array,
    programs::{ProgramError, Xdp},
};
use serde::Serialize;
use sumac_wire::{
    DEFAULT_BASE_PORT, Header, Kind, MAX_ELEMENTS, PAGE_ELEMENTS,
    frame::{self, Endpoints, OVERHEAD},
    header::{ELEMENT_LEN, HEADER_LEN},
    tables::{HostConfig, HostJobEntry, job_flag},
};
use thiserror::Error;

use crate::program::{self, LoadError, Variant};

const JOB: u16 = 1;
const AGGREGATOR: u32 = 0x0a4d_0001;

/// What one kind of frame costs.
#[derive(Clone, Debug, Serialize)]
pub struct Measurement {
    /// What was shown to the program.
    pub frame: &'static str,
    /// Elements in the frame.
    pub elements: u16,
    /// Bytes of the frame.
    pub bytes: usize,
    /// The kernel's mean over all repetitions, with the cost of an empty program in it, in nanoseconds.
    pub ns_per_frame: u64,
}

/// Why nothing was measured.
#[derive(Debug, Error)]
pub enum MeasureError {
    /// Loading.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The tables.
    #[error("could not prepare the host program's tables: {0}")]
    Map(#[from] aya::maps::MapError),
    /// Running.
    #[error("the kernel did not run the host program: {0}")]
    Run(#[from] ProgramError),
    /// The frame.
    #[error("a frame of {0} elements cannot be; at most {MAX_ELEMENTS}")]
    TooLong(u16),
    /// The verdict.
    #[error(
        "the host program gave verdict {verdict} to {frame} of {elements} elements, which says that it was refused"
    )]
    Refused {
        /// The kind of frame.
        frame: &'static str,
        /// Its elements.
        elements: u16,
        /// An `xdp_action`.
        verdict: u32,
    },
}

/// Measures a foreign frame, and results with and without checksum of each length.
///
/// The results find no socket (the test run delivers nothing); the helper that looks for one is called all the same.
///
/// # Errors
/// When the program does not load or a length is impossible.
pub fn measure(lengths: &[u16], repeat: u32) -> Result<Vec<Measurement>, MeasureError> {
    let largest = lengths.iter().copied().max().unwrap_or(0);
    let variant = if usize::from(largest) > PAGE_ELEMENTS { Variant::Jumbo } else { Variant::Plain };
    let mut ebpf = program::load(variant)?;
    let config = HostConfig { base_port: DEFAULT_BASE_PORT, shards: 1, ..HostConfig::default() };
    let bytes: [u8; size_of::<HostConfig>()] = zerocopy::transmute!(config);
    let mut map: Array<_, [u8; size_of::<HostConfig>()]> =
        ebpf.map_mut("CONFIG").ok_or(LoadError::Missing)?.try_into()?;
    map.set(0, bytes, 0)?;

    let mut measured =
        vec![run(program::xdp(&mut ebpf, variant)?, "foreign", 64, DEFAULT_BASE_PORT - 1, repeat)?];
    for (frame, flags) in [("result", 0), ("result with checksum", job_flag::CHECKSUM)] {
        set_job(&mut ebpf, flags)?;
        for elements in lengths {
            measured.push(run(
                program::xdp(&mut ebpf, variant)?,
                frame,
                *elements,
                DEFAULT_BASE_PORT,
                repeat,
            )?);
        }
    }
    Ok(measured)
}

fn set_job(ebpf: &mut Ebpf, flags: u16) -> Result<(), MeasureError> {
    let entry = HostJobEntry {
        aggregator_ip: AGGREGATOR,
        elements: MAX_ELEMENTS as u16,
        world: 4,
        flags: flags | job_flag::ACTIVE,
        ..HostJobEntry::default()
    };
    let bytes: [u8; size_of::<HostJobEntry>()] = zerocopy::transmute!(entry);
    let mut jobs: Array<_, [u8; size_of::<HostJobEntry>()]> =
        ebpf.map_mut("JOBS").ok_or(LoadError::Missing)?.try_into()?;
    Ok(jobs.set(u32::from(JOB), bytes, 0)?)
}

fn run(
    program: &mut Xdp,
    frame: &'static str,
    elements: u16,
    port: u16,
    repeat: u32,
) -> Result<Measurement, MeasureError> {
    const XDP_PASS: u32 = 2;
    let bytes = result(elements, port).ok_or(MeasureError::TooLong(elements))?;
    let options = TestRunOptions { data_in: Some(&bytes), repeat, ..TestRunOptions::new() };
    let result = program.test_run(options)?;
    if result.return_value != XDP_PASS {
        return Err(MeasureError::Refused { frame, elements, verdict: result.return_value });
    }
    let ns_per_frame = result.duration.as_nanos() as u64;
    Ok(Measurement { frame, elements, bytes: bytes.len(), ns_per_frame })
}

/// A valid result; `None` when no packet holds that many elements.
fn result(elements: u16, port: u16) -> Option<Vec<u8>> {
    if usize::from(elements) > MAX_ELEMENTS {
        return None;
    }
    let header = Header { kind: Kind::Result as u8, job: JOB, elements, ..Header::default() };
    let payload_len = HEADER_LEN + usize::from(elements) * ELEMENT_LEN;
    let mut bytes = vec![0x5a; OVERHEAD + payload_len];
    bytes[OVERHEAD..OVERHEAD + HEADER_LEN].copy_from_slice(&header.to_bytes());
    let to = Endpoints {
        src_mac: [2, 0, 0, 0, 0, 1],
        dst_mac: [2, 0, 0, 0, 0, 2],
        src_ip: AGGREGATOR,
        dst_ip: AGGREGATOR + 1,
        src_port: 50_000,
        dst_port: port,
        dscp_ecn: 0,
    };
    frame::emit(&mut bytes, &to, payload_len, true).map(|_| bytes)
}
