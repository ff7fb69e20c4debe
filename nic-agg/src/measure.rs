//! Nanoseconds per frame of the aggregator's program, by the kernel's own test run.
//!
//! A test run repeats one frame, and a slot takes each contribution once. So a second program, built of the same
//! source, makes each repetition the next contribution of a job before it aggregates; what that costs is measured
//! by itself and taken off. Of a dynamic job the parameter host's results are played as well, one for each chunk.

use std::net::Ipv4Addr;

use aya::{
    Ebpf, TestRun as _, TestRunOptions,
    maps::{Array, MapError},
    programs::{ProgramError, Xdp},
};
use serde::Serialize;
use sumac_agg_layout::{Rehearsal, State, name};
use sumac_wire::{
    DEFAULT_BASE_PORT, Header, Kind, PAGE_ELEMENTS, Reason,
    admit::payload_len,
    frame::{self, Endpoints, OVERHEAD},
};
use thiserror::Error;

use crate::{
    job::{self, JobError, Level, NewDynamic, NewJob, NewWorker},
    program::{self, LoadError, Pools},
    tables::{TableError, Tables},
};

/// Slots of the job that is played.
const SLOTS: u32 = 64;
const FIRST_IP: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 10);
const AGGREGATOR_IP: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
const HOST_IP: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
const TOKEN: u64 = 0x5eed_f00d_cafe_1234;

/// What a frame costs in one job.
#[derive(Clone, Debug, Serialize)]
pub struct Measurement {
    /// Whether the job is dynamic: then results that came from a parameter host are among the frames.
    pub dynamic: bool,
    /// Workers of the job. With one, every frame is stored and completes; with 32, nearly every one is added.
    pub workers: u8,
    /// Elements in a frame.
    pub elements: u16,
    /// Bytes of a frame.
    pub bytes: usize,
    /// Whether UDP checksums were verified and computed.
    pub checksum: bool,
    /// Mean time of the aggregator's program, all checks included.
    pub ns_per_frame: u32,
    /// What playing the job cost besides, which is not in `ns_per_frame`.
    pub ns_rehearsal: u32,
}

/// Why nothing was measured.
#[derive(Debug, Error)]
pub enum MeasureError {
    /// Loading.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// A map.
    #[error(transparent)]
    Table(#[from] TableError),
    /// The job to be played.
    #[error(transparent)]
    Job(#[from] JobError),
    /// The map of what is played.
    #[error("writing map {map}: {0}", map = name::REHEARSAL)]
    Plan(#[from] MapError),
    /// The kernel does not run it.
    #[error("a test run of the aggregator's program: {0}")]
    Run(#[from] ProgramError),
    /// The run was not what it should be.
    #[error("of {turns} frames that were played, {taken} were taken: the numbers would mean nothing")]
    Refused {
        /// How many were played.
        turns: u64,
        /// How many the program took.
        taken: u64,
    },
}

/// Which jobs are played.
#[derive(Clone, Copy, Debug)]
pub struct Played {
    /// Whether they are dynamic.
    pub dynamic: bool,
    /// Whether UDP checksums are verified and computed.
    pub checksum: bool,
    /// Frames in each run.
    pub repeat: u32,
}

/// Plays jobs of `workers` with frames of `elements`.
///
/// # Errors
/// When the kernel does not load or run the programs, or the programs refuse a frame.
pub fn measure(workers: &[u8], elements: &[u16], played: Played) -> Result<Vec<Measurement>, MeasureError> {
    let mut measured = Vec::new();
    for elements in elements {
        for workers in workers {
            measured.push(one(*workers, *elements, played)?);
        }
    }
    Ok(measured)
}

fn one(workers: u8, elements: u16, played: Played) -> Result<Measurement, MeasureError> {
    let Played { dynamic, checksum, repeat } = played;
    let job = job_of(workers, elements, played);
    let dynamic_slots = if dynamic { SLOTS } else { 0 };
    let mut ebpf = program::load_rehearsal(Pools { slots: SLOTS, dynamic_slots, shards: 1 })?;
    let mut tables = Tables::take(&mut ebpf)?;
    tables.set_state(State {
        instance: 1,
        slots: SLOTS,
        elements: PAGE_ELEMENTS as u16,
        base_port: DEFAULT_BASE_PORT,
        shards: 1,
        flags: 0,
        own_ip: 0,
        dynamic_slots,
        slot_timeout: u32::MAX,
    })?;
    job::add(&mut tables, &job)?;
    let frame = first_frame(&job);
    let ns_rehearsal = run(&mut ebpf, &job, &frame, true, repeat)?;
    let gross = run(&mut ebpf, &job, &frame, false, repeat)?;
    let counters = tables.counters()?;
    let of =
        |wanted| counters.iter().filter(|(reason, _)| *reason == wanted).map(|(_, count)| count).sum::<u64>();
    let contributions =
        of(Reason::Added) + of(Reason::Completed) + of(Reason::Forwarded) + of(Reason::Passed);
    let taken = contributions + of(Reason::Concluded);
    // The kernel runs a program a few times more than it is told, to warm up.
    if taken < u64::from(repeat) {
        return Err(MeasureError::Refused { turns: u64::from(repeat), taken });
    }
    Ok(Measurement {
        dynamic,
        workers: job.workers.len() as u8,
        elements,
        bytes: frame.len(),
        checksum,
        ns_per_frame: gross.saturating_sub(ns_rehearsal),
        ns_rehearsal,
    })
}

fn run(ebpf: &mut Ebpf, job: &NewJob, frame: &[u8], dry: bool, repeat: u32) -> Result<u32, MeasureError> {
    let plan = Rehearsal {
        turn: 0,
        world: job.workers.len() as u32,
        slots: SLOTS,
        first_ip: FIRST_IP.to_bits(),
        aggregator_ip: AGGREGATOR_IP.to_bits(),
        host_ip: if job.dynamic.is_some() { HOST_IP.to_bits() } else { 0 },
        dry: u32::from(dry),
    };
    let map = ebpf.map_mut(name::REHEARSAL).ok_or(MapError::ElementNotFound)?;
    let bytes: [u8; size_of::<Rehearsal>()] = zerocopy::transmute!(plan);
    let mut map: Array<_, [u8; size_of::<Rehearsal>()]> = map.try_into()?;
    map.set(0, bytes, 0)?;
    let program: &mut Xdp = program::rehearsal(ebpf)?;
    let mut out = vec![0; frame.len() + 64];
    let options =
        TestRunOptions { data_in: Some(frame), data_out: Some(&mut out), repeat, ..TestRunOptions::new() };
    let result = program.test_run(options)?;
    Ok(u32::try_from(result.duration.as_nanos()).unwrap_or(u32::MAX))
}

fn job_of(workers: u8, elements: u16, played: Played) -> NewJob {
    let way = |ip: Ipv4Addr, number: u32| NewWorker {
        ip,
        port: DEFAULT_BASE_PORT,
        mac: [2, 0, 0, 0, 0, number as u8],
        ifindex: 1 + number,
        aggregator_ip: AGGREGATOR_IP,
        aggregator_mac: [2, 0, 0, 0, 1, 0],
    };
    let worker = |rank: u32| way(Ipv4Addr::from_bits(FIRST_IP.to_bits() + rank), rank);
    let dynamic = NewDynamic { slots: SLOTS, hosts: vec![way(HOST_IP, u32::from(workers))] };
    NewJob {
        job: 1,
        epoch: 1,
        token: TOKEN,
        dynamic: played.dynamic.then_some(dynamic),
        first_slot: None,
        slots: SLOTS,
        lane_slots: SLOTS,
        shards: 1,
        stealing: false,
        level: Level::Only,
        elements,
        checksum: played.checksum,
        group: None,
        workers: (0..u32::from(workers)).map(worker).collect(),
    }
}

fn first_frame(job: &NewJob) -> Vec<u8> {
    let header = Header {
        kind: Kind::Contribution as u8,
        job: job.job,
        epoch: job.epoch,
        fan_in_0: job.workers.len() as u8,
        elements: job.elements,
        bitmap_0: 1,
        token: job.token,
        ..Header::default()
    };
    let to = Endpoints {
        src_mac: job.workers[0].mac,
        dst_mac: job.workers[0].aggregator_mac,
        src_ip: job.workers[0].ip.to_bits(),
        dst_ip: AGGREGATOR_IP.to_bits(),
        src_port: DEFAULT_BASE_PORT,
        dst_port: DEFAULT_BASE_PORT,
        dscp_ecn: 0,
    };
    let len = payload_len(job.elements);
    let mut bytes = vec![0; OVERHEAD + len];
    bytes[OVERHEAD..][..header.to_bytes().len()].copy_from_slice(&header.to_bytes());
    // The elements stay zero: each frame is made of the last one, and sums of sums would soon leave 32 bits.
    // The frame has room for it by construction.
    let _ = frame::emit(&mut bytes, &to, len, job.checksum);
    bytes
}
