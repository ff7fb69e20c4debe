//! Nanoseconds per frame of the aggregator's program, by the kernel's test run on replayed jobs.
//!
//! A test run repeats one frame, and a slot accepts each contribution once. So a second program, built from the same
//! source, rewrites each repetition into the next contribution of a job before it aggregates; the cost of that is measured
//! by itself and subtracted. A dynamic job's replay includes the parameter host's results, one for each chunk.

use std::net::Ipv4Addr;

use anyhow::{Context as _, bail};
use aya::Ebpf;
use serde::Serialize;
use sumac_agg_job::NewJob;
use sumac_agg_layout::{Replay, State, name};
use sumac_loader::{TestRun, map, program::find};
use sumac_wire::{
    DEFAULT_BASE_PORT, Header, Kind, PAGE_ELEMENTS, Reason,
    admit::payload_len,
    frame::{self, Endpoints, OVERHEAD},
    tables::{JobEntry, WorkerEntry, job_flag},
};

use crate::{job, pool::Pools, program, tables::Tables};

const SLOTS: u32 = 64;
const FIRST_IP: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 10);
const AGGREGATOR_IP: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
const HOST_IP: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
const TOKEN: u64 = 0x5eed_f00d_cafe_1234;

#[derive(Clone, Debug, Serialize)]
pub struct Measurement {
    /// Whether the job is dynamic: then a parameter host's results are among the frames.
    pub dynamic: bool,
    /// Workers of the job. With one, every frame is stored and completes; with 32, nearly every one is added.
    pub workers: u8,
    pub elements: u16,
    pub bytes: usize,
    /// Whether UDP checksums were verified and computed.
    pub checksum: bool,
    /// Mean time of the aggregator's program, with all checks.
    pub ns_per_frame: u32,
    /// The cost of the replay itself, which is not in `ns_per_frame`.
    pub ns_replay: u32,
}

#[derive(Clone, Copy, Debug)]
pub struct ReplayOptions {
    pub dynamic: bool,
    /// Whether UDP checksums are verified and computed.
    pub checksum: bool,
    pub repeat: u32,
}

/// Replays jobs of `workers` with frames of `elements`.
pub fn replay(workers: &[u8], elements: &[u16], options: ReplayOptions) -> anyhow::Result<Vec<Measurement>> {
    let mut measured = Vec::new();
    for elements in elements {
        for workers in workers {
            measured.push(one(*workers, *elements, options)?);
        }
    }
    Ok(measured)
}

fn one(workers: u8, elements: u16, options: ReplayOptions) -> anyhow::Result<Measurement> {
    let ReplayOptions { dynamic, checksum, repeat } = options;
    let job = job_of(workers, elements, options);
    let dynamic_slots = if dynamic { SLOTS } else { 0 };
    let mut ebpf = program::load_replay(Pools { slots: SLOTS, dynamic_slots, shards: 1 })?;
    let mut tables = Tables::take(&mut ebpf)?;
    let state = State {
        instance: 1,
        slots: SLOTS,
        elements: PAGE_ELEMENTS as u16,
        base_port: DEFAULT_BASE_PORT,
        shards: 1,
        dynamic_slots,
        slot_timeout: u32::MAX,
        ..State::default()
    };
    tables.state.set(0, &state)?;
    job::add(&mut tables, &job)?;
    let frame = first_frame(&job);
    let ns_replay = run(&mut ebpf, &job, &frame, true, repeat)?;
    let gross = run(&mut ebpf, &job, &frame, false, repeat)?;
    let counters = tables.counters()?;
    use Reason::{Added, Completed, Concluded, Forwarded, Passed};
    let is_accepted = |reason| matches!(reason, Added | Completed | Forwarded | Passed | Concluded);
    let accepted =
        counters.iter().filter(|(reason, _)| is_accepted(*reason)).map(|(_, count)| count).sum::<u64>();
    // The kernel adds a few runs to warm up.
    if accepted < u64::from(repeat) {
        bail!("of {repeat} replayed frames {accepted} were accepted: the times would be meaningless");
    }
    Ok(Measurement {
        dynamic,
        workers: job.workers.len() as u8,
        elements,
        bytes: frame.len(),
        checksum,
        ns_per_frame: gross.saturating_sub(ns_replay),
        ns_replay,
    })
}

fn run(ebpf: &mut Ebpf, job: &NewJob, frame: &[u8], dry: bool, repeat: u32) -> anyhow::Result<u32> {
    let plan = Replay {
        turn: 0,
        world: job.workers.len() as u32,
        slots: SLOTS,
        first_ip: FIRST_IP.to_bits(),
        aggregator_ip: AGGREGATOR_IP.to_bits(),
        host_ip: if job.is_dynamic() { HOST_IP.to_bits() } else { 0 },
        dry: u32::from(dry),
    };
    map::write::<_, { size_of::<Replay>() }>(ebpf, name::REPLAY, 0, &plan)?;
    let run = TestRun::of(find(ebpf, name::REPLAY_PROGRAM)?, frame, repeat)
        .context("the kernel did not run the aggregator's program")?;
    Ok(u32::try_from(run.ns_per_frame).unwrap_or(u32::MAX))
}

fn job_of(workers: u8, elements: u16, options: ReplayOptions) -> NewJob {
    let hop = |ip: u32, number: u32| WorkerEntry {
        ip,
        port: DEFAULT_BASE_PORT,
        mac: [2, 0, 0, 0, 0, number as u8],
        ifindex: 1 + number,
        aggregator_ip: AGGREGATOR_IP.to_bits(),
        aggregator_mac: [2, 0, 0, 0, 1, 0],
        ..WorkerEntry::default()
    };
    let hosts = options.dynamic.then(|| hop(HOST_IP.to_bits(), workers.into()));
    let checksum = if options.checksum { job_flag::CHECKSUM } else { 0 };
    let (mode, lane_slots_log2) =
        if options.dynamic { (job_flag::DYNAMIC, 0) } else { (0, SLOTS.ilog2() as u16) };
    let entry = JobEntry {
        token: TOKEN,
        slots: SLOTS,
        epoch: 1,
        elements,
        flags: mode | checksum,
        shards: 1,
        lane_slots_log2,
        ..JobEntry::default()
    };
    let workers = (0..u32::from(workers)).map(|rank| hop(FIRST_IP.to_bits() + rank, rank)).collect();
    NewJob { job: 1, entry, workers, parents: hosts.into_iter().collect() }
}

fn first_frame(job: &NewJob) -> Vec<u8> {
    let (entry, worker) = (&job.entry, &job.workers[0]);
    let header = Header {
        kind: Kind::Contribution as u8,
        job: job.job,
        epoch: entry.epoch,
        fan_in_0: job.workers.len() as u8,
        elements: entry.elements,
        bitmap_0: 1,
        token: entry.token,
        ..Header::default()
    };
    let to = Endpoints {
        src_mac: worker.mac,
        dst_mac: worker.aggregator_mac,
        src_ip: worker.ip,
        dst_ip: worker.aggregator_ip,
        src_port: DEFAULT_BASE_PORT,
        dst_port: DEFAULT_BASE_PORT,
        dscp_ecn: 0,
    };
    let len = payload_len(entry.elements);
    let mut bytes = vec![0; OVERHEAD + len];
    bytes[OVERHEAD..][..header.to_bytes().len()].copy_from_slice(&header.to_bytes());
    // The elements stay zero: each frame is made from the last, and sums of sums would soon overflow 32 bits.
    // The frame has room by construction.
    let _ = frame::emit(&mut bytes, &to, len, entry.flags & job_flag::CHECKSUM != 0);
    bytes
}
