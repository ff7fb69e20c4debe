//! A run of vectors on the model.

mod frame;
mod state;

use std::{
    collections::{BTreeMap, HashMap},
    fmt::Debug,
    time::{Duration, Instant},
};

use frame::{Left, expected};
use state::Registers;
use sumac_agg_job::NewJob;
use sumac_agg_p4::{
    sizes::Sizes,
    tables,
    target::{Change, Entry, Update},
};
use sumac_vectors::{
    packets::{BASE_PORT, SHARDS},
    record::{Host, Job, Setup, Slot, Step},
};
use sumac_wire::{
    Header, Reason,
    bytes::Bytes as _,
    frame::{IPV4_LEN, Parsed, Ports, UDP_LEN, parse},
    header::offset,
};

use crate::model::{Model, Program, SLOT_TIMEOUT};

/// The port that markers leave by.
const MARKERS: u32 = 12;
/// The model's ports: those of the jobs' hosts, and that of the markers.
pub const PORTS: &[u32] = &[0, 1, 2, 3, 8, 9, 10, 11, MARKERS];
/// The destination of markers, and their type, of local experiments (IEEE 802).
const MARKER_MAC: [u8; 6] = [2, 0, 0, 0, 2, 0];
const MARKER_TYPE: [u8; 2] = [0x88, 0xb5];

/// The time in which a packet comes through the model, on a busy machine.
const LIMIT: Duration = Duration::from_secs(20);

/// Cells of a job in a counter of reasons.
const REASONS: u32 = 64;
const JOBS: u32 = 64;

pub struct Run<'a> {
    model: &'a mut Model,
    program: &'a Program,
    setup: Setup,
    /// The packets that cells of `reasons` have counted.
    counted: HashMap<u32, u64>,
    reasons: String,
    sent: u64,
    left: u64,
}

impl<'a> Run<'a> {
    /// Loads the program and the jobs.
    pub fn new(model: &'a mut Model, program: &'a Program, setup: &Setup) -> Run<'a> {
        Model::install(program, &updates(setup));
        let reasons = program.name("reasons").to_owned();
        let setup = setup.clone();
        let mut run = Run { model, program, setup, counted: HashMap::new(), reasons, sent: 0, left: 0 };
        run.empty();
        run
    }

    /// Empties all slots.
    pub fn empty(&mut self) {
        for name in self.program.registers() {
            self.model.thrift.reset_register(name);
        }
        self.age();
    }

    /// Makes it so long since anybody added to any shared slot that others may take it.
    pub fn age(&mut self) {
        let unused = u64::from(SLOT_TIMEOUT.wrapping_neg()) << 32;
        let slots = u32::from(SHARDS) * Sizes::default().dynamic_slots;
        self.model.thrift.fill_register(self.program.name("stamps"), slots, unused);
    }

    /// Makes it so that not all blocks of this worker's contributions are written yet, once all packets sent
    /// have ended.
    pub fn leave_unwritten(&mut self, rank: u32) {
        let name = self.program.name("unwritten_senders");
        let deadline = Instant::now() + LIMIT;
        // The first slot of the first version: begun by the contribution, and cleared by its last block.
        while self.model.thrift.register(name, 0) & 1 << rank != 0 && Instant::now() < deadline {}
        self.model.thrift.fill_register(name, 1, 1 << rank);
    }

    /// Puts a slot of a job with loss bounds into a state in which all workers have the results of both
    /// versions, whose chunks have no elements.
    pub fn begin(&mut self, index: u32, slot: &Slot) {
        for (number, version) in (0..).zip(&slot.versions) {
            let place = index + number * Sizes::default().static_slots;
            let pair = |first: u32, second: u32| u64::from(first) << 32 | u64::from(second);
            let lacking = format!("lacking_{number}");
            for (name, index, value) in [
                ("holders", place, slot.owner.into()),
                ("concluders", place, slot.owner.into()),
                ("chunks", place, version.seq.into()),
                ("states", place, version.state.into()),
                ("next_chunks", place, pair(slot.owner, version.next)),
                (&lacking, index, pair(0, version.seq)),
            ] {
                self.model.thrift.set_register(self.program.name(name), index, value);
            }
        }
    }

    pub fn steps(&mut self, steps: &[Step]) {
        for (at, step) in steps.iter().enumerate() {
            if let Err(difference) = self.step(step) {
                let Setup { name, seed, .. } = &self.setup;
                let name = step.case.as_ref().unwrap_or(name);
                let before = steps[..at].iter().rposition(|other| is_of_slot(other, step));
                let before = before.map(|at| format!("before, step {at}: {}\n", described(&steps[at])));
                let before = before.unwrap_or_default();
                let replay = seed.map(|seed| self.replay(seed, at + 1)).unwrap_or_default();
                panic!(
                    "{name}, seed {seed:?}, step {at}: {difference}\n{}\n{before}{replay}",
                    described(step)
                );
            }
        }
    }

    /// Returns the command that shows a difference again.
    fn replay(&self, seed: u64, steps: usize) -> String {
        let test = if self.setup.jobs.iter().any(|job| job.bounded) { "bounded" } else { "random_packets" };
        format!(
            "again: SUMAC_VECTORS_SEED={seed} SUMAC_VECTORS_STEPS={steps} cargo test -p sumac-agg-p4 --test \
            vectors {test}"
        )
    }

    /// Sends a frame, and a marker behind it, which shows that all before it has gone through the ingress.
    /// Returns the difference.
    fn step(&mut self, step: &Step) -> Result<(), String> {
        let job = self.job_of(step).cloned();
        let mut awaited = expected(step, job.as_ref());
        self.sent += 2;
        self.left += awaited.len() as u64;
        let marker = [&MARKER_MAC[..], &[2, 0, 0, 0, 2, 1], &MARKER_TYPE, &self.sent.to_be_bytes()].concat();
        self.model.ports.send(step.interface, &step.frame);
        self.model.ports.send(step.interface, &marker);
        let mut has_marker = false;
        let mut surplus = Vec::new();
        let deadline = Instant::now() + LIMIT;
        while (!has_marker || !awaited.is_empty()) && surplus.is_empty() && Instant::now() < deadline {
            for (port, frame) in self.model.ports.receive(Duration::from_millis(500)) {
                if frame == marker && port == MARKERS {
                    has_marker = true;
                    continue;
                }
                let left = Left::of(port, &frame);
                match awaited.iter().position(|awaited| *awaited == left) {
                    Some(at) => drop(awaited.swap_remove(at)),
                    None => surplus.push(left),
                }
            }
        }
        let reason = self.count(step, job.as_ref());
        if !has_marker || !awaited.is_empty() || !surplus.is_empty() {
            let is_lost = if has_marker { "" } else { ", and nothing more goes through" };
            return Err(format!(
                "counted as {reason:?} and not {}; leaves: {surplus:?}\nand not: {awaited:?}{is_lost}",
                step.reason
            ));
        }
        if reason.as_deref() != Ok(&step.reason) {
            return Err(format!("counted as {reason:?} and not {}", step.reason));
        }
        self.compare_slot(step, job.as_ref())
    }

    /// Compares the registers of the slot that a packet names. Passes that let nothing leave may still be on
    /// their way.
    fn compare_slot(&mut self, step: &Step, job: Option<&Job>) -> Result<(), String> {
        let mut registers = Registers { thrift: &mut self.model.thrift, program: self.program };
        let deadline = Instant::now() + LIMIT / 10;
        loop {
            let difference = match (&step.slot, &step.shared, job) {
                (Some(slot), _, Some(job)) => different(registers.slot(job, slot), &slot.after),
                (_, Some(shared), _) => different(registers.shared_slot(shared), &shared.after),
                _ => None,
            };
            match difference {
                None => return Ok(()),
                Some(both) if Instant::now() > deadline => return Err(both),
                Some(_) => {}
            }
        }
    }

    /// Returns the job that a frame names, where it has that field.
    fn job_of(&self, step: &Step) -> Option<&Job> {
        let at = frame::l3(&step.frame) + IPV4_LEN + UDP_LEN + offset::JOB;
        let number = step.frame.be16(at)?;
        self.setup.jobs.iter().find(|job| job.job == number)
    }

    /// Returns the reason that has counted a step.
    fn count(&mut self, step: &Step, job: Option<&Job>) -> Result<String, String> {
        // The marker.
        *self.counted.entry(0).or_default() += 1;
        let is_it = |reason: &&Reason| reason.name() == step.reason;
        let likely = *Reason::ALL.iter().find(is_it).unwrap();
        let numbers = [job.map_or(0, |job| job.job), 0];
        let deadline = Instant::now() + LIMIT / 10;
        loop {
            for number in numbers {
                let cell = u32::from(number) * REASONS + likely as u32;
                let before = self.counted.get(&cell).copied().unwrap_or_default();
                if self.model.thrift.counter(&self.reasons, cell) > before {
                    *self.counted.entry(cell).or_default() += 1;
                    return Ok(likely.name().into());
                }
            }
            // A flush is counted in its second turn, which may end while the other cells are read.
            let is_likely = |cell: &u32| {
                numbers.contains(&((*cell / REASONS) as u16)) && *cell % REASONS == likely as u32
            };
            let cells = (0..JOBS * REASONS).filter(|cell| *cell % REASONS < 48 && *cell / REASONS < 16);
            let cells = cells.filter(|cell| !is_likely(cell));
            let news: Vec<(u32, u64)> = cells
                .map(|cell| (cell, self.model.thrift.counter(&self.reasons, cell)))
                .filter(|(cell, count)| *count != self.counted.get(cell).copied().unwrap_or_default())
                .collect();
            if let [(cell, _)] = news[..]
                && let Some(reason) = Reason::ALL.iter().find(|reason| **reason as u32 == cell % REASONS)
            {
                return Ok(format!("{} of job {}", reason.name(), cell / REASONS));
            }
            if Instant::now() > deadline {
                return Err(format!("cells of `reasons` with their new counts: {news:?}"));
            }
        }
    }

    /// Compares all counters with what was sent: every frame is in exactly one.
    pub fn finish(self) {
        let late = self.model.ports.receive(Duration::from_millis(100));
        assert!(late.is_empty(), "{late:02x?}");
        let mut counts = BTreeMap::new();
        for cell in 0..JOBS * REASONS {
            let count = self.model.thrift.counter(&self.reasons, cell);
            if count != 0 {
                counts.insert(cell, count);
            }
        }
        assert_eq!(counts.values().sum::<u64>(), self.sent, "{counts:?}");
        assert_eq!(counts, self.counted.into_iter().collect());
        let copies = self.program.name("egress_reasons");
        let cells = (0..JOBS).map(|job| job * REASONS + Reason::Sent as u32);
        let left: u64 = cells.map(|cell| self.model.thrift.counter(copies, cell)).sum();
        assert_eq!(left, self.left, "packets that have left");
    }
}

/// Returns what writes the jobs of a setup into the switch's tables, as `serve` does it, and the way of
/// markers.
fn updates(setup: &Setup) -> Vec<Update> {
    let hosts = |hosts: &[Host]| hosts.iter().map(|host| host.entry(0)).collect();
    let installed = |job: &Job| NewJob {
        job: job.job,
        entry: job.entry(),
        workers: hosts(&job.workers),
        parents: hosts(&job.parents),
    };
    let jobs: Vec<NewJob> = setup.jobs.iter().map(installed).collect();
    let marker = MARKER_MAC.iter().fold(0, |mac, byte| mac << 8 | u64::from(*byte));
    let entries = jobs.iter().flat_map(|job| tables::entries(job, Sizes::default()));
    let marker = Entry::new("hosts", "forward").exact("mac", marker).parameter("port", MARKERS);
    let entries = entries.chain([marker]).map(|entry| Update::Entry(Change::Insert, entry));
    let groups = jobs.iter().map(|job| Update::Group(Change::Insert, tables::group(job)));
    groups.chain(entries).collect()
}

/// Returns a slot that is not as expected, and the expected one.
fn different<T: PartialEq + Debug>(slot: T, expected: &T) -> Option<String> {
    (slot != *expected).then(|| format!("the registers hold\n{slot:?}\nand not\n{expected:?}"))
}

/// Whether two steps name the same slot.
fn is_of_slot(one: &Step, other: &Step) -> bool {
    let slot = |step: &Step| {
        let slot = step.slot.as_ref().map(|slot| (0, slot.index));
        slot.or(step.shared.as_ref().map(|shared| (1 + shared.shard, shared.slot)))
    };
    slot(one).is_some() && slot(one) == slot(other)
}

/// Returns a step as text: its packet with the header's fields.
fn described(step: &Step) -> String {
    let ports = Ports { base: BASE_PORT, shards: SHARDS };
    let header = match parse(&step.frame[..], ports) {
        Parsed::Ours(frame) => {
            let header = Header::read(&step.frame[..], frame.payload(), frame.payload_len());
            format!("{frame:?}\n{header:?}")
        }
        other => format!("{other:?}"),
    };
    let Step { interface, frame, reason, slot, shared, .. } = step;
    format!(
        "{reason}, packet on interface {interface}: {header}\nslot: {slot:?}\nshared: {shared:?}\nframe: \
        {frame:02x?}"
    )
}
