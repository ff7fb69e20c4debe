//! Invariants of static jobs at every packet: each contribution is added once, and all workers take the same
//! chunks through the same slots.

use std::{cell::RefCell, collections::BTreeMap, rc::Rc};

use sumac_sim::{address::NodeId, events::Nanos, observer::Observer};
use sumac_wire::{Header, Kind, Reason, header::flag};

/// Observations of one incarnation of a static job.
#[derive(Default)]
pub struct Ledger {
    /// The workers' indices in the world, and slots of a lane.
    workers: Vec<usize>,
    lane_slots: u32,
    /// Times that each contribution was added: by aggregator, lane, chunk and sender.
    added: BTreeMap<(NodeId, u32, u32, (u32, u32)), u32>,
    /// The chunks of each slot in order.
    chunks: BTreeMap<u32, Vec<u32>>,
    /// Position of each worker in that list, by slot and worker.
    reached: BTreeMap<(u32, usize), usize>,
    /// The slot of each chunk, by lane and chunk.
    slots: BTreeMap<(u32, u32), u32>,
}

impl Ledger {
    pub fn new(workers: &[usize], lane_slots: u32) -> Ledger {
        Ledger { workers: workers.to_vec(), lane_slots, ..Ledger::default() }
    }

    fn added(&mut self, node: NodeId, header: &Header) {
        let sender = if header.has(flag::LEVEL) { (0, header.bitmap_1) } else { (header.bitmap_0, 0) };
        *self.added.entry((node, header.slot / self.lane_slots, header.seq, sender)).or_default() += 1;
    }

    /// Checks a worker's packet: all workers take the same chunks through a slot, none is more than one chunk
    /// ahead of another, and no chunk is in two slots.
    fn sent(&mut self, worker: usize, header: &Header) {
        if header.kind == Kind::Probe as u8 {
            return;
        }
        let slot = header.slot;
        let chunks = self.chunks.entry(slot).or_default();
        let before = self.reached.get(&(slot, worker)).copied();
        let here = match before {
            Some(before) if chunks[before] == header.seq => before,
            before => before.map_or(0, |before| before + 1),
        };
        if here == chunks.len() {
            chunks.push(header.seq);
        }
        assert_eq!(chunks[here], header.seq, "worker {worker}, slot {slot}: not the chunk of the others");
        self.reached.insert((slot, worker), here);
        for other in &self.workers {
            let there = self.reached.get(&(slot, *other)).map_or(0, |there| there + 1);
            assert!(
                here <= there,
                "worker {worker} is at chunk {here} of slot {slot}, {other} at {there} - 1"
            );
        }
        let first = *self.slots.entry((slot / self.lane_slots, header.seq)).or_insert(slot);
        assert_eq!(first, slot, "chunk {} is in two slots", header.seq);
        assert_eq!(header.elements == 0, header.has(flag::EXPONENT | flag::QUERY | flag::EMPTY));
    }

    /// Checks that every contribution was added exactly once, and that there are as many as there must be.
    pub fn close(&self, contributions: u64) {
        assert!(self.added.values().all(|times| *times == 1), "not added once: {:?}", self.added);
        assert_eq!(self.added.len() as u64, contributions, "contributions added");
    }
}

/// The timeouts of `Tuning::default()`: the shortest and the longest.
const SHORTEST: Nanos = 500_000;
const LONGEST: Nanos = 200_000_000;
/// Chunks that a lane may ask for at each timeout.
const PROBES: u64 = 2;

/// Probes that one lane may send, counted from outside: from the intervals without a frame alone.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProbeAllowance {
    last_frame: Nanos,
    pub probes: u64,
}

impl ProbeAllowance {
    fn frame(&mut self, now: Nanos) {
        let mut idle = now - self.last_frame;
        let mut timeout = SHORTEST;
        while idle >= timeout {
            idle -= timeout;
            timeout = (2 * timeout).min(LONGEST);
            self.probes += PROBES;
        }
        self.last_frame = now;
    }
}

/// Everything that was observed.
#[derive(Default)]
pub struct Observed {
    /// By job; static ones only.
    pub ledgers: BTreeMap<u16, Ledger>,
    /// By worker and lane.
    pub probes: BTreeMap<(usize, usize), ProbeAllowance>,
    /// Parts of racks that were sent up again.
    pub forwarded_again: u64,
}

/// Shares what it observes.
#[derive(Clone, Default)]
pub struct Witness(pub Rc<RefCell<Observed>>);

impl Observer for Witness {
    fn started(&mut self, now: Nanos, worker: usize, lane: usize) {
        self.0.borrow_mut().probes.entry((worker, lane)).or_default().last_frame = now;
    }

    fn sent(&mut self, worker: usize, header: &Header) {
        let mut observed = self.0.borrow_mut();
        observed.ledgers.get_mut(&header.job).into_iter().for_each(|ledger| ledger.sent(worker, header));
    }

    fn delivered(&mut self, now: Nanos, worker: usize, lane: usize) {
        self.0.borrow_mut().probes.entry((worker, lane)).or_default().frame(now);
    }

    fn handled(&mut self, node: NodeId, header: &Header, reason: Reason, added: bool) {
        let mut observed = self.0.borrow_mut();
        let Some(ledger) = observed.ledgers.get_mut(&header.job) else { return };
        if added {
            ledger.added(node, header);
        } else if reason == Reason::Forwarded && !header.has(flag::EXPONENT | flag::QUERY) {
            observed.forwarded_again += 1;
        }
    }
}
