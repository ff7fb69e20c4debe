//! Tells the operator of packets that should not be, at most once in a while on each CPU.

use aya_ebpf::{helpers::bpf_ktime_get_ns, programs::XdpContext};
use aya_log_ebpf::warn;
use sumac_agg_layout::Event;
use sumac_wire::{Reason, bytes::Bytes, frame};

use crate::{maps::LIMITERS, packet::Packet};

/// Nanoseconds in which one event is reported once.
const WINDOW: u64 = 1_000_000_000;
/// Wrong tokens in a window that make a burst: a stray packet of an old run is no news.
const BURST: u64 = 16;

/// Looks whether a frame that ended in `reason` is worth a message.
///
/// After all is done, with pointers of its own into the frame: what only strangers' frames need shall not be
/// a way of its own through the rest.
///
/// `DYNAMIC` makes it another function for each of its callers: of one with two the compiler would put parts
/// of the messages' writing into functions of their own.
#[inline(always)]
pub fn tell<const DYNAMIC: bool>(ctx: &XdpContext, reason: Reason) {
    let event = match reason {
        Reason::UnknownJob => Event::UnknownJob,
        Reason::BadToken => Event::BadToken,
        _ => return,
    };
    let nth = nth(event);
    if nth != 1 && nth != BURST {
        return;
    }
    let packet = Packet::new(ctx);
    if packet.be64(frame::ETH_LEN - 8).is_none() {
        return;
    }
    let Some(headers) = packet.headers() else { return };
    let (job, epoch, from) = (headers.job(), headers.epoch(), headers.src_ip());
    if reason as u32 == Reason::UnknownJob as u32 {
        if nth == 1 {
            warn!(ctx, "rejected: no job {} here (epoch {}), asked for by {:i}", job, epoch, from);
        }
    } else if nth == BURST {
        warn!(
            ctx,
            "burst of bad tokens: {} within a second, the last for job {} from {:i}", BURST, job, from
        );
    }
}

/// Counts an event of this CPU's window and gives its number in it.
#[inline(always)]
pub fn nth(event: Event) -> u64 {
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
