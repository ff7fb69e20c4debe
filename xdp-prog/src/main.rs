//! The XDP program of a worker's host.
//!
//! It steers the results of the host's jobs into the AF_XDP socket of the queue on which they arrive, drops what
//! claims to be a result and is not, and lets everything else go on as if it were not there.
//!
//! | module | what it does |
//! | --- | --- |
//! | [`packet`] | the packet's bytes behind the verifier's checks |
//! | [`classify`] | whose frame it is, and whether it may go in |
//! | [`checksum`] | the UDP checksum over the payload |
//! | [`maps`] | what user space tells the program, and what it tells back |
//! | [`report`] | messages for the operator, rate limited |
#![no_std]
#![no_main]

mod checksum;
mod classify;
mod maps;
mod packet;
mod report;

use aya_ebpf::{bindings::xdp_action, macros::xdp, programs::XdpContext};
use sumac_wire::{Reason, tables::QueueCounters};

use crate::{
    maps::{COUNTERS, QUEUES, SOCKETS},
    packet::Packet,
};

/// Looks at one frame. Every frame leaves through [`leave`], which counts it.
#[xdp]
pub fn sumac_host(ctx: XdpContext) -> u32 {
    look::<false>(&ctx, &Packet::new(&ctx))
}

/// The same for frames of several buffers (Linux 5.18), where the MTU is larger than a page.
#[xdp(frags)]
pub fn sumac_host_jumbo(ctx: XdpContext) -> u32 {
    look::<true>(&ctx, &Packet::jumbo(&ctx))
}

#[inline(always)]
fn look<const JUMBO: bool>(ctx: &XdpContext, packet: &Packet) -> u32 {
    let queue = ctx.rx_queue_index();
    let reason = match classify::classify::<JUMBO>(ctx, packet) {
        Ok(()) => steer(queue),
        Err(reason) => reason,
    };
    leave(queue, reason)
}

/// Chooses the queue's socket. Without one (no daemon, or a queue that was left out) the kernel has the packet.
#[inline(always)]
fn steer(queue: u32) -> Reason {
    match SOCKETS.redirect(queue, u64::from(xdp_action::XDP_PASS)) {
        Ok(_) => Reason::Steered,
        Err(_) => Reason::NoSocket,
    }
}

/// The only exit: counts the frame, and turns its reason into the kernel's verdict.
#[inline(always)]
fn leave(queue: u32, reason: Reason) -> u32 {
    if let Some(counter) = COUNTERS.get_ptr_mut(reason as u32) {
        // SAFETY: a live entry of this CPU's own array; XDP does not interrupt itself on one CPU.
        unsafe { *counter += 1 };
    }
    let counters = QUEUES.get_ptr_mut(queue);
    match reason {
        Reason::Foreign => {
            count(counters, |queue| &mut queue.foreign);
            xdp_action::XDP_PASS
        }
        Reason::NoSocket => {
            count(counters, |queue| &mut queue.no_socket);
            xdp_action::XDP_PASS
        }
        Reason::Steered => {
            count(counters, |queue| &mut queue.steered);
            xdp_action::XDP_REDIRECT
        }
        _ => {
            count(counters, |queue| &mut queue.refused);
            xdp_action::XDP_DROP
        }
    }
}

/// Adds one to a counter of the queue. Queues beyond the table are steered (never, for want of a socket) uncounted.
#[inline(always)]
fn count(queue: Option<*mut QueueCounters>, field: impl FnOnce(&mut QueueCounters) -> &mut u64) {
    if let Some(queue) = queue {
        // SAFETY: as in `leave`: this CPU's own live entry, and nobody else borrows it meanwhile.
        *field(unsafe { &mut *queue }) += 1;
    }
}

/// Required by `no_std`; the program has no path that panics, the linker removes this.
#[cfg(not(test))]
#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}

/// Lets the program use every helper of the kernel.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
