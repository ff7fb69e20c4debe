//! The aggregator in the kernel: SwitchML's switch as two XDP programs, and ATP's as a third behind the
//! first.
//!
//! | module | stage |
//! | --- | --- |
//! | `host_packet`, [`packet`] | checked pointers into the frame |
//! | [`pipeline`] | parse, admit, hand on; gives one verdict and one reason |
//! | [`outcome`] | verdict and reason of a frame |
//! | [`room`] | zeros for the last contribution without values |
//! | [`lock`] | one CPU at a time in a slot |
//! | [`slot`] | the decision and what it does to the values, under the slot's lock |
//! | [`flush`] | completion of a slot with the contributions that it has |
//! | [`plan`] | what a decision asks for, as bits |
//! | [`elements`] | the passes over elements |
//! | [`payload`] | the loop over those of the first page |
//! | [`copied`] | the elements of a jumbo frame, outside of it |
//! | [`answer`] | writes headers and addresses |
//! | [`send`] | makes the frame what it is to become, and sends it |
//! | [`dynamic`] | the dynamic mode, in programs of its own |
//! | [`work`] | what the stages hand to each other |
//! | [`egress`] | addresses each worker's copy of a result |
//! | [`own`] | ARP and ICMP for an address of its own |
//! | [`drops`] | drops on purpose |
//! | [`refused`] | the fate of refused frames |
//! | [`times`] | how long chunks take, and who keeps them waiting |
//! | [`maps`] | all maps |
//! | [`events`] | rate limited messages to the operator |
//! | `replay` | plays a job from one frame, to be measured: a feature |
#![no_std]
#![no_main]
#![feature(asm_experimental_arch, core_intrinsics)]
#![allow(internal_features, reason = "the target has no atomics in core::sync, only as intrinsics")]

mod answer;
mod copied;
mod drops;
mod dynamic;
mod egress;
mod elements;
mod events;
mod flush;
#[path = "../../../xdp-prog/src/packet.rs"]
mod host_packet;
mod lock;
mod maps;
mod outcome;
mod own;
mod packet;
mod paths;
mod payload;
mod pipeline;
mod plan;
mod refused;
#[cfg(feature = "replay")]
mod replay;
mod room;
mod send;
mod slot;
mod times;
mod work;

use aya_ebpf::{bindings::xdp_action::XDP_PASS, macros::xdp, programs::XdpContext};

/// Aggregates what arrives at a port. Every frame leaves through here and is counted once.
#[xdp]
#[inline(always)]
pub fn sumac_agg(ctx: XdpContext) -> u32 {
    let outcome = pipeline::run::<false>(&ctx);
    maps::count(outcome.reason, outcome.job);
    events::tell::<false>(&ctx, outcome.reason);
    refused::verdict(&ctx, outcome.verdict)
}

/// The same for frames of several buffers (Linux 5.18), where a port's MTU is larger than a page.
#[xdp(frags)]
#[inline(always)]
pub fn sumac_agg_jumbo(ctx: XdpContext) -> u32 {
    let verdict = counted(pipeline::run::<true>(&ctx));
    refused::verdict(&ctx, verdict)
}

/// Takes the packets of dynamic jobs, which [`sumac_agg`] hands on.
#[xdp]
#[inline(always)]
pub fn sumac_agg_atp(ctx: XdpContext) -> u32 {
    let outcome = dynamic::run::<false>(&ctx);
    maps::count(outcome.reason, outcome.job);
    events::tell::<true>(&ctx, outcome.reason);
    refused::verdict(&ctx, outcome.verdict)
}

/// The same for frames of several buffers.
#[xdp(frags)]
#[inline(always)]
pub fn sumac_agg_atp_jumbo(ctx: XdpContext) -> u32 {
    let verdict = counted(dynamic::run::<true>(&ctx));
    refused::verdict(&ctx, verdict)
}

/// Addresses the copy of a result that is about to leave through a port of the broadcast.
#[xdp(map = "devmap")]
#[inline(always)]
pub fn sumac_agg_out(ctx: XdpContext) -> u32 {
    egress::run(&ctx).map_or(XDP_PASS, counted)
}

/// The same for frames of several buffers.
#[xdp(frags, map = "devmap")]
#[inline(always)]
pub fn sumac_agg_out_jumbo(ctx: XdpContext) -> u32 {
    egress::run(&ctx).map_or(XDP_PASS, counted)
}

#[inline(always)]
fn counted(outcome: outcome::Outcome) -> u32 {
    maps::count(outcome.reason, outcome.job);
    outcome.verdict
}

/// Licence of the programs, as the kernel wants it for its helpers: Apache-2.0 is offered as well.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // Nothing here panics; the verifier would refuse the endless loop that a panic compiles to.
    loop {}
}
