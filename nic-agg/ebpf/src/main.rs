//! The aggregator in the kernel: SwitchML's switch as two XDP programs.
//!
//! | module | stage |
//! | --- | --- |
//! | [`packet`] | checked pointers into the frame |
//! | [`pipeline`] | parse, admit, hand on; gives one verdict and one reason |
//! | [`slot`] | the decision and what it does to the values, under the slot's lock |
//! | [`payload`] | the loops over elements |
//! | [`answer`] | turns the frame into a result or report |
//! | [`egress`] | addresses each worker's copy of a result |
//! | [`maps`] | all maps |
//! | [`events`] | rate limited messages to the operator |
//! | [`rehearsal`] | plays a job from one frame, to be measured |
#![no_std]
#![no_main]

mod answer;
mod egress;
mod events;
mod maps;
mod packet;
mod payload;
mod pipeline;
mod rehearsal;
mod slot;

use aya_ebpf::{bindings::xdp_action::XDP_PASS, macros::xdp, programs::XdpContext};

/// Aggregates what arrives at a port. Every frame leaves through here and is counted once.
#[xdp]
pub fn sumac_agg(ctx: XdpContext) -> u32 {
    let outcome = pipeline::run::<true>(&ctx);
    maps::count(outcome.reason);
    outcome.verdict
}

/// Addresses the copy of a result that is about to leave through a port of the broadcast.
#[xdp(map = "devmap")]
pub fn sumac_agg_out(ctx: XdpContext) -> u32 {
    let outcome = egress::run(&ctx);
    maps::count(outcome.reason);
    outcome.verdict
}

/// Makes each frame of a test run the next contribution of a job, and aggregates it. Never attached.
#[xdp]
pub fn sumac_agg_rehearsal(ctx: XdpContext) -> u32 {
    if !rehearsal::next(&ctx) {
        return XDP_PASS;
    }
    let outcome = pipeline::run::<false>(&ctx);
    maps::count(outcome.reason);
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
