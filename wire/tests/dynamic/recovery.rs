//! The recovery from a state once the network loses nothing any more.

use crate::model::State;
use crate::system::{Form, System};

impl System {
    /// Whether all chunks complete when workers send again what they miss, and everything arrives.
    pub fn recovers(&self, state: &State) -> bool {
        let mut state = state.clone();
        let done = (1 << self.chunks) - 1;
        self.end_renewal(&mut state);
        for _ in 0..4 * self.chunks {
            for worker in 0..self.workers() {
                for seq in state.have[worker].trailing_ones()..self.reached(&state, worker) {
                    self.send_again(&mut state, worker, seq);
                }
            }
            if state.is_wrong || state.have.iter().all(|have| *have == done) {
                break;
            }
        }
        !state.is_wrong && state.have.iter().all(|have| *have == done)
    }

    /// A renewal that has begun comes to its end.
    fn end_renewal(&self, state: &mut State) {
        if state.resume.is_none() {
            return;
        }
        for at in self.aggregators() {
            state.at(at).is_renewed = true;
        }
        for worker in
            (0..self.workers()).filter(|worker| state.renewed >> worker & 1 == 0).collect::<Vec<_>>()
        {
            self.renew_worker(state, worker);
        }
    }

    /// A worker sends again, past the slots' first packets, and everything arrives.
    fn send_again(&self, state: &mut State, worker: usize, seq: u32) {
        if state.have[worker] >> seq & 1 == 1 {
            return;
        }
        let received = state.have[worker].trailing_ones().min(seq);
        let form = if state.floats[worker] >> seq & 1 == 1 { Form::Floats } else { Form::Again };
        let mut sent = Some(self.packet(worker, seq, form, received, state.is_renewed(worker)));
        let hops = self.first_hop(worker).into_iter();
        let second = (self.two_levels && self.place(worker).2).then_some(None);
        for at in hops.chain(second) {
            sent = sent.and_then(|packet| self.aggregate(state.at(at), &packet));
        }
        if let Some(packet) = sent {
            self.at_host(state, &packet);
        }
        for have in state.have.iter_mut().filter(|_| state.complete >> seq & 1 == 1) {
            *have |= 1 << seq;
        }
        for floats in &mut state.floats {
            *floats |= state.asked & 1 << seq;
        }
    }
}
