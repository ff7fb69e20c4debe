//! The fate of a frame that is not admitted: the kernel's, dropped, or the answer to a worker whose job was
//! removed here.
//!
//! After all is done, by what is in [`Work`] and with pointers of its own into the frame: to the verifier
//! this is one way for all the ways on which frames are refused.

use aya_ebpf::{
    bindings::xdp_action::{XDP_DROP, XDP_PASS},
    programs::XdpContext,
};
use sumac_agg_layout::Event;
use sumac_wire::{Header, Reason, admit, bytes::Bytes, frame, reason, tables::worker_index};

use crate::{
    answer::{self, Addresses},
    events,
    maps::{ADDRESSES, JOBS, WORKERS},
    outcome::Outcome,
    packet::Packet,
    send,
    work::Work,
};

/// In place of a verdict: [`verdict`] has it.
pub const REFUSED: u32 = u32::MAX;
/// Most answers of one CPU in a second: a worker has its first within that time in any case, since it goes on
/// sending.
const MOST: u64 = 64;

/// Notes a refusal, of a frame whose addresses are noted.
#[inline(always)]
pub fn note(work: &mut Work, reason: Reason) -> Outcome {
    work.refusal = reason as u32;
    Outcome::new(reason, REFUSED)
}

/// The verdict of an outcome.
#[inline(always)]
pub fn verdict(ctx: &XdpContext, verdict: u32) -> u32 {
    if verdict != REFUSED {
        return verdict;
    }
    let Some(work) = Work::get() else { return XDP_DROP };
    if work.refusal == Reason::UnknownJob as u32
        && let Some(verdict) = tell(ctx, work)
    {
        return verdict;
    }
    // Routed traffic crosses the aggregator's ports, a dynamic job's packets to its parameter hosts among
    // them, and other programs may have its UDP ports.
    // SAFETY: the value is not read.
    if reason::is_for_kernel(work.refusal) || unsafe { ADDRESSES.get(work.dst_ip) }.is_none() {
        return XDP_PASS;
    }
    XDP_DROP
}

/// Answers a packet of a worker of a removed job: token, epoch and addresses are those that the job had.
/// `None`: it is nobody's who was in a job here.
#[inline(always)]
fn tell(ctx: &XdpContext, work: &Work) -> Option<u32> {
    let packet = Packet::new(ctx);
    packet.be64(frame::ETH_LEN - 8)?;
    let headers = packet.headers()?;
    let header = Header::fields(&headers.sumac(), 0)?;
    let job = JOBS.get(u32::from(header.job))?;
    let rank = admit::former_sender(&header, job)?;
    let worker = WORKERS.get(worker_index(header.job, rank))?;
    if admit::source(work.src_ip, worker).is_err() || work.dst_ip != worker.aggregator_ip {
        return None;
    }
    if events::nth(Event::FormerMember) > MOST {
        return Some(XDP_DROP);
    }
    headers.swap_macs();
    answer::make_unknown_job(headers, job, Addresses::to(worker, work.base_port, work.shard));
    // SAFETY: the context is this run's.
    Some(send::out_of(unsafe { (*ctx.ctx).ingress_ifindex }))
}
