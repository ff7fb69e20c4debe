//! What an answer says about the path, and about packets that were sent before the one that it answers.

use super::core::Core;
use crate::{
    slots::{Slot, State},
    time::Time,
    timer,
};

impl Core {
    /// An answer for a chunk of this operation: all workers have begun it, and those before it. Its other chunks in
    /// flight may be lost from now on, and not only early.
    fn begin(&mut self, now: Time, op: u64) {
        if op < self.begun {
            return;
        }
        self.begun = op + 1;
        // Packets that were sent later but belong to an operation before say nothing of these: where there are any, only
        // what is sent from now on does.
        let latest = self.later.latest().max(self.slots.latest_sure());
        let is_first = |first: &Slot| first.index > latest;
        let anew = !self.slots.first_unsure().is_some_and(|(_, first)| is_first(first));
        // All of them: those that were asked about in a silence stand behind later operations'.
        let mut next = self.slots.first_unsure().map(|(slot, first)| (slot, first.op));
        while let Some((slot, its)) = next {
            next = self.slots.next_of(slot).map(|(slot, entry)| (slot, entry.op));
            if its <= op {
                self.slots.make_sure(slot, anew.then_some((now, self.next_index - 1)));
            }
        }
    }

    /// What the answer says about the path, and about packets sent before the one it answers; of these, the latest chunk whose
    /// packet is taken for lost.
    ///
    /// A result echoes the clock of the packet that completed its slot, or asked for it again. `echo`
    /// being this worker's own, nobody was waited for: the time is the path's. Else the answer may be
    /// as late as the slowest worker, or as another's recovery from a loss; it counts only when it
    /// is no later than usual, or a loss anywhere would lengthen everybody's timeouts.
    pub fn learn(&mut self, now: Time, answered: &Slot, echo: u32) -> Option<u64> {
        self.begin(now, answered.op);
        self.stats.suspects_spared += u64::from(answered.state == State::Lost);
        self.silence.end(now);
        let rtt = now.since(answered.sent);
        let own = echo == answered.sent.stamp() && !answered.questioned;
        let once = !answered.resent && answered.state != State::Lost;
        let delayed = self.silence.delayed(answered.sent);
        if once {
            self.stats.round_trips.record(rtt);
        }
        if own || once && !delayed && self.rtt.is_usual(rtt) {
            self.rtt.sample(rtt, answered.index, self.next_index);
            self.backoff.reset();
        } else if !once {
            self.backoff.keep(answered.level);
        }
        if !once && !own {
            // Nobody knows which transmission was answered: no sure sign of order.
            if !delayed || self.rtt.is_likely(rtt) {
                self.later.note_again(answered.index);
            }
            return None;
        }
        self.later.note(answered.index);
        self.lose_outrun()
    }

    /// Takes the packets for lost that enough later ones were answered before; gives the latest chunk among them.
    fn lose_outrun(&mut self) -> Option<u64> {
        let mut latest = None;
        while let Some((slot, threshold)) = timer::oldest(&self.slots) {
            if !self.later.outrun(threshold) {
                break;
            }
            latest = latest.max(Some(self.slots.get(slot).seq));
            self.slots.lose(slot, false);
            self.stats.suspects_fast += 1;
        }
        latest
    }
}
