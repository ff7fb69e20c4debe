//! Messages for the operator about packets that somebody sends on purpose or by a stale setting, at most one
//! a second for each kind and CPU.

use aya_ebpf::{helpers::bpf_ktime_get_ns, programs::XdpContext};
use aya_log_ebpf::warn;
use sumac_wire::{Header, Reason};

use crate::maps::QUIET;

/// Nanoseconds between two messages of one kind from one CPU.
const INTERVAL: u64 = 1_000_000_000;

/// Says that a packet was refused because of who sent it, if nothing was said lately.
///
/// Each message counts the frames that it stands for, so that a burst shows as a number.
#[inline(always)]
pub fn refused(ctx: &XdpContext, reason: Reason, header: &Header, src_ip: u32) {
    let kind = match reason {
        Reason::BadToken => 0,
        Reason::WrongSource => 1,
        Reason::UnknownJob => 2,
        _ => return,
    };
    let Some(frames) = due(kind) else { return };
    let job = header.job;
    match kind {
        0 => warn!(ctx, "job {}: {} packet(s) with a wrong token, the last from {:i}", job, frames, src_ip),
        1 => warn!(ctx, "job {}: {} packet(s) from a stranger, the last from {:i}", job, frames, src_ip),
        _ => warn!(
            ctx,
            "job {}: {} packet(s) for a job that is not here, the last from {:i}", job, frames, src_ip
        ),
    }
}

/// Frames since the last message of this kind, when the next one is due.
#[inline(always)]
fn due(kind: u32) -> Option<u64> {
    let quiet = QUIET.get_ptr_mut(kind)?;
    // SAFETY: this CPU's own live entry; XDP does not interrupt itself on one CPU.
    let quiet = unsafe { &mut *quiet };
    quiet.silent += 1;
    // SAFETY: the helper only reads the clock.
    let now = unsafe { bpf_ktime_get_ns() };
    if now < quiet.until {
        return None;
    }
    let frames = quiet.silent;
    quiet.until = now + INTERVAL;
    quiet.silent = 0;
    Some(frames)
}
