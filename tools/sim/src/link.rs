//! One direction of a cable: a rate, a delay, a queue that ends somewhere and marks before it does, and whatever else may
//! happen to a frame.

use rand::Rng;
use rand_chacha::ChaCha8Rng;

use crate::{events::Nanos, packet::ecn};

/// What goes wrong on purpose. Probabilities per frame.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Faults {
    /// It never arrives.
    pub loss: f64,
    /// It arrives twice.
    pub duplication: f64,
    /// It is held back, so that others overtake it.
    pub reordering: f64,
    /// How long it is held back at most.
    pub held_back: Nanos,
}

/// What a direction of a cable is like.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkSpec {
    /// Bits per second.
    pub rate: u64,
    /// From the last bit's departure to its arrival.
    pub delay: Nanos,
    /// Bytes that may wait before the one that arrives; more are dropped.
    pub queue: u64,
    /// Bytes that may wait before ECN-capable packets are marked; `None`: never.
    pub mark: Option<u64>,
    /// What goes wrong besides.
    pub faults: Faults,
}

/// What became of the frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkCounters {
    /// Frames that left.
    pub frames: u64,
    /// Their bytes, gaps included.
    pub bytes: u64,
    /// Frames that found the queue full.
    pub dropped: u64,
    /// Frames that were lost on purpose.
    pub lost: u64,
    /// Frames that arrived twice.
    pub duplicated: u64,
    /// Frames that were held back.
    pub held_back: u64,
    /// Packets that were marked.
    pub marked: u64,
}

impl LinkCounters {
    /// Adds another direction's.
    pub fn merge(&mut self, other: &LinkCounters) {
        self.frames += other.frames;
        self.bytes += other.bytes;
        self.dropped += other.dropped;
        self.lost += other.lost;
        self.duplicated += other.duplicated;
        self.held_back += other.held_back;
        self.marked += other.marked;
    }
}

/// One direction of a cable.
#[derive(Clone, Debug)]
pub struct Link {
    /// What it is like.
    pub spec: LinkSpec,
    /// What it did.
    pub counters: LinkCounters,
    /// When all that waits has left.
    free: Nanos,
}

impl Link {
    /// An idle one.
    pub fn new(spec: LinkSpec) -> Link {
        Link { spec, counters: LinkCounters::default(), free: 0 }
    }

    /// Bytes that wait.
    pub fn backlog(&self, now: Nanos) -> u64 {
        let wait = u128::from(self.free.saturating_sub(now));
        (wait * u128::from(self.spec.rate) / 8_000_000_000) as u64
    }

    /// When no more than `bytes` will wait.
    pub fn drained_to(&self, bytes: u64) -> Nanos {
        self.free.saturating_sub(self.time(bytes))
    }

    fn time(&self, bytes: u64) -> Nanos {
        (u128::from(bytes) * 8_000_000_000 / u128::from(self.spec.rate)) as Nanos
    }

    /// A frame of `len` bytes is to leave: when it arrives, which may be never or twice. Marks it in `bits`.
    pub fn send(&mut self, now: Nanos, len: u64, bits: &mut u8, rng: &mut ChaCha8Rng) -> [Option<Nanos>; 2] {
        let backlog = self.backlog(now);
        if backlog + len > self.spec.queue {
            self.counters.dropped += 1;
            return [None, None];
        }
        if *bits == ecn::CAPABLE && self.spec.mark.is_some_and(|mark| backlog > mark) {
            *bits = ecn::MARKED;
            self.counters.marked += 1;
        }
        self.free = self.free.max(now) + self.time(len);
        self.counters.frames += 1;
        self.counters.bytes += len;
        let at = self.free + self.spec.delay;
        let Faults { loss, duplication, .. } = self.spec.faults;
        if loss > 0.0 && rng.random_bool(loss) {
            self.counters.lost += 1;
            return [None, None];
        }
        let first = at + self.held_back(rng);
        if duplication == 0.0 || !rng.random_bool(duplication) {
            return [Some(first), None];
        }
        self.counters.duplicated += 1;
        [Some(first), Some(at + self.held_back(rng))]
    }

    fn held_back(&mut self, rng: &mut ChaCha8Rng) -> Nanos {
        let Faults { reordering, held_back, .. } = self.spec.faults;
        if reordering == 0.0 || held_back == 0 || !rng.random_bool(reordering) {
            return 0;
        }
        self.counters.held_back += 1;
        rng.random_range(0..held_back)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;

    fn link() -> Link {
        let faults = Faults::default();
        Link::new(LinkSpec { rate: 8_000_000_000, delay: 100, queue: 3_000, mark: Some(1_000), faults })
    }

    #[test]
    fn frames_follow_one_another_are_marked_and_then_dropped() {
        let (mut link, mut rng) = (link(), ChaCha8Rng::seed_from_u64(0));
        let mut send = |link: &mut Link, now, bits: u8| {
            let mut bits = bits;
            (link.send(now, 1_000, &mut bits, &mut rng)[0], bits)
        };
        // A byte takes a nanosecond.
        assert_eq!(send(&mut link, 0, ecn::CAPABLE), (Some(1_100), ecn::CAPABLE));
        assert_eq!(send(&mut link, 0, ecn::CAPABLE), (Some(2_100), ecn::CAPABLE));
        assert_eq!(send(&mut link, 0, ecn::CAPABLE), (Some(3_100), ecn::MARKED));
        assert_eq!(send(&mut link, 0, ecn::CAPABLE).0, None, "the queue is full");
        assert_eq!((link.backlog(500), link.drained_to(1_000)), (2_500, 2_000));
        assert_eq!(send(&mut link, 1_500, ecn::NOT_CAPABLE), (Some(4_100), ecn::NOT_CAPABLE));
        assert_eq!(send(&mut link, 9_000, ecn::CAPABLE), (Some(10_100), ecn::CAPABLE), "idle again");
        let LinkCounters { frames, dropped, marked, .. } = link.counters;
        assert_eq!((frames, dropped, marked), (5, 1, 1));
    }

    #[test]
    fn faults_are_drawn() {
        let (mut link, mut rng) = (link(), ChaCha8Rng::seed_from_u64(7));
        link.spec.faults = Faults { loss: 0.1, duplication: 0.1, reordering: 0.1, held_back: 50 };
        let mut arrived = 0;
        for at in 0..10_000 {
            let arrivals = link.send(at * 1_000, 1_000, &mut 0, &mut rng);
            arrived += arrivals.iter().flatten().count() as u64;
        }
        let LinkCounters { frames, lost, duplicated, held_back, .. } = link.counters;
        assert_eq!(arrived, frames - lost + duplicated);
        for count in [lost, duplicated, held_back] {
            assert!((800..1_300).contains(&count), "{count}");
        }
    }
}
