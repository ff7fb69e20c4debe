//! The queues of a switch's port, one for each class: strict priority, and RED that drops what is not
//! ECN-capable (MLT section 5.2).

use std::collections::VecDeque;

use sumac_wire::tos::{CONTROL, DATA_CLASSES, SELECTORS, dropping_threshold, selector_of};

use crate::packet::{Packet, ecn};

/// The thresholds of a port, in bytes by class: beyond them ECN-capable packets are marked and others
/// dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Red {
    thresholds: [u64; SELECTORS],
}

impl Red {
    /// No thresholds: only full buffers drop.
    pub fn none() -> Red {
        Red { thresholds: [u64::MAX; SELECTORS] }
    }

    /// The thresholds that `sumac qos show` has for a port with this buffer.
    pub fn of_buffer(buffer: u32) -> Red {
        let threshold = |class: usize| match class as u8 {
            class if class < DATA_CLASSES => dropping_threshold(class, buffer).into(),
            _ => u64::MAX,
        };
        Red { thresholds: std::array::from_fn(threshold) }
    }
}

/// The result of one frame at its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    /// It was dropped by a full queue.
    Full,
    /// It was dropped beyond the threshold.
    Early,
    /// It waits. `is_first`: nothing else did.
    Queued { is_marked: bool, is_first: bool },
}

#[derive(Clone, Debug, Default)]
pub(crate) struct ClassQueues {
    queues: [VecDeque<(u64, Packet)>; SELECTORS],
    bytes: [u64; SELECTORS],
    frames: u64,
}

impl ClassQueues {
    pub fn frames(&self) -> u64 {
        self.frames
    }

    /// The data shares `buffer` bytes. Control packets have as many of their own: their queue is served
    /// first, and short.
    pub fn push(&mut self, len: u64, mut packet: Packet, buffer: u64, red: &Red) -> Admission {
        let class = usize::from(packet.class).min(SELECTORS - 1);
        let used = if class == usize::from(selector_of(CONTROL)) {
            self.bytes[class]
        } else {
            self.bytes[..usize::from(DATA_CLASSES)].iter().sum()
        };
        if used + len > buffer {
            return Admission::Full;
        }
        let is_beyond = self.bytes[class] > red.thresholds[class];
        if is_beyond && packet.ecn == ecn::NOT_CAPABLE {
            return Admission::Early;
        }
        let is_marked = is_beyond && packet.ecn == ecn::CAPABLE;
        if is_marked {
            packet.ecn = ecn::MARKED;
        }
        self.bytes[class] += len;
        self.frames += 1;
        self.queues[class].push_back((len, packet));
        Admission::Queued { is_marked, is_first: self.frames == 1 }
    }

    /// The next frame: the first of the highest class.
    pub fn pop(&mut self) -> Option<(u64, Packet)> {
        let class = (0..SELECTORS).rev().find(|class| !self.queues[*class].is_empty())?;
        let (len, packet) = self.queues[class].pop_front()?;
        self.bytes[class] -= len;
        self.frames -= 1;
        Some((len, packet))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{address::socket, packet::Body};

    fn packet(class: u8, ecn: u8) -> Packet {
        let (source, destination) = (socket(0), socket(1));
        Packet { source, destination, path: 0, class, ecn, body: Body::Sumac(Vec::new()) }
    }

    #[test]
    fn higher_classes_go_first_and_what_is_not_capable_is_dropped_first() {
        // Thresholds of 1,000 bytes for class 5 and 6,000 for class 0.
        let red = Red::of_buffer(12_000);
        let mut queues = ClassQueues::default();
        let push = |queues: &mut ClassQueues, class, ecn| queues.push(900, packet(class, ecn), 5_500, &red);
        let (waits, marked) = (
            Admission::Queued { is_marked: false, is_first: false },
            Admission::Queued { is_marked: true, is_first: false },
        );
        let table = [
            (0, ecn::NOT_CAPABLE, Admission::Queued { is_marked: false, is_first: true }),
            (5, ecn::NOT_CAPABLE, waits),
            (5, ecn::NOT_CAPABLE, waits),
            (5, ecn::NOT_CAPABLE, Admission::Early),
            (5, ecn::CAPABLE, marked),
            (0, ecn::NOT_CAPABLE, waits),
            (6, ecn::NOT_CAPABLE, waits),
            (0, ecn::CAPABLE, waits),
            (0, ecn::CAPABLE, Admission::Full),
            (6, ecn::NOT_CAPABLE, waits),
        ];
        for (case, (class, ecn, expected)) in table.into_iter().enumerate() {
            assert_eq!(push(&mut queues, class, ecn), expected, "packet {case}");
        }
        let order: Vec<(u8, u8)> =
            std::iter::from_fn(|| queues.pop()).map(|(_, packet)| (packet.class, packet.ecn)).collect();
        let (plain, capable) = (ecn::NOT_CAPABLE, ecn::CAPABLE);
        let expected = [
            (6, plain),
            (6, plain),
            (5, plain),
            (5, plain),
            (5, ecn::MARKED),
            (0, plain),
            (0, plain),
            (0, capable),
        ];
        assert_eq!(order, expected);
        assert_eq!((queues.frames(), queues.bytes), (0, [0; SELECTORS]));
    }
}
