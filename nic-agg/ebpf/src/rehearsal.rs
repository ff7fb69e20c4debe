//! Plays a whole job from the one frame that a test run repeats, so that its time per frame is that
//! of contributions which are stored, added and completed in a job's own proportion.

use aya_ebpf::programs::XdpContext;
use sumac_wire::{header::flag, stream};

use crate::{
    answer::{self, Addresses, Chunk},
    maps::{REHEARSAL, STATE},
    packet::Packet,
};

/// Turns the frame, which may be the last one's answer, into the next contribution. `false`: do no more.
#[inline(always)]
pub fn next(ctx: &XdpContext) -> bool {
    let (Some(plan), Some(state)) = (REHEARSAL.get_ptr_mut(0), STATE.get(0)) else { return false };
    // SAFETY: one test run at a time has the plan; a mixed turn would only be a refused frame.
    let plan = unsafe { &mut *plan };
    let packet = Packet::new(ctx);
    if sumac_wire::bytes::Bytes::be64(&packet, sumac_wire::frame::ETH_LEN - 8).is_none() || plan.world == 0 {
        return false;
    }
    let Some(headers) = packet.headers() else { return false };
    let (rank, seq) = (plan.turn % plan.world, plan.turn / plan.world);
    plan.turn = plan.turn.wrapping_add(1);
    let place =
        stream::Place { slot: seq & plan.slots.wrapping_sub(1), version: u8::from(seq & plan.slots != 0) };
    let flags = if place.version == 0 { 0 } else { flag::POOL_VERSION };
    answer::make_contribution(headers, &Chunk { flags, seq, slot: place.slot, worker: 1 << (rank & 31) });
    let ip = plan.first_ip.wrapping_add(rank);
    let to = Addresses {
        src_ip: ip,
        dst_ip: plan.aggregator_ip,
        src_port: state.base_port,
        dst_port: state.base_port,
    };
    answer::readdress(headers, to);
    plan.dry == 0
}
