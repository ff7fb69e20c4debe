//! The congestion window of a static job: the chunks that it holds back.
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

use serde::{Deserialize, Serialize};
use sumac_wire::admit::payload_len;

use crate::{
    budget::FixedWindow,
    congestion::{CongestionWindow, initial_window},
    engine_core::Budget,
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
pub(super) fn budget(params: &JobParams, tuning: &Tuning) -> Budget {
    let JobParams { slots, shards, elements, congestion_control, .. } = *params;
    if !congestion_control {
        return Budget::Fixed(FixedWindow(slots));
    }
    let usual = || initial_window(payload_len(elements), shards, slots);
    let initial = tuning.initial_window.unwrap_or_else(usual).clamp(1, slots);
    Budget::Congestion(CongestionWindow::new(initial, slots, shards))
}
