//! Tells the operator of packets that should not be, at most once in a while on each CPU.

use aya_ebpf::{helpers::bpf_ktime_get_ns, programs::XdpContext};
use aya_log_ebpf::warn;
use sumac_agg_layout::Event;
use sumac_wire::{Header, Reason};

use crate::maps::LIMITERS;

/// Nanoseconds in which one event is told once.
const WINDOW: u64 = 1_000_000_000;
/// Wrong tokens in a window that make a burst: a stray packet of an old run is no news.
const BURST: u64 = 16;

/// Looks whether a refused packet is worth a message.
#[inline(always)]
pub fn refused(ctx: &XdpContext, reason: Reason, header: &Header, src_ip: u32) {
    match reason {
        Reason::UnknownJob if nth(Event::UnknownJob) == 1 => {
            warn!(
                ctx,
                "rejected: no job {} here (epoch {}), asked for by {:i}", header.job, header.epoch, src_ip
            );
        }
        Reason::BadToken if nth(Event::BadToken) == BURST => {
            warn!(
                ctx,
                "burst of bad tokens: {} within a second, the last for job {} from {:i}",
                BURST,
                header.job,
                src_ip
            );
        }
        _ => {}
    }
}

/// Counts an event of this CPU's window and gives its number in it.
#[inline(always)]
fn nth(event: Event) -> u64 {
    let Some(limiter) = LIMITERS.get_ptr_mut(event as u32) else { return 0 };
    // SAFETY: the pointer is to this CPU's value, and nothing else runs on it meanwhile.
    let limiter = unsafe { &mut *limiter };
    // SAFETY: the helper takes nothing and reads the clock.
    let now = unsafe { bpf_ktime_get_ns() };
    if now.wrapping_sub(limiter.began) >= WINDOW {
        limiter.began = now;
        limiter.events = 0;
    }
    limiter.events += 1;
    limiter.events
}
