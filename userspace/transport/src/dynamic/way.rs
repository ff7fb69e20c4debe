//! Whether packets go by the aggregator, or straight to the parameter host because they do not get there by it (fate sharing):
//! a dynamic job outlives its aggregator.
//!
//! Aggregators pass probes on, and the parameter host answers them. So an answer shows that the whole way is there, and
//! silence does not tell who is silent: after an unanswered probe the parameter host is asked straight as well, and only when
//! it answers that way is the aggregator, or what is behind it, to blame.

use crate::time::Time;

/// Unanswered probes in a row after which an aggregator counts as gone, once they took as long as [`PATIENCE`].
const PROBES: u32 = 3;
/// Nanoseconds that a silence must last: an aggregator's program may be exchanged, or its host be busy.
const PATIENCE: u64 = 100_000_000;
/// Nanoseconds between the first probes.
const FIRST_PAUSE: u64 = 40_000_000;
/// Nanoseconds between probes of an aggregator that is passed.
const PAUSE: u64 = 100_000_000;

/// What is known of the aggregator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// There is none.
    None,
    /// It has not answered yet.
    Joining,
    /// Packets go by it.
    Through,
    /// Packets pass it.
    Direct,
}

/// The way of a lane's packets.
#[derive(Debug)]
pub(crate) struct Way {
    state: State,
    /// Whether packets of full size get there and back.
    carries_chunks: bool,
    /// Probes that were not answered, and when the first of them was sent.
    unanswered: u32,
    since: Time,
    /// Whether a probe is to be sent.
    asks: bool,
    /// Whether one is to be sent straight to the parameter host.
    asks_host: bool,
    /// Whether the parameter host has answered since it was last to be asked.
    host_answered: bool,
    /// When the next one is due.
    due: Option<Time>,
    /// The number of the next.
    number: u32,
}

impl Way {
    /// Of a job that has an aggregator, or none.
    pub fn new(has_aggregator: bool) -> Way {
        Way {
            state: if has_aggregator { State::Joining } else { State::None },
            carries_chunks: false,
            unanswered: 0,
            since: Time(0),
            asks: has_aggregator,
            asks_host: false,
            host_answered: false,
            due: None,
            number: 0,
        }
    }

    /// Whether it is known which way packets go.
    pub fn is_settled(&self) -> bool {
        self.state != State::Joining
    }

    /// Whether packets pass the aggregator.
    pub fn is_direct(&self) -> bool {
        matches!(self.state, State::None | State::Direct)
    }

    /// The next probe to send by the aggregator: its number, and whether it is as long as a chunk.
    pub fn poll(&mut self, now: Time) -> Option<(u32, bool)> {
        if !std::mem::take(&mut self.asks) {
            return None;
        }
        if self.unanswered == 0 {
            self.since = now;
        }
        self.unanswered += 1;
        self.due = match self.state {
            State::Joining => Some(now.plus(FIRST_PAUSE)),
            State::Direct => Some(now.plus(PAUSE)),
            State::None | State::Through => None,
        };
        let number = self.number;
        // The upper half of the numbers is the parameter host's probes'.
        self.number = (number + 1) & (u32::MAX >> 1);
        Some((number, !self.carries_chunks))
    }

    /// The number of the probe to send straight to the parameter host, if one is to be sent.
    pub fn poll_host(&mut self) -> Option<u32> {
        std::mem::take(&mut self.asks_host).then_some(self.number)
    }

    /// When [`Way::on_timeout`] wants to be called.
    pub fn deadline(&self) -> Option<Time> {
        self.due
    }

    /// Asks again when that is due; says whether packets pass the aggregator from now on.
    pub fn on_timeout(&mut self, now: Time) -> bool {
        match self.due {
            Some(due) if due <= now => self.ask(now),
            _ => false,
        }
    }

    /// Nothing has come back for long: asks whether anything gets through by the aggregator. Says whether packets pass it from
    /// now on.
    pub fn ask(&mut self, now: Time) -> bool {
        if self.state == State::None {
            return false;
        }
        self.asks = true;
        self.due = None;
        if self.state == State::Direct {
            return false;
        }
        let is_silent = self.unanswered >= PROBES && now.since(self.since) >= PATIENCE;
        let gives_up = is_silent && self.host_answered;
        if gives_up {
            self.state = State::Direct;
        }
        // Whatever is asked takes the place of chunks, which may be what does not get through: no more than must be.
        let is_suspect = self.unanswered > 0 && !gives_up;
        (self.asks_host, self.host_answered) = (is_suspect, false);
        gives_up
    }

    /// The parameter host has answered a probe that went straight to it.
    pub fn on_host_report(&mut self) {
        self.host_answered = true;
    }

    /// A result came, of a chunk that went by the aggregator or not.
    pub fn on_result(&mut self) {
        if self.state == State::Through {
            self.unanswered = 0;
        }
    }

    /// A probe that went by the aggregator was answered, as long as a chunk or not.
    pub fn on_report(&mut self, is_long: bool) {
        if self.state == State::None {
            return;
        }
        self.carries_chunks |= is_long;
        self.unanswered = 0;
        if self.carries_chunks {
            self.state = State::Through;
            (self.asks, self.asks_host, self.due) = (false, false, None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Lets time pass to the deadlines until `end`, with a parameter host that answers at once; gives the probes that are sent by
    /// the aggregator.
    fn run(way: &mut Way, from: Time, end: Time) -> Vec<(u64, bool)> {
        let (mut now, mut sent) = (from, Vec::new());
        loop {
            sent.extend(way.poll(now).map(|(_, is_long)| (now.0 / MS, is_long)));
            way.poll_host().into_iter().for_each(|_| way.on_host_report());
            match way.deadline().filter(|due| *due <= end) {
                Some(due) => now = due,
                None => return sent,
            }
            way.on_timeout(now);
        }
    }

    #[test]
    fn an_aggregator_that_never_answers_is_passed() {
        let mut way = Way::new(true);
        assert_eq!(run(&mut way, Time(0), Time(119 * MS)), [(0, true), (40, true), (80, true)]);
        assert!(!way.is_settled());
        assert_eq!(way.deadline(), Some(Time(120 * MS)));
        assert!(way.on_timeout(Time(120 * MS)) && way.is_settled() && way.is_direct());
        assert_eq!(run(&mut way, Time(120 * MS), Time(330 * MS)), [(120, true), (220, true), (320, true)]);
        way.on_report(true);
        assert!(!way.is_direct());
        assert_eq!((way.poll(Time(400 * MS)), way.deadline()), (None, None), "it is not asked for nothing");
    }

    #[test]
    fn silence_alone_is_not_enough() {
        let mut way = Way::new(true);
        way.poll(Time(0));
        way.on_report(true);
        assert_eq!(way.poll_host(), None);
        let mut silence = |from: u64| {
            let mut after = from;
            (0..10).any(|round| {
                after = from + (MS << round);
                let is_gone = way.ask(Time(after));
                let (_, is_long) = way.poll(Time(after)).expect("a probe");
                assert!(!is_long, "chunks have got through before");
                way.poll_host().into_iter().for_each(|_| way.on_host_report());
                is_gone
            });
            (after - from) / MS
        };
        assert_eq!(silence(5), 128, "three probes are too few as long as they took less than 100 ms");
        assert!(way.is_direct());
        way.on_report(false);
        assert!(!way.is_direct());
        (0..5).for_each(|at| {
            assert!(!way.ask(Time(at * 60 * MS)));
            way.poll(Time(at * 60 * MS));
            way.on_result();
        });
    }

    #[test]
    fn the_aggregator_is_not_blamed_for_a_silent_parameter_host() {
        let mut way = Way::new(true);
        way.poll(Time(0));
        way.on_report(true);
        let ask = |way: &mut Way, at: u64, answers: bool| {
            let is_gone = way.ask(Time(at * MS));
            way.poll(Time(at * MS));
            assert_eq!(way.poll_host().is_some(), !is_gone && at > 0, "at {at}");
            if answers {
                way.on_host_report();
            }
            is_gone
        };
        for at in 0..20 {
            assert!(!ask(&mut way, at * 50, at < 2), "at {at}: what it answered before says nothing of now");
        }
        assert!(!ask(&mut way, 1000, true) && ask(&mut way, 1050, false) && way.is_direct());
        assert_eq!(way.poll_host(), None, "packets go there");
    }

    #[test]
    fn a_path_that_drops_long_packets_is_none() {
        let mut way = Way::new(true);
        way.poll(Time(0));
        way.on_report(false);
        assert!(!way.is_settled());
    }

    #[test]
    fn without_an_aggregator_nobody_is_asked() {
        let mut way = Way::new(false);
        assert!(way.is_direct() && way.is_settled());
        assert_eq!((way.ask(Time(5)), way.poll(Time(5)), way.deadline()), (false, None, None));
        way.on_report(true);
        assert!(way.is_direct(), "whoever says so");
    }
}
