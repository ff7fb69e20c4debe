//! Drops frames on purpose, as a network would (the drop simulator of SwitchML, section 5).

use aya_ebpf::helpers::generated::bpf_get_prandom_u32;
use sumac_agg_layout::{Drops, Injected, State, state_flag};

use crate::maps::{DROPS, INJECTED};

/// Whether a frame of `job` that arrived is to be dropped. Counted when it is.
#[inline(always)]
pub fn on_arrival(state: &State, job: u16) -> bool {
    drawn(state, job, |drops| drops.up) && count(job, |injected| injected.up += 1)
}

/// The same for one that is about to leave.
#[inline(always)]
pub fn on_leaving(state: &State, job: u16) -> bool {
    drawn(state, job, |drops| drops.down) && count(job, |injected| injected.down += 1)
}

#[inline(always)]
fn drawn(state: &State, job: u16, part: impl Fn(&Drops) -> u32) -> bool {
    if state.flags & state_flag::DROPS == 0 {
        return false;
    }
    let Some(drops) = DROPS.get(u32::from(job)) else { return false };
    let part = part(drops);
    // SAFETY: the helper takes nothing.
    part != 0 && (unsafe { bpf_get_prandom_u32() } as u32) < part
}

#[inline(always)]
fn count(job: u16, change: impl Fn(&mut Injected)) -> bool {
    if let Some(injected) = INJECTED.get_ptr_mut(u32::from(job)) {
        // SAFETY: the pointer is to this CPU's value, and nothing else runs on it meanwhile.
        change(unsafe { &mut *injected });
    }
    true
}
