//! A frame's way through the aggregator: parse, admit, apply, answer. Each stage gives what the
//! next one needs, or the reason why there is no next one.

use aya_ebpf::{
    bindings::xdp_action::{XDP_DROP, XDP_PASS},
    programs::XdpContext,
};
use sumac_agg_layout::State;
use sumac_wire::{
    Header, Reason, admit,
    frame::{self, ETH_LEN, Frame, Parsed, Ports},
    header::flag,
    tables::{WorkerCounters, job_flag, lane_index, parent_index, worker_index},
    tos, workers,
};

use crate::{
    answer, copied, drops, dynamic,
    maps::{JOBS, LANES, PARENTS, SLOTS, STATE, WORKERS, count_worker},
    outcome::Outcome,
    own,
    packet::Packet,
    payload::Payload,
    plan, refused, room, send,
    slot::{self, Draw},
    times,
    work::{Work, stage_ends},
};

#[inline(always)]
pub fn run<const JUMBO: bool>(ctx: &XdpContext) -> Outcome {
    let packet = if JUMBO { Packet::jumbo(ctx) } else { Packet::new(ctx) };
    let Some(state) = STATE.get(0) else { return Outcome::new(Reason::Internal, XDP_PASS) };
    let ports = Ports { base: state.base_port, shards: state.shards };
    let frame = match frame::parse(&packet, ports) {
        Parsed::Foreign => return foreign(ctx, packet, state.own_ip),
        Parsed::Bad(reason) => return Outcome::new(reason, XDP_PASS),
        Parsed::Ours(frame) => frame,
    };
    let Some(work) = Work::get() else { return Outcome::new(Reason::Internal, XDP_DROP) };
    work.job = 0;
    (work.src_ip, work.dst_ip) = (frame.src_ip, frame.dst_ip);
    let outcome = match ours::<JUMBO>(ctx, packet, &frame, state, work) {
        Ok(outcome) => outcome,
        Err(reason) => Outcome::new(reason, XDP_DROP),
    };
    stage_ends();
    Outcome { job: work.job as u16, ..outcome }
}

/// Not Sumac's: the kernel's, unless it asks for an address that the kernel does not have.
#[inline(always)]
fn foreign(ctx: &XdpContext, packet: Packet, own_ip: u32) -> Outcome {
    // SAFETY: the context is this run's.
    let ingress = unsafe { (*ctx.ctx).ingress_ifindex };
    if own_ip != 0 && own::answer(packet, own_ip, ingress) {
        return Outcome::new(Reason::Answered, send::out_of(ingress));
    }
    Outcome::new(Reason::Foreign, XDP_PASS)
}

#[inline(always)]
fn ours<const JUMBO: bool>(
    ctx: &XdpContext,
    packet: Packet,
    frame: &Frame,
    state: &State,
    work: &mut Work,
) -> Result<Outcome, Reason> {
    let headers = packet.headers().ok_or(Reason::Truncated)?;
    let header = match Header::read(&headers.sumac(), 0, frame.payload_len()) {
        Ok(header) => header,
        Err(reason) => return Ok(Outcome::new(reason, XDP_PASS)),
    };
    (work.base_port, work.shard) = (state.base_port, frame.dst_port.wrapping_sub(state.base_port));
    let wants_slot = match admit(ctx, &header, frame, work) {
        Ok(wants_slot) => wants_slot,
        Err(reason) => return Ok(refused::note(work, reason)),
    };
    if wants_slot {
        room::make(ctx, packet, headers, frame, work)?;
    }
    let packet = packet.again(ctx);
    packet.writable(ETH_LEN).ok_or(Reason::Internal)?;
    let headers = packet.headers().ok_or(Reason::Internal)?;
    if drops::on_arrival(state, header.job) {
        return Err(Reason::Injected);
    }
    answer::sum_headers(headers, frame, work)?;
    if JUMBO {
        copied::load(ctx, &packet, frame, usize::from(header.elements), work)?;
    }
    stage_ends();
    let payload = Payload::<JUMBO> { packet, headers };
    // SAFETY: the context is this run's.
    let ingress = unsafe { (*ctx.ctx).ingress_ifindex };
    if !wants_slot {
        return report::<JUMBO>(payload, work, ingress);
    }
    take::<JUMBO>(ctx, payload, work, ingress)
}

/// Checks who sent the packet and notes what it wants of a slot. `false`: it is a probe, which wants nothing.
#[inline(always)]
fn admit(ctx: &XdpContext, header: &Header, frame: &Frame, work: &mut Work) -> Result<bool, Reason> {
    let job = JOBS.get(u32::from(header.job)).ok_or(Reason::UnknownJob)?;
    if job.flags & job_flag::DYNAMIC != 0 {
        return Err(dynamic::enter(ctx));
    }
    if job.flags & job_flag::ACTIVE != 0 {
        work.job = u32::from(header.job);
    }
    work.is_checked = u32::from(job.flags & job_flag::CHECKSUM);
    work.parent_index = parent_index(header.job, work.shard, 1);
    if admit::is_from_parent(header, job) {
        let parent = PARENTS.get(work.parent_index).ok_or(Reason::Internal)?;
        let conclusion = admit::conclusion(header, frame.src_ip, job, parent, work.shard)?;
        work.conclusion = conclusion.ok_or(Reason::BadType)?;
        work.conclusion.flags |= tos::echo(frame.dscp_ecn);
        work.is_parents = 1;
        // The answer to a question is for the worker that asked; all else, for all.
        let is_for_one = header.has(flag::QUERY) && !admit::wants_of_all(job);
        let rank = if is_for_one { workers::rank(header.bitmap_0, job.world) } else { Some(0) };
        work.worker_index = worker_index(header.job, rank.ok_or(Reason::WrongWorker)?);
        return Ok(true);
    }
    let index = worker_index(header.job, admit::sender(header, job)?);
    let worker = WORKERS.get(index).ok_or(Reason::Internal)?;
    admit::source(frame.src_ip, worker)?;
    if frame.dst_ip != worker.aggregator_ip {
        return Err(Reason::Foreign);
    }
    work.is_parents = 0;
    work.worker_index = index;
    match admit::request(header, job, work.shard)? {
        Some(contribution) => {
            work.contribution = contribution;
            work.contribution.flags |= tos::echo(frame.dscp_ecn);
            work.contribution.left_out = admit::left_out(header, job, worker.ranks)?;
        }
        None => return Ok(false),
    }
    Ok(true)
}

/// Answers a probe with the same frame: what can go to the aggregator and back is no longer than this.
#[inline(always)]
fn report<const JUMBO: bool>(
    payload: Payload<JUMBO>,
    work: &mut Work,
    ingress: u32,
) -> Result<Outcome, Reason> {
    if work.is_checked != 0 {
        slot::sum::<JUMBO>(work, payload)?;
        if !slot::is_intact(work) {
            return Err(Reason::BadChecksum);
        }
    }
    let job = JOBS.get(u32::from(payload.headers.job())).ok_or(Reason::Internal)?;
    send::check_copies::<JUMBO>(work, job)?;
    answer::make_report(payload.headers, job);
    Ok(Outcome::new(Reason::Probed, send::report(payload.headers, work, ingress)?))
}

#[inline(always)]
fn take<const JUMBO: bool>(
    ctx: &XdpContext,
    payload: Payload<JUMBO>,
    work: &mut Work,
    ingress: u32,
) -> Result<Outcome, Reason> {
    let headers = payload.headers;
    let (job, slot) = (headers.job(), headers.slot());
    let entry = JOBS.get(u32::from(job)).ok_or(Reason::Internal)?;
    let lane = slot >> (entry.lane_slots_log2 & 31);
    let draw = Draw {
        counter: LANES.get_ptr_mut(lane_index(job, lane as u16)).ok_or(Reason::Internal)?,
        slots: entry.lane_slots(),
        steal: entry.flags & job_flag::STEALING != 0,
    };
    work.slot = entry.slot_base.wrapping_add(slot);
    let slot = SLOTS.get_ptr_mut(work.slot).ok_or(Reason::Internal)?;
    let done = slot::apply::<JUMBO>(slot, draw, work, payload);
    stage_ends();
    if work.is_parents == 0 {
        count_worker(work.worker_index, |counters| count_effect(counters, work.plan, done));
    }
    done?;
    if work.is_parents == 0 {
        times::look(work, job);
    }
    if work.plan & plan::ANSWER == 0 {
        return Ok(Outcome::new(Reason::Added, XDP_DROP));
    }
    let outcome = send::answer::<JUMBO>(headers, work, ingress)?;
    if JUMBO && work.plan & plan::WRITE != 0 {
        copied::save(ctx, work)?;
    }
    Ok(outcome)
}

#[inline(always)]
fn count_effect(counters: &mut WorkerCounters, plan: u32, done: Result<(), Reason>) {
    match done {
        Ok(()) if plan & plan::HELD != 0 => counters.duplicates += 1,
        Ok(()) if plan & plan::KEEP != 0 => {
            counters.added += 1;
            if plan & plan::ANSWER != 0 {
                counters.last += 1;
            }
        }
        Ok(()) if plan & (plan::RESULT | plan::AGREED) != 0 => counters.replies += 1,
        Ok(()) => {}
        Err(Reason::Duplicate) => counters.duplicates += 1,
        Err(_) => {}
    }
}
