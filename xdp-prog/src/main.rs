//! The XDP program of a worker's host.
//!
//! It redirects the results of the host's jobs to the AF_XDP socket of their receive queue, drops invalid
//! packets of these jobs, and passes everything else to the kernel unchanged, also results of a job over UDP.
//!
//! | module | content |
//! | --- | --- |
//! | [`packet`], [`headers`] | the packet's bytes and headers, with the verifier's checks |
//! | [`classify`] | classification of a frame |
//! | [`checksum`] | the UDP checksum over the payload |
//! | [`maps`] | the maps |
//! | [`report`] | messages for the operator, with a rate limit |
#![no_std]
#![no_main]

mod checksum;
mod classify;
mod headers;
mod maps;
mod packet;
mod report;

use aya_ebpf::{bindings::xdp_action, macros::xdp, programs::XdpContext};
use sumac_wire::{Reason, tables::QueueCounters};

use crate::{
    maps::{COUNTERS, QUEUES, SOCKETS},
    packet::Packet,
};

/// Handles one frame. Every frame leaves through [`leave`], which counts it.
#[xdp]
pub fn sumac_host(ctx: XdpContext) -> u32 {
    handle::<false>(&ctx, &Packet::new(&ctx))
}

/// Handles one frame that may have several buffers (Linux 5.18), for an MTU above a page.
#[xdp(frags)]
pub fn sumac_host_jumbo(ctx: XdpContext) -> u32 {
    handle::<true>(&ctx, &Packet::jumbo(&ctx))
}

#[inline(always)]
fn handle<const JUMBO: bool>(ctx: &XdpContext, packet: &Packet) -> u32 {
    let queue = ctx.rx_queue_index();
    let reason = match classify::classify::<JUMBO>(ctx, packet) {
        Ok(()) => steer(queue),
        Err(reason) => reason,
    };
    leave(queue, reason)
}

/// Redirects to the queue's socket. Without one (no daemon, or a queue that was not selected) the kernel gets
/// the packet.
#[inline(always)]
fn steer(queue: u32) -> Reason {
    match SOCKETS.redirect(queue, u64::from(xdp_action::XDP_PASS)) {
        Ok(_) => Reason::Steered,
        Err(_) => Reason::NoSocket,
    }
}

/// The only exit: counts the frame, and returns the kernel's verdict for its reason.
#[inline(always)]
fn leave(queue: u32, reason: Reason) -> u32 {
    if let Some(counter) = COUNTERS.get_ptr_mut(reason as u32) {
        // SAFETY: a live entry of this CPU's array; XDP does not interrupt itself on one CPU.
        unsafe { *counter += 1 };
    }
    let counters = QUEUES.get_ptr_mut(queue);
    match reason {
        Reason::NoSocket => {
            count(counters, |queue| &mut queue.no_socket);
            xdp_action::XDP_PASS
        }
        reason if reason.is_for_kernel() => {
            count(counters, |queue| &mut queue.foreign);
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

/// Adds one to a counter of the queue. Queues beyond the table, which have no socket, are not counted.
#[inline(always)]
fn count(queue: Option<*mut QueueCounters>, field: impl FnOnce(&mut QueueCounters) -> &mut u64) {
    if let Some(queue) = queue {
        // SAFETY: as in `leave`: a live entry of this CPU, which is not borrowed elsewhere.
        *field(unsafe { &mut *queue }) += 1;
    }
}

/// Required by `no_std`. No path of the program panics, and the linker removes it.
#[cfg(not(test))]
#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}

/// The licence that permits every helper of the kernel.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
