//! The network: an event queue in simulated time, and cables that lose, repeat, delay and reorder.

use std::{cmp::Reverse, collections::BinaryHeap};

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use sumac_wire::header::HEADER_LEN;

use crate::scenario::Faults;

/// A frame's payload and the shard of its port.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Frame {
    pub shard: u16,
    pub payload: Vec<u8>,
}

/// How much shorter a frame is that has no elements: 122 bytes on the cable, with gap and preamble, not 1,538.
const SHORT: u64 = 12;

/// Something that happens.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Event {
    /// A worker's trainer submits the tensor with this number.
    Submit { rank: u16, number: usize },
    /// A frame arrives at an aggregator from below.
    Up { node: usize, frame: Frame },
    /// A frame arrives at a rack's aggregator from its parent.
    Down { node: usize, frame: Frame },
    /// A frame arrives at a worker.
    ToWorker { rank: u16, frame: Frame },
    /// A worker's timer may be due.
    Timer { rank: u16 },
    /// A worker's ring has room for frames again.
    Room { rank: u16 },
    /// The aggregators lose their state, and the job begins anew.
    Restart,
}

/// One direction of one cable: when it is free again.
#[derive(Clone, Copy, Default)]
struct Cable {
    free: u64,
}

/// All cables, and what is under way. Cables are numbered: worker 0, worker 1, ..., then a rack each.
pub struct Network {
    faults: Faults,
    rng: ChaCha8Rng,
    up: Vec<Cable>,
    down: Vec<Cable>,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    scheduled: u64,
    pub lost: u64,
    pub duplicated: u64,
    pub held_back: u64,
}

impl Network {
    pub fn new(faults: Faults, cables: usize, seed: u64) -> Network {
        Network {
            faults,
            rng: ChaCha8Rng::seed_from_u64(!seed),
            up: vec![Cable::default(); cables],
            down: vec![Cable::default(); cables],
            events: BinaryHeap::new(),
            scheduled: 0,
            lost: 0,
            duplicated: 0,
            held_back: 0,
        }
    }

    /// Lets `event` happen at `at`; events of the same time happen in the order of this call.
    pub fn schedule(&mut self, at: u64, event: Event) {
        self.scheduled += 1;
        self.events.push(Reverse((at, self.scheduled, event)));
    }

    /// The next event and its time.
    pub fn next(&mut self) -> Option<(u64, Event)> {
        self.events.pop().map(|Reverse((at, _, event))| (at, event))
    }

    /// A frame goes up the cable with this number, to aggregator `node`.
    pub fn send_up(&mut self, now: u64, cable: usize, node: usize, shard: u16, payload: &[u8]) {
        for at in self.arrivals(now, cable, true, payload.len()) {
            self.schedule(at, Event::Up { node, frame: Frame { shard, payload: payload.to_vec() } });
        }
    }

    /// A frame goes down the cable with this number, where `event` makes it arrive.
    pub fn send_down(&mut self, now: u64, cable: usize, len: usize, event: impl Fn() -> Event) {
        for at in self.arrivals(now, cable, false, len) {
            self.schedule(at, event());
        }
    }

    /// When a frame that is sent now arrives: never, once, or twice.
    fn arrivals(
        &mut self,
        now: u64,
        cable: usize,
        up: bool,
        len: usize,
    ) -> impl Iterator<Item = u64> + use<> {
        let cable = &mut if up { &mut self.up } else { &mut self.down }[cable];
        // Chunks are short here to be quick, and stand for those of a network's; what has no elements is as it is.
        let spacing = if len > HEADER_LEN { self.faults.spacing } else { self.faults.spacing / SHORT };
        cable.free = cable.free.max(now) + spacing;
        let at = cable.free + self.faults.delay;
        if self.rng.random_bool(self.faults.loss) {
            self.lost += 1;
            return [None, None].into_iter().flatten();
        }
        let first = at + self.held_back();
        let second = self.rng.random_bool(self.faults.duplication).then(|| at + self.held_back());
        self.duplicated += u64::from(second.is_some());
        [Some(first), second].into_iter().flatten()
    }

    fn held_back(&mut self) -> u64 {
        if !self.rng.random_bool(self.faults.reordering) {
            return 0;
        }
        self.held_back += 1;
        self.rng.random_range(0..self.faults.held_back)
    }
}
