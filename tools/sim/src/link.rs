//! One direction of a cable: a rate, a delay, a queue that marks and then drops, and injected faults. A
//! switch's port may have a queue for each class instead ([`ClassQueues`]).

use rand::Rng;
use rand_chacha::ChaCha8Rng;

use crate::{
    class_queues::{Admission, ClassQueues, Red},
    events::Nanos,
    packet::{Packet, ecn},
};

/// Injected faults; probabilities per frame.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Faults {
    pub loss: f64,
    pub duplication: f64,
    /// Probability that a frame is delayed, so that later frames overtake it.
    pub reordering: f64,
    /// Longest delay of such a frame.
    pub held_back: Nanos,
}

/// Parameters of one direction of a cable.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkSpec {
    /// Bits per second.
    pub rate: u64,
    /// Propagation delay.
    pub delay: Nanos,
    /// Capacity of the queue in bytes.
    pub queue: u64,
    /// Backlog in bytes above which ECN-capable packets are marked; `None`: never.
    pub mark: Option<u64>,
    /// Strict priority queues for classes, each with such thresholds, in place of one queue with a mark.
    pub classes: Option<Red>,
    pub faults: Faults,
}

impl LinkSpec {
    /// A direction whose queue never marks nor drops, without faults.
    pub const fn new(rate: u64, delay: Nanos) -> LinkSpec {
        let faults = Faults { loss: 0.0, duplication: 0.0, reordering: 0.0, held_back: 0 };
        LinkSpec { rate, delay, queue: u64::MAX, mark: None, classes: None, faults }
    }
}

/// Frames by fate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkCounters {
    /// Frames that were transmitted.
    pub frames: u64,
    /// Their bytes, with preambles and gaps.
    pub bytes: u64,
    /// Frames dropped by a full queue.
    pub dropped: u64,
    /// Frames dropped beyond a threshold because they were not ECN-capable.
    pub dropped_early: u64,
    /// Of the frames dropped by a full queue, those that were ECN-capable.
    pub dropped_capable: u64,
    /// Frames lost by an injected fault.
    pub lost: u64,
    /// Frames that were duplicated.
    pub duplicated: u64,
    pub held_back: u64,
    /// Packets marked by the queue.
    pub marked: u64,
}

impl LinkCounters {
    /// Adds the counters of another direction.
    pub fn merge(&mut self, other: &LinkCounters) {
        self.frames += other.frames;
        self.bytes += other.bytes;
        self.dropped += other.dropped;
        self.dropped_early += other.dropped_early;
        self.dropped_capable += other.dropped_capable;
        self.lost += other.lost;
        self.duplicated += other.duplicated;
        self.held_back += other.held_back;
        self.marked += other.marked;
    }
}

/// One direction of a cable.
#[derive(Clone, Debug)]
pub struct Link {
    pub spec: LinkSpec,
    pub counters: LinkCounters,
    /// Time at which the queue is empty; of a port with queues for classes, at which the frame in
    /// transmission has left.
    free: Nanos,
    queues: ClassQueues,
}

impl Link {
    pub fn new(spec: LinkSpec) -> Link {
        Link { spec, counters: LinkCounters::default(), free: 0, queues: ClassQueues::default() }
    }

    /// Bytes in the queue.
    pub fn backlog(&self, now: Nanos) -> u64 {
        let wait = u128::from(self.free.saturating_sub(now));
        (wait * u128::from(self.spec.rate) / 8_000_000_000) as u64
    }

    /// Time at which at most `bytes` are in the queue.
    pub fn drained_to(&self, bytes: u64) -> Nanos {
        self.free.saturating_sub(self.time(bytes))
    }

    fn time(&self, bytes: u64) -> Nanos {
        (u128::from(bytes) * 8_000_000_000 / u128::from(self.spec.rate)) as Nanos
    }

    /// Transmits a frame of `len` bytes; returns its arrivals, of which there may be none or two. `bits`: its
    /// ECN bits.
    pub fn send(&mut self, now: Nanos, len: u64, bits: &mut u8, rng: &mut ChaCha8Rng) -> [Option<Nanos>; 2] {
        let backlog = self.backlog(now);
        if backlog + len > self.spec.queue {
            self.count_full(*bits);
            return [None, None];
        }
        if *bits == ecn::CAPABLE && self.spec.mark.is_some_and(|mark| backlog > mark) {
            *bits = ecn::MARKED;
            self.counters.marked += 1;
        }
        self.transmit(now, len, rng)
    }

    /// Takes a frame into the queue of its class. Returns the time of the next [`Link::dequeue`], unless it
    /// was returned before.
    pub fn enqueue(&mut self, now: Nanos, len: u64, packet: Packet, red: &Red) -> Option<Nanos> {
        let bits = packet.ecn;
        match self.queues.push(len, packet, self.spec.queue, red) {
            Admission::Full => self.count_full(bits),
            Admission::Early => self.counters.dropped_early += 1,
            Admission::Queued { is_marked, is_first } => {
                self.counters.marked += u64::from(is_marked);
                return is_first.then(|| self.free.max(now));
            }
        }
        None
    }

    /// Transmits the first frame of the highest class. Returns it with its arrivals, and the time of the next
    /// call.
    pub fn dequeue(
        &mut self,
        now: Nanos,
        rng: &mut ChaCha8Rng,
    ) -> Option<(Packet, [Option<Nanos>; 2], Option<Nanos>)> {
        let (len, packet) = self.queues.pop()?;
        let arrivals = self.transmit(now, len, rng);
        Some((packet, arrivals, (self.queues.frames() > 0).then_some(self.free)))
    }

    /// Frames in the queues of classes.
    pub fn queued(&self) -> u64 {
        self.queues.frames()
    }

    fn count_full(&mut self, bits: u8) {
        self.counters.dropped += 1;
        self.counters.dropped_capable += u64::from(bits != ecn::NOT_CAPABLE);
    }

    /// Sends a frame after those before it.
    fn transmit(&mut self, now: Nanos, len: u64, rng: &mut ChaCha8Rng) -> [Option<Nanos>; 2] {
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
        Link::new(LinkSpec { queue: 3_000, mark: Some(1_000), ..LinkSpec::new(8_000_000_000, 100) })
    }

    #[test]
    fn a_growing_queue_marks_and_then_drops() {
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
    fn faults_occur_at_their_rates() {
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
