//! Common parts of this crate's tests: an aggregator in the kernel, and frames for it.
#![allow(dead_code, reason = "each test uses a part of it")]

pub mod dynamic;
pub mod frames;
#[path = "../../../userspace/hostprog/tests/support/net.rs"]
pub mod net;
pub mod serve;
pub mod tree;

use std::{net::Ipv4Addr, sync::Mutex};

use aya::{Ebpf, TestRun as _, TestRunOptions};
use sumac_agg::{job, pool::Pools, program, tables::Tables};
use sumac_agg_job::NewJob;
use sumac_agg_layout::{DynamicSlot, Slot, State, name};
use sumac_loader::{Variant, preflight};
use sumac_wire::{
    DEFAULT_BASE_PORT, MAX_ELEMENTS, PAGE_ELEMENTS, Reason,
    tables::{JobEntry, WorkerEntry, job_flag},
};

#[allow(unused_imports, reason = "each test uses a part of it")]
pub(crate) use net::needs_privileges;

pub const DROP: u32 = 1;
pub const PASS: u32 = 2;
pub const REDIRECT: u32 = 4;

/// Whether the kernel's test run splits frames, as Linux 6.18 does; else `test` is skipped.
pub fn can_split(test: &str) -> bool {
    let release = preflight::kernel_release();
    let can = preflight::kernel_version(&release).is_some_and(|version| version >= (6, 18));
    if !can {
        println!("SKIP {test}: Linux {release} runs no test with a first buffer of another length");
    }
    can
}

/// The verdict on a refused frame: the kernel gets what version, type and job do not show to be Sumac's.
pub fn refusal(reason: Reason) -> u32 {
    use Reason::{BadFormat, BadLength, BadType, BadVersion, Fragment, Truncated, UnknownJob};
    let is_unproven =
        matches!(reason, Truncated | BadLength | Fragment | BadVersion | BadType | BadFormat | UnknownJob);
    if is_unproven { PASS } else { DROP }
}

/// The shards of the aggregator; a job has one by default.
pub const SHARDS: u16 = 2;
/// Slots of each shard for dynamic jobs.
pub const DYNAMIC_SLOTS: u32 = 32;
/// Milliseconds without packets that free such a slot: longer than a test.
pub const SLOT_TIMEOUT: u32 = 60_000;
/// Numbers of jobs that its tables have room for, 0 among them: fewer than there can be.
pub const JOBS: u32 = 600;
pub const TOKEN: u64 = 0x5eed_f00d_cafe_1234;

/// The token in its results.
pub fn result_token() -> u64 {
    sumac_job::result_token(TOKEN)
}
pub const AGGREGATOR: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
pub const AGGREGATOR_MAC: [u8; 6] = [2, 0, 0, 0, 0, 0xff];

/// Programs and maps of one test, without pins.
pub struct Bench {
    variant: Variant,
    pub ebpf: Ebpf,
    pub tables: Mutex<Tables>,
}

/// The outcome of a frame.
pub struct Shown {
    pub verdict: u32,
    pub reason: Reason,
    pub out: Vec<u8>,
}

impl Bench {
    pub fn new(jobs: &[NewJob]) -> Bench {
        Bench::of(Variant::Plain, jobs)
    }

    pub fn of(variant: Variant, jobs: &[NewJob]) -> Bench {
        // Loading the program for dynamic jobs takes as long as the rest.
        let is_dynamic = jobs.iter().any(NewJob::is_dynamic);
        let dynamic_slots = if is_dynamic { DYNAMIC_SLOTS } else { 0 };
        let pools = Pools { slots: 64, dynamic_slots, shards: SHARDS, jobs: JOBS };
        let mut ebpf = program::load(variant, pools).unwrap();
        let mut tables = Tables::take(&mut ebpf).unwrap();
        let state = State {
            instance: 1,
            slots: pools.slots,
            elements: if variant == Variant::Jumbo { MAX_ELEMENTS } else { PAGE_ELEMENTS } as u16,
            base_port: DEFAULT_BASE_PORT,
            shards: SHARDS,
            dynamic_slots,
            slot_timeout: SLOT_TIMEOUT,
            jobs: JOBS,
            ..State::default()
        };
        tables.state.set(0, &state).unwrap();
        for new in jobs {
            job::add(&mut tables, new).unwrap();
        }
        Bench { variant, ebpf, tables: Mutex::new(tables) }
    }

    /// Runs the program on a frame; returns verdict, frame afterwards, and the one counter that grew.
    pub fn show(&self, frame: &[u8]) -> Shown {
        self.show_split(frame, frame.len())
    }

    /// The same for a frame whose first buffer has `first` bytes, where [`can_split`].
    pub fn show_split(&self, frame: &[u8], first: usize) -> Shown {
        let before = self.tables.lock().unwrap().counters().unwrap();
        let (verdict, out) = self.run_split(frame, first);
        let after = self.tables.lock().unwrap().counters().unwrap();
        let grew: Vec<_> = before.iter().zip(&after).filter(|(before, after)| before != after).collect();
        assert!(grew.len() == 1 && grew[0].1.1 == grew[0].0.1 + 1, "one frame was counted as {grew:?}");
        Shown { verdict, reason: grew[0].0.0, out }
    }

    /// Runs the program on a frame; returns verdict and frame afterwards.
    pub fn run(&self, frame: &[u8]) -> (u32, Vec<u8>) {
        self.run_split(frame, frame.len())
    }

    fn run_split(&self, frame: &[u8], first: usize) -> (u32, Vec<u8>) {
        let name = match self.variant {
            Variant::Plain => name::INGRESS_PROGRAM,
            Variant::Jumbo => name::JUMBO_INGRESS_PROGRAM,
        };
        let program = self.ebpf.program(name).unwrap();
        let program: &aya::programs::Xdp = program.try_into().unwrap();
        // A reply may be longer than the frame.
        let mut out = vec![0; frame.len() + 4096];
        // struct xdp_md: data, data_end, data_meta, ingress_ifindex, rx_queue_index, egress_ifindex.
        let context = [0, first as u32, 0, 0, 0, 0].map(u32::to_ne_bytes).concat();
        let options = TestRunOptions {
            data_in: Some(frame),
            data_out: Some(&mut out),
            ctx_in: (first < frame.len()).then_some(&context),
            repeat: 1,
            ..TestRunOptions::new()
        };
        let run = program.test_run(options).unwrap();
        out.truncate(run.data_size_out as usize);
        (run.return_value, out)
    }

    pub fn slot(&self, index: u32) -> Slot {
        self.tables.lock().unwrap().slots.get(index).unwrap()
    }

    /// Returns a slot for dynamic jobs; `index` counts over all shards.
    pub fn dynamic_slot(&self, index: u32) -> DynamicSlot {
        self.tables.lock().unwrap().dynamic_slots.get(index).unwrap()
    }

    /// Returns all slots as bytes.
    pub fn pool(&self) -> Vec<u8> {
        let tables = self.tables.lock().unwrap();
        (0..tables.slots.len())
            .flat_map(|index| zerocopy::IntoBytes::as_bytes(&tables.slots.get(index).unwrap()).to_vec())
            .collect()
    }
}

pub fn worker(rank: u8) -> WorkerEntry {
    WorkerEntry {
        ip: Ipv4Addr::new(10, 77, 0, 10 + rank).to_bits(),
        port: 49000,
        mac: [2, 0, 0, 0, 0, rank],
        ifindex: 100 + u32::from(rank),
        aggregator_ip: AGGREGATOR.to_bits(),
        aggregator_mac: AGGREGATOR_MAC,
        ..WorkerEntry::default()
    }
}

/// Returns a job with 8 slots whose workers have an interface each.
pub fn job_of(world: u8, elements: u16) -> NewJob {
    let entry = JobEntry {
        token: TOKEN,
        slot_base: 16,
        slots: 8,
        epoch: 3,
        elements,
        flags: job_flag::CHECKSUM,
        shards: 1,
        lane_slots_log2: 3,
        ..JobEntry::default()
    };
    NewJob { job: 5, entry, workers: (0..world).map(worker).collect(), parents: Vec::new() }
}

/// Returns a job with another entry.
pub fn with_entry(new: NewJob, change: impl FnOnce(JobEntry) -> JobEntry) -> NewJob {
    NewJob { entry: change(new.entry), ..new }
}
