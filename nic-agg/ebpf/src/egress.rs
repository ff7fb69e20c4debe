//! Addresses each worker's copy of a result, on the way out of the port that the worker is behind.
//!
//! The broadcast makes a copy for every port of the aggregator; what is not for the job dies here. Frames for
//! one receiver come by here too (see [`crate::send::out_of`]), and go on as they are.

use aya_ebpf::{
    bindings::xdp_action::{XDP_DROP, XDP_PASS},
    programs::XdpContext,
};
use sumac_wire::{
    Reason,
    bytes::Bytes,
    frame,
    header::offset,
    tables::{EgressKey, worker_index},
};

use crate::{
    answer::{self, Addresses},
    drops,
    maps::{EGRESS, STATE, WORKERS},
    outcome::Outcome,
    packet::{Headers, Packet},
    paths::{self, Avoided},
};

/// The destination MAC of a frame that the broadcast is to copy: no receiver's.
pub const COPY: [u8; 6] = [0; 6];

/// The fate of a frame; `None`: it was for one receiver, and was counted when it was made.
#[inline(always)]
pub fn run(ctx: &XdpContext) -> Option<Outcome> {
    let packet = Packet::new(ctx);
    if packet.be64(0)? >> 16 != 0 {
        return None;
    }
    Some(match copy(ctx) {
        Ok(job) => Outcome { reason: Reason::Sent, verdict: XDP_PASS, job },
        Err(reason) => Outcome::new(reason, XDP_DROP),
    })
}

#[inline(always)]
fn copy(ctx: &XdpContext) -> Result<u16, Reason> {
    // Only results are marked so, which `sumac_agg` has checked before it sent them.
    let packet = Packet::new(ctx);
    packet.be64(frame::ETH_LEN - 8).ok_or(Reason::Internal)?;
    let headers = packet.headers().ok_or(Reason::Internal)?;
    let job = u16::from_be(headers.get(Headers::SUMAC + offset::JOB));
    // SAFETY: the context of a program on a device map has the egress port's index.
    let ifindex = unsafe { (*ctx.ctx).egress_ifindex };
    let key = EgressKey { job: u32::from(job), ifindex };
    // SAFETY: the value is read once; a torn rank cannot be, it is one word.
    let rank = unsafe { EGRESS.get(key) }.ok_or(Reason::NotForPort)?;
    let index = worker_index(job, *rank as u16);
    let worker = WORKERS.get(index).ok_or(Reason::Internal)?;
    let state = STATE.get(0).ok_or(Reason::Internal)?;
    if drops::on_leaving(state, job) {
        return Err(Reason::Injected);
    }
    let shard = u16::from_be(headers.get(Headers::UDP)).wrapping_sub(state.base_port);
    headers.set_macs(worker.mac, worker.aggregator_mac);
    let to = Addresses::to(worker, state.base_port, shard);
    let avoided = Avoided::of(worker, index, headers.lane());
    answer::readdress(headers, paths::of_result(to, worker, avoided, headers.seq()));
    Ok(job)
}
