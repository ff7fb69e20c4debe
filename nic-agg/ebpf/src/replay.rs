//! Plays a whole job from the one frame that a test run repeats, so that its time per frame is that
//! of contributions which are stored, added and completed in a job's own proportion.

use aya_ebpf::{
    bindings::xdp_action::XDP_PASS,
    btf_maps::Array,
    macros::{btf_map, xdp},
    programs::XdpContext,
};
use sumac_agg_layout::replay::Replay;
use sumac_wire::{
    Kind,
    header::{flag, offset},
};

use crate::{
    answer::{self, Addresses},
    maps::{self, JOBS, STATE},
    packet::{Headers, Packet},
    pipeline, refused,
};

#[btf_map]
pub static REPLAY: Array<Replay, 1> = Array::new();

/// Makes each frame of a test run the next contribution of a job, and aggregates it. Never attached.
#[xdp]
#[inline(always)]
pub fn sumac_agg_replay(ctx: XdpContext) -> u32 {
    if !next(&ctx) {
        return XDP_PASS;
    }
    let outcome = pipeline::run::<false>(&ctx);
    maps::count(outcome.reason, outcome.job);
    refused::verdict(&ctx, outcome.verdict)
}

/// Turns the frame, which may be the last one's answer, into the job's next. `false`: do no more.
#[inline(always)]
fn next(ctx: &XdpContext) -> bool {
    let (Some(plan), Some(state)) = (REPLAY.get_ptr_mut(0), STATE.get(0)) else { return false };
    // SAFETY: one test run at a time has the plan; a mixed turn would only be a refused frame.
    let plan = unsafe { &mut *plan };
    let packet = Packet::new(ctx);
    if sumac_wire::bytes::Bytes::be64(&packet, sumac_wire::frame::ETH_LEN - 8).is_none() || plan.world == 0 {
        return false;
    }
    let Some(headers) = packet.headers() else { return false };
    let is_dynamic = plan.host_ip != 0;
    let turns = plan.world.wrapping_add(u32::from(is_dynamic));
    // Or the compiler provides for a division by zero, which is a panic.
    if turns == 0 {
        return false;
    }
    let (rank, seq) = (plan.turn % turns, plan.turn / turns);
    plan.turn = plan.turn.wrapping_add(1);
    let slot = seq & plan.slots.wrapping_sub(1);
    let flags = if is_dynamic || seq & plan.slots == 0 { 0 } else { flag::POOL_VERSION };
    let is_result = rank == plan.world;
    let kind = if is_result { Kind::Result } else { Kind::Contribution } as u8;
    let Some(job) = JOBS.get(u32::from(headers.job())) else { return false };
    let token = if is_result { job.result_token } else { job.token };
    make(headers, &Chunk { kind, flags, seq, slot, token, worker: 1 << (rank & 31) });
    let ip = if is_result { plan.host_ip } else { plan.first_ip.wrapping_add(rank) };
    let to = Addresses {
        src_ip: ip,
        dst_ip: plan.aggregator_ip,
        src_port: state.base_port,
        dst_port: state.base_port,
    };
    answer::readdress(headers, to);
    plan.dry == 0
}

/// The header of a replayed frame.
struct Chunk {
    kind: u8,
    flags: u16,
    seq: u32,
    slot: u32,
    token: u64,
    worker: u32,
}

/// Makes the Sumac header that of a contribution or of a result.
#[inline(always)]
fn make(headers: Headers, chunk: &Chunk) {
    let before = answer::header_sum(headers, |word| !word);
    answer::set_kind(headers, chunk.kind);
    headers.set(Headers::SUMAC + offset::FLAGS, chunk.flags.to_be());
    headers.set(Headers::SUMAC + offset::SEQ, chunk.seq.to_be());
    headers.set(Headers::SUMAC + offset::SLOT, chunk.slot.to_be());
    headers.set(Headers::SUMAC + offset::TOKEN, chunk.token.to_be());
    headers.set(Headers::SUMAC + offset::BITMAP_0, chunk.worker.to_be());
    // In a contribution a count that is not zero is the limit of a bounded loss. The frame may be a result,
    // which has a count.
    headers.set(Headers::SUMAC + offset::CONTRIBUTORS, 0_u16);
    // The slot's chunks of before are complete.
    headers.set(Headers::SUMAC + offset::RECEIVED, chunk.seq.to_be());
    answer::adjust_checksum(headers, before + answer::header_sum(headers, |word| word));
}
