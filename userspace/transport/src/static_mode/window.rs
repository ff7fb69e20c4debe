//! The chunks that a static job holds back: for its congestion window, and for headers of the others.
//!
//! SwitchML has all slots in flight at all times. Beside TCP, which yields to marks and losses, such a job
//! takes the whole link. With congestion control a slot's next chunk waits until the window lets it go.
//!
//! | rule | reason |
//! | --- | --- |
//! | A chunk is sent for the first time when fewer chunks before it have no result than the window has. | a sum needs all workers, so all must hold back the same chunks; results, which all follow, say which ones |
//! | The first chunk without a result may always be sent. | workers with different windows so only wait: they never block each other |
//! | No worker halves its window before a result carries an echo. | all windows follow the same results, and stay alike |
//! | A worker whose contribution is missing at the aggregator sets the echo in its next new one, as after a mark on the last hop. | only that worker knows that it was its packet, or its copy of the result, that was lost; the others' queries show no loss of their own |
//!
//! In a broadcast or allgather one worker has all values of a chunk, and the others send headers
//! ([`flag::EMPTY`](sumac_wire::header::flag::EMPTY)), the last of which would be answered with a request for
//! zeros. That worker has a window of three quarters of the slots, by the same rules: headers for the last
//! quarter are on their way before its values.

use serde::{Deserialize, Serialize};
use sumac_wire::admit::payload_len;

use crate::{
    budget::FixedWindow,
    congestion::{CongestionWindow, initial_window},
    convert::Arithmetic,
    engine_core::{Budget, Core},
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

/// One part in so many of the slots: the chunks by which headers are ahead of another worker's values. With
/// half of the slots a broadcast took a third longer where they held no more than the path.
const HEADERS_PART: u32 = 4;

/// Whether a chunk of this operation waits for a window.
pub(super) fn holds_back(core: &Core, operation: u64, seq: u64) -> bool {
    core.params.congestion_control || waits_for_headers(core, operation, seq)
}

/// The chunks that may be without a result from a chunk of this operation back, with itself.
pub(super) fn of(core: &Core, operation: u64, seq: u64) -> usize {
    let slots = core.params.slots;
    let ahead = if waits_for_headers(core, operation, seq) { slots / HEADERS_PART } else { 0 };
    (slots - ahead) as usize
}

/// Whether this worker alone has the values of a chunk, and others send headers.
fn waits_for_headers(core: &Core, operation: u64, seq: u64) -> bool {
    let Some(pending) = core.stream.get(operation) else { return false };
    // Values are moved: those of a chunk are one worker's, and the others' are zeros.
    let is_moved = pending.operation.arithmetic == Arithmetic::Bits && core.has_headers(pending);
    is_moved && core.given(pending, seq) > 0
}

/// The window of a lane: all of its slots, or a congestion window within them.
pub(super) fn budget(params: &JobParams, tuning: &Tuning) -> Budget {
    let JobParams { slots, shards, elements, congestion_control, .. } = *params;
    if !congestion_control {
        return Budget::Fixed(FixedWindow(slots));
    }
    let usual = || initial_window(payload_len(elements), shards, slots);
    let initial = tuning.initial_window.unwrap_or_else(usual).clamp(1, slots);
    Budget::Congestion(CongestionWindow::new(initial, slots, shards))
}
