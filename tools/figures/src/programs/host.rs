//! Nanoseconds per frame of the host program, by the kernel's test run.

use std::process::ExitCode;

use aya::{Ebpf, programs::ProgramError};
use clap::Args;
use serde::Serialize;
use sumac_hostprog::{pins, program};
use sumac_loader::{
    LoadError, Variant,
    map::{self, TableError},
};
use sumac_wire::{
    DEFAULT_BASE_PORT, Header, Kind, MAX_ELEMENTS, PAGE_ELEMENTS,
    frame::{self, Endpoints, OVERHEAD},
    header::{ELEMENT_LEN, HEADER_LEN},
    tables::{HostConfig, HostJobEntry, job_flag},
};
use thiserror::Error;

use super::{
    table::print,
    test_run::{TestRun, XDP_PASS},
};

const JOB: u16 = 1;
const AGGREGATOR: u32 = 0x0a4d_0001;

#[derive(Clone, Debug, Serialize)]
pub struct Measurement {
    pub frame: &'static str,
    pub elements: u16,
    pub bytes: usize,
    pub ns_per_frame: u64,
}

#[derive(Debug, Error)]
enum MeasureError {
    #[error(transparent)]
    Load(#[from] LoadError),
    #[error(transparent)]
    Table(#[from] TableError),
    #[error("the kernel did not run the host program: {0}")]
    Run(#[from] ProgramError),
    #[error("no frame has {0} elements; at most {MAX_ELEMENTS}")]
    TooLong(u16),
    #[error(
        "the host program's verdict on {frame} of {elements} elements was {verdict}: the frame was refused"
    )]
    Refused { frame: &'static str, elements: u16, verdict: u32 },
}

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  sumac-figures host-program --elements 64,256,360 --json")]
pub struct HostProgram {
    /// Elements in a frame, as a list
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "64,256,360")]
    elements: Vec<u16>,
    /// Frames in each run
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    repeat: u32,
    /// Print one JSON array
    #[arg(long)]
    json: bool,
}

impl HostProgram {
    pub fn run(&self) -> anyhow::Result<ExitCode> {
        let measured = measure(&self.elements, self.repeat)?;
        let row = |it: &Measurement| {
            format!("{:<24}{:>10}{:>10}{:>12}", it.frame, it.elements, it.bytes, it.ns_per_frame)
        };
        print(
            &measured,
            self.json,
            &format!("{:<24}{:>10}{:>10}{:>12}", "frame", "elements", "bytes", "ns/frame"),
            row,
        )
    }
}

/// Measures a foreign frame, and results of each length with and without checksum.
///
/// A test run delivers nothing, so there is no socket for the results; the look-up of one is measured all the
/// same.
fn measure(lengths: &[u16], repeat: u32) -> Result<Vec<Measurement>, MeasureError> {
    let largest = lengths.iter().copied().max().unwrap_or(0);
    let variant = if usize::from(largest) > PAGE_ELEMENTS { Variant::Jumbo } else { Variant::Plain };
    let mut ebpf = program::load(variant)?;
    let config = HostConfig { base_port: DEFAULT_BASE_PORT, shards: 1, ..HostConfig::default() };
    map::write::<_, { size_of::<HostConfig>() }>(&mut ebpf, pins::CONFIG.0, 0, &config)?;

    let run = |ebpf: &mut Ebpf, frame, elements: u16, port| {
        let bytes = result(elements, port).ok_or(MeasureError::TooLong(elements))?;
        let run = TestRun::of(program::xdp(ebpf, variant)?, &bytes, repeat)?;
        match run.verdict {
            XDP_PASS => {
                Ok(Measurement { frame, elements, bytes: bytes.len(), ns_per_frame: run.ns_per_frame })
            }
            verdict => Err(MeasureError::Refused { frame, elements, verdict }),
        }
    };
    let mut measured = vec![run(&mut ebpf, "foreign", 64, DEFAULT_BASE_PORT - 1)?];
    for (frame, flags) in [("result", 0), ("result with checksum", job_flag::CHECKSUM)] {
        set_job(&mut ebpf, flags)?;
        for elements in lengths {
            measured.push(run(&mut ebpf, frame, *elements, DEFAULT_BASE_PORT)?);
        }
    }
    Ok(measured)
}

fn set_job(ebpf: &mut Ebpf, flags: u16) -> Result<(), TableError> {
    let entry = HostJobEntry {
        ip: AGGREGATOR + 1,
        aggregator_ip: AGGREGATOR,
        elements: MAX_ELEMENTS as u16,
        world: 4,
        flags: flags | job_flag::ACTIVE,
        ..HostJobEntry::default()
    };
    map::write::<_, { size_of::<HostJobEntry>() }>(ebpf, pins::JOBS.0, JOB.into(), &entry)
}

/// Returns a valid result; `None` when no packet has that many elements.
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
