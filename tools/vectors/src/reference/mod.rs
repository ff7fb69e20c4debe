//! The aggregator that writes the expectations: the checks, decisions and answers of `sumac_wire` around
//! vectors of numbers.

mod dynamic;
mod static_mode;

use std::collections::HashMap;

use sumac_wire::{
    Header, Kind, Reason, admit,
    budget::Budget,
    bytes::Bytes as _,
    dynamic::SlotMeta as SharedMeta,
    frame::{self, Frame, Parsed, Ports},
    header::{HEADER_LEN, offset},
    lane_budget::LaneBudget,
    slot::{SlotMeta, state},
    tables::{JobEntry, lane_index},
    tos,
};

use crate::record::{
    Answer, Host, Job, LaneSpent, Mode, Setup, SharedSlot, SharedTransition, Slot, Spent, Step, To,
    Transition,
};

/// An aggregator with its jobs.
#[derive(Clone, Debug)]
pub struct Reference {
    setup: Setup,
    /// The metadata of slots, and the values of both versions.
    slots: HashMap<u32, (SlotMeta, [Vec<i32>; 2])>,
    /// The chunk that the lane's next completed slot takes, by [`lane_index`].
    lanes: HashMap<u32, u32>,
    /// By [`lane_index`].
    budgets: HashMap<u32, Budget>,
    /// The same of jobs with a budget for each lane.
    lane_budgets: HashMap<u32, LaneBudget>,
    /// By shard and number.
    shared: HashMap<(u16, u32), (SharedMeta, Vec<i32>)>,
}

/// A packet of a job, and what its frame shows.
struct Sent<'a> {
    job: &'a Job,
    entry: JobEntry,
    /// With [`flag::ECN_ECHO`] if a router has marked the frame.
    header: Header,
    values: Vec<i32>,
    frame: Frame,
    shard: u16,
    /// Whether it has a checksum, if its job's packets have one.
    has_checksum: bool,
    /// Whether its checksum is right, or not verified.
    is_intact: bool,
}

/// The outcome of a packet: the counter, and what leaves.
type Outcome = Result<(Reason, Option<Answer>), Reason>;

/// The slot that a frame names.
#[derive(Clone, Copy)]
enum Named<'a> {
    Static(&'a Job, u32),
    Shared(u16, u32),
}

impl Reference {
    pub fn new(setup: Setup) -> Reference {
        Reference {
            setup,
            slots: HashMap::new(),
            lanes: HashMap::new(),
            budgets: HashMap::new(),
            lane_budgets: HashMap::new(),
            shared: HashMap::new(),
        }
    }

    pub fn setup(&self) -> &Setup {
        &self.setup
    }

    /// Returns the metadata of a static job's slot, by the pool's index.
    pub fn slot(&self, index: u32) -> SlotMeta {
        self.slots.get(&index).map(|(meta, _)| *meta).unwrap_or_default()
    }

    /// Whether the exponent of the chunk in a version of a static job's slot is being agreed on.
    pub fn is_round(&self, job: &Job, slot: u32, version: u8) -> bool {
        self.slot(job.slot_base + slot).version(version).state & state::ROUND != 0
    }

    /// Puts the slots of a step into the state from which it begins.
    pub fn begin(&mut self, step: &Step) {
        if let Some(Transition { index, before, .. }) = &step.slot
            && let Some(job) = self.setup.jobs.iter().find(|job| job.has_slot(*index))
        {
            let lane = lane_of(job, *index);
            let values = before.versions.each_ref().map(|version| version.values.clone());
            self.slots.insert(*index, (before.meta(), values));
            self.lanes.insert(lane, before.lane_next);
            self.budgets.insert(lane, before.spent.budget());
            self.lane_budgets.insert(lane, before.lane_spent.budget());
        }
        if let Some(SharedTransition { shard, slot, before, .. }) = &step.shared {
            self.shared.insert((*shard, *slot), (before.meta(), before.values.clone()));
        }
    }

    /// Receives a frame; returns the step with its outcome.
    pub fn receive(&mut self, interface: u32, frame: Vec<u8>) -> Step {
        let before = self.clone_named(&frame);
        let (reason, answer) = self.show(&frame).unwrap_or_else(|reason| (reason, None));
        let after = self.clone_named(&frame);
        let mut step = Step {
            case: None,
            interface,
            frame,
            reason: reason.name().into(),
            answer,
            slot: None,
            shared: None,
        };
        match (before, after) {
            (Some(State::Static(index, before)), Some(State::Static(_, after))) => {
                step.slot = Some(Transition { index, before, after });
            }
            (Some(State::Shared(shard, slot, before)), Some(State::Shared(_, _, after))) => {
                step.shared = Some(SharedTransition { shard, slot, before, after });
            }
            _ => {}
        }
        step
    }

    fn ports(&self) -> Ports {
        Ports { base: self.setup.base_port, shards: self.setup.shards }
    }

    fn job(&self, number: u16) -> Option<&Job> {
        self.setup.jobs.iter().find(|job| job.job == number)
    }

    /// Returns the slot that a frame names, if it can be parsed and its job has such a slot.
    fn named(&self, bytes: &[u8]) -> Option<Named<'_>> {
        let Parsed::Ours(frame) = frame::parse(bytes, self.ports()) else { return None };
        let header = Header::read(bytes, frame.payload(), frame.payload_len()).ok()?;
        let job = self.job(header.job).filter(|job| header.slot < job.slots)?;
        Some(match job.mode {
            Mode::Static => Named::Static(job, job.slot_base + header.slot),
            Mode::Dynamic => Named::Shared(frame.dst_port - self.setup.base_port, header.slot),
        })
    }

    fn clone_named(&self, bytes: &[u8]) -> Option<State> {
        Some(match self.named(bytes)? {
            Named::Static(job, index) => State::Static(index, self.record(job, index)),
            Named::Shared(shard, slot) => {
                let free = (SharedMeta::default(), Vec::new());
                let (meta, values) = self.shared.get(&(shard, slot)).unwrap_or(&free);
                State::Shared(shard, slot, SharedSlot::of(meta, values))
            }
        })
    }

    fn record(&self, job: &Job, index: u32) -> Slot {
        let lane = lane_of(job, index);
        let lane_next = self.lanes.get(&lane).copied().unwrap_or(2 << job.lane_slots_log2);
        let world = job.workers.len() as u16;
        let spent = self.budgets.get(&lane).map(|budget| Spent::of(budget, world)).unwrap_or_default();
        let slot = match self.slots.get(&index) {
            Some((meta, [first, second])) => Slot::of(meta, [first, second], lane_next, spent),
            None => Slot::of(&SlotMeta::default(), [&[], &[]], lane_next, spent),
        };
        Slot { lane_spent: self.lane_budgets.get(&lane).map(LaneSpent::of).unwrap_or_default(), ..slot }
    }

    fn show(&mut self, bytes: &[u8]) -> Outcome {
        let frame = match frame::parse(bytes, self.ports()) {
            Parsed::Foreign => return Err(Reason::Foreign),
            Parsed::Bad(reason) => return Err(reason),
            Parsed::Ours(frame) => frame,
        };
        let header = Header::read(bytes, frame.payload(), frame.payload_len())?;
        let job = &self.job(header.job).ok_or(Reason::UnknownJob)?.clone();
        let sent = Sent {
            job,
            entry: job.entry(),
            header: Header { flags: header.flags | tos::echo(frame.dscp_ecn), ..header },
            values: elements(&bytes[frame.payload() + HEADER_LEN..], header.elements),
            frame,
            shard: frame.dst_port - self.setup.base_port,
            has_checksum: !job.checksum || bytes.be16(frame.l4() + 6) != Some(0),
            is_intact: !job.checksum || frame::has_valid_checksum(bytes, &frame),
        };
        match job.mode {
            Mode::Dynamic => self.take_dynamic(&sent),
            Mode::Static if admit::is_from_parent(&header, &sent.entry) => self.conclude_static(&sent),
            Mode::Static => self.take_static(&sent, bytes),
        }
    }
}

/// The state of the slot that a frame names.
enum State {
    Static(u32, Slot),
    Shared(u16, u32, SharedSlot),
}

impl Sent<'_> {
    /// Returns the rank of the sender, a worker of the job or a rack; the packet comes from its address.
    fn sender(&self) -> Result<u16, Reason> {
        let rank = admit::sender(&self.header, &self.entry)?;
        admit::source(self.frame.src_ip, &host(&self.job.workers, rank)?.entry(0))?;
        Ok(rank)
    }

    /// Whether the frame is for the aggregator's address on the side of a host.
    fn is_for_us(&self, host: &Host) -> bool {
        self.frame.dst_ip == host.aggregator_ip.to_bits()
    }

    /// Returns the answer to a probe, for its sender: the probe as it came, with a router's mark.
    fn report(&self, rank: u16, bytes: &[u8]) -> Answer {
        let flags = bytes.be16(self.frame.payload() + offset::FLAGS).unwrap_or_default();
        let report =
            Header { kind: Kind::Report as u8, token: self.entry.result_token, flags, ..self.header };
        Answer { tos: self.frame.dscp_ecn, ..self.answer(To::Worker(rank), report, &self.values) }
    }

    /// Returns a packet that leaves. A router's mark is in its header.
    fn answer(&self, to: To, header: Header, values: &[i32]) -> Answer {
        let values = values.iter().take(usize::from(header.elements));
        let payload = header.to_bytes().into_iter().chain(values.flat_map(|value| value.to_be_bytes()));
        Answer { to, tos: tos::unmarked(self.frame.dscp_ecn), payload: payload.collect() }
    }
}

fn host(hosts: &[Host], number: u16) -> Result<&Host, Reason> {
    hosts.get(usize::from(number)).ok_or(Reason::Internal)
}

fn lane_of(job: &Job, index: u32) -> u32 {
    lane_index(job.job, ((index - job.slot_base) >> job.lane_slots_log2) as u16)
}

/// Returns the elements of a payload behind Sumac's header.
fn elements(bytes: &[u8], count: u16) -> Vec<i32> {
    let words = bytes.as_chunks::<4>().0.iter().take(usize::from(count));
    words.map(|word| i32::from_be_bytes(*word)).collect()
}
