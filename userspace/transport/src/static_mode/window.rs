//! The congestion window of a static job: the chunks that it holds back.
//!
//! SwitchML has all slots in flight at all times. Beside TCP, which yields to marks and losses, such a job takes the whole link. With
//! congestion control a slot's next chunk waits until the window lets it go.
//!
//! | rule | reason |
//! | --- | --- |
//! | A chunk is sent for the first time when fewer chunks before it have no result than the window has. | a sum needs all workers, so all must hold back the same chunks; results, which all follow, say which ones |
//! | The first chunk without a result may always be sent. | workers with different windows so only wait: they never block each other |
//! | No worker halves its window before a result carries an echo. | all windows follow the same results, and stay alike |
//! | A worker whose contribution is missing at the aggregator sets the echo in its next new one, as after a mark on the last hop. | only that worker knows that it was its packet, or its copy of the result, that was lost; the others' queries show no loss of their own |

use serde::{Deserialize, Serialize};
use sumac_wire::admit::payload_len;

use super::StaticMode;
use crate::{
    budget::{CongestionEvent, FixedWindow, SendingBudget},
    congestion::{CongestionWindow, initial_window},
    engine_core::Core,
    in_flight::ChunkState,
    params::{JobParams, Tuning},
};

/// The position in the stream of the chunks that are held back.
#[derive(Serialize, Deserialize)]
pub(super) struct HeldBack {
    /// The chunk after the latest that was let go.
    pub next: u64,
    /// The number of the operation that chunk belongs to.
    pub near: u64,
}

/// The window of a lane: all of its slots, or a congestion window within them.
pub(super) fn budget(params: &JobParams, tuning: &Tuning) -> Box<dyn SendingBudget> {
    let JobParams { slots, shards, elements, congestion_control, .. } = *params;
    if !congestion_control {
        return Box::new(FixedWindow(slots));
    }
    let usual = || initial_window(payload_len(elements), shards, slots);
    let initial = tuning.initial_window.unwrap_or_else(usual).clamp(1, slots);
    Box::new(CongestionWindow::new(initial, slots, shards))
}

impl StaticMode {
    /// The slot of the next chunk to send. Where none is ready, lets the first ones go that are held back, as far as the window has room,
    /// until one of them need not wait for its exponent.
    pub(super) fn let_go(&mut self, core: &mut Core) -> Option<usize> {
        while core.in_flight.next_to_send().is_none() {
            let seq = self.slots.next_idle()?;
            let operation = core.stream.find(seq, self.held.near)?;
            if !core.may_send(self.outstanding_before(core, seq)) {
                return None;
            }
            let slot = self.slots.pop_idle()?;
            self.make_ready(core, slot, operation);
            self.held = HeldBack { next: self.held.next.max(seq + 1), near: operation };
        }
        core.in_flight.next_to_send()
    }

    /// Chunks before `seq` without a result, if all idle slots have later ones.
    fn outstanding_before(&self, core: &Core, seq: u64) -> usize {
        let active = self.slots.active();
        // A slot that a loss has held up has earlier chunks than those in flight.
        if seq >= self.held.next {
            return active;
        }
        let records = (0..self.slots.pool().slots() as usize).map(|slot| core.in_flight.get(slot));
        records.filter(|record| record.state != ChunkState::Idle && record.seq < seq).count()
    }

    /// A mark on the path of a chunk or its result. Chunks without a result count as if they followed each other, since the
    /// window counts them and not their numbers.
    pub(super) fn congestion(&self, seq: u64) -> CongestionEvent {
        let next = self.held.next;
        let base = next.saturating_sub(self.slots.active() as u64);
        CongestionEvent { seq, base, next, lost: 0 }
    }
}
