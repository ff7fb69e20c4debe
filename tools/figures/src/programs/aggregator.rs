//! Nanoseconds per frame of the aggregator's program, by the kernel's test run on replayed jobs.
//!
//! A test run repeats one frame, and a slot accepts each contribution once. So a second program, built from
//! the same source, rewrites each repetition into the next contribution of a job before it aggregates; the
//! cost of that is measured by itself and subtracted. A dynamic job's replay includes the parameter host's
//! results, one for each chunk.

use std::{net::Ipv4Addr, process::ExitCode};

use anyhow::{Context as _, bail};
use aya::{Ebpf, EbpfLoader};
use clap::Args;
use serde::Serialize;
use sumac_agg::{job, pool::Pools, program, tables::Tables};
use sumac_agg_job::NewJob;
use sumac_agg_layout::{
    State,
    replay::{MAP, PROGRAM, Replay},
};
use sumac_loader::{Variant, map, program::find};
use sumac_wire::{
    DEFAULT_BASE_PORT, Header, Kind, PAGE_ELEMENTS, Reason,
    admit::payload_len,
    frame::{self, Endpoints, OVERHEAD},
    tables::{JobEntry, WorkerEntry, job_flag},
};

use super::{table::print, test_run::TestRun};

static OBJECT: &[u8] = aya::include_bytes_aligned!(env!("SUMAC_AGG_REPLAY_OBJECT"));

const SLOTS: u32 = 64;
/// Numbers of jobs.
const JOBS: u32 = 256;
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

#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  sumac-figures aggregator-program --elements 64,256,360 --workers 4 --json"
)]
pub struct AggregatorProgram {
    /// Elements in a frame, as a list
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "64,256,360")]
    elements: Vec<u16>,
    /// Workers of the job, as a list: with 1 every frame completes its slot, with 32 nearly none
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1,4,32")]
    workers: Vec<u8>,
    /// A dynamic job: with 1 worker every frame is passed on, and each chunk has its result as one frame more
    #[arg(long)]
    dynamic: bool,
    /// Without UDP checksums
    #[arg(long)]
    no_checksum: bool,
    /// Frames in each run
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    repeat: u32,
    /// Print one JSON array
    #[arg(long)]
    json: bool,
}

impl AggregatorProgram {
    pub fn run(&self) -> anyhow::Result<ExitCode> {
        let measured = self.measure()?;
        let row = |it: &Measurement| {
            format!("{:>8}{:>10}{:>10}{:>12}", it.workers, it.elements, it.bytes, it.ns_per_frame)
        };
        print(
            &measured,
            self.json,
            &format!("{:>8}{:>10}{:>10}{:>12}", "workers", "elements", "bytes", "ns/frame"),
            row,
        )
    }

    /// Replays a job for each number of workers and of elements.
    fn measure(&self) -> anyhow::Result<Vec<Measurement>> {
        let pairs = self
            .elements
            .iter()
            .flat_map(|elements| self.workers.iter().map(move |workers| (*workers, *elements)));
        pairs.map(|(workers, elements)| one(workers, elements, self)).collect()
    }
}

fn one(workers: u8, elements: u16, options: &AggregatorProgram) -> anyhow::Result<Measurement> {
    let AggregatorProgram { dynamic, no_checksum, repeat, .. } = *options;
    let checksum = !no_checksum;
    let job = job_of(workers, elements, options);
    let dynamic_slots = if dynamic { SLOTS } else { 0 };
    let pools = Pools { slots: SLOTS, dynamic_slots, shards: 1, jobs: JOBS };
    let mut ebpf = program::load_with(&mut EbpfLoader::new(), OBJECT, Variant::Plain, pools, &[PROGRAM])?;
    let mut tables = Tables::take(&mut ebpf)?;
    let state = State {
        instance: 1,
        slots: SLOTS,
        elements: PAGE_ELEMENTS as u16,
        base_port: DEFAULT_BASE_PORT,
        shards: 1,
        dynamic_slots,
        slot_timeout: u32::MAX,
        jobs: JOBS,
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
    map::write::<_, { size_of::<Replay>() }>(ebpf, MAP, 0, &plan)?;
    let run = TestRun::of(find(ebpf, PROGRAM)?, frame, repeat)
        .context("the kernel did not run the aggregator's program")?;
    Ok(u32::try_from(run.ns_per_frame).unwrap_or(u32::MAX))
}

fn job_of(workers: u8, elements: u16, options: &AggregatorProgram) -> NewJob {
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
    let checksum = if options.no_checksum { 0 } else { job_flag::CHECKSUM };
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
