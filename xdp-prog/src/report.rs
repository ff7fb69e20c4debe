//! Messages for the operator about spoofed or misdirected packets, at most one a second for each kind and
//! CPU.

use aya_ebpf::{helpers::bpf_ktime_get_ns, programs::XdpContext};
use aya_log_ebpf::warn;
use sumac_wire::{Header, Reason};

use crate::maps::LIMITERS;

/// Nanoseconds between two messages of one kind from one CPU.
const INTERVAL: u64 = 1_000_000_000;

/// Reports a packet that was refused for its sender or job, unless the rate limiter suppresses the message.
///
/// Each message has the number of frames since the last one.
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
        1 => warn!(ctx, "job {}: {} packet(s) from another source, the last from {:i}", job, frames, src_ip),
        _ => warn!(ctx, "job {}: {} packet(s) for an unknown job, the last from {:i}", job, frames, src_ip),
    }
}

/// Returns the frames since the last message of this kind, if the next one is due.
#[inline(always)]
fn due(kind: u32) -> Option<u64> {
    let limiter = LIMITERS.get_ptr_mut(kind)?;
    // SAFETY: this CPU's own live entry; XDP does not interrupt itself on one CPU.
    let limiter = unsafe { &mut *limiter };
    limiter.suppressed += 1;
    // SAFETY: the helper reads the clock.
    let now = unsafe { bpf_ktime_get_ns() };
    if now < limiter.next {
        return None;
    }
    let frames = limiter.suppressed;
    limiter.next = now + INTERVAL;
    limiter.suppressed = 0;
    Some(frames)
}
