//! The dynamic mode (ATP): the ways of its packets through the aggregator, in a program of its own behind the
//! first.
//!
//! One program for both modes would be beyond what the verifier looks at, and static jobs would pay for the
//! other's registers.

mod slot;

use aya_ebpf::{bindings::xdp_action::XDP_DROP, programs::XdpContext};
use sumac_agg_layout::{DYNAMIC_ENTRY, State};
use sumac_wire::{
    Header, Kind, Reason,
    admit::{self, dynamic::Down},
    dynamic as wire,
    frame::{self, Frame, Parsed, Ports},
    header::{NO_SLOT, flag, offset},
    tables::{JobEntry, WorkerCounters, WorkerEntry, job_flag, parent_index, worker_index},
    tos,
};

use crate::{
    answer, copied, drops,
    elements::Elements,
    maps::{DYNAMIC_SLOTS, JOBS, MODES, PARENTS, STATE, WORKERS, count_worker},
    outcome::Outcome,
    packet::{Headers, Packet},
    payload::Payload,
    plan, refused, send,
    slot::{is_intact, sum},
    work::{Work, stage_ends},
};

/// Hands a frame of a dynamic job on to [`run`]. Comes back, with the reason, only if that program is not
/// there.
#[inline(always)]
pub fn enter(ctx: &XdpContext) -> Reason {
    // SAFETY: the entry is the loader's, of the same build and for the same kind of frame; nothing here is
    // dropped.
    unsafe { MODES.tail_call(ctx, DYNAMIC_ENTRY) };
    Reason::Internal
}

/// Takes a frame of a dynamic job through all stages.
#[inline(always)]
pub fn run<const JUMBO: bool>(ctx: &XdpContext) -> Outcome {
    let packet = if JUMBO { Packet::jumbo(ctx) } else { Packet::new(ctx) };
    let Some(state) = STATE.get(0) else { return Outcome::new(Reason::Internal, XDP_DROP) };
    let ports = Ports { base: state.base_port, shards: state.shards };
    // The first program has seen that it is ours; the verifier has not.
    let Parsed::Ours(frame) = frame::parse(&packet, ports) else {
        return Outcome::new(Reason::Internal, XDP_DROP);
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

#[inline(always)]
fn ours<const JUMBO: bool>(
    ctx: &XdpContext,
    packet: Packet,
    frame: &Frame,
    state: &State,
    work: &mut Work,
) -> Result<Outcome, Reason> {
    let headers = packet.headers().ok_or(Reason::Truncated)?;
    let header = Header::read(&headers.sumac(), 0, frame.payload_len())?;
    (work.base_port, work.shard) = (state.base_port, frame.dst_port.wrapping_sub(state.base_port));
    if let Err(reason) = admit(&header, frame, work) {
        return Ok(refused::note(work, reason));
    }
    if drops::on_arrival(state, header.job) {
        return Err(Reason::Injected);
    }
    answer::sum_headers(headers, frame, work)?;
    if tos::is_marked(frame.dscp_ecn) {
        answer::change_flags(headers, flag::ECN_ECHO, 0);
        work.chunk.contribution.flags |= flag::ECN_ECHO;
    }
    if JUMBO {
        copied::load(ctx, &packet, frame, usize::from(header.elements), work)?;
    }
    stage_ends();
    let payload = Payload::<JUMBO> { packet, headers };
    if work.plan & plan::REPORT != 0 {
        return report(payload, work);
    }
    let outcome = take(payload, state, work)?;
    if JUMBO && work.plan & plan::WRITE != 0 {
        copied::save(ctx, work)?;
    }
    Ok(outcome)
}

/// Whether a frame from a worker, or from a parent, is for this aggregator. What workers and parameter hosts
/// send to each other may cross its ports as well, and is the kernel's.
#[inline(always)]
fn is_for_us(frame: &Frame, sender: &WorkerEntry) -> bool {
    frame.dst_ip == sender.aggregator_ip
}

/// Checks who sent the packet, and notes what it wants.
#[inline(always)]
fn admit(header: &Header, frame: &Frame, work: &mut Work) -> Result<(), Reason> {
    let job = JOBS.get(u32::from(header.job)).ok_or(Reason::UnknownJob)?;
    // Another job may have the number by now.
    if job.flags & job_flag::DYNAMIC == 0 {
        return Err(Reason::UnknownJob);
    }
    if job.flags & job_flag::ACTIVE != 0 {
        work.job = u32::from(header.job);
    }
    work.is_checked = u32::from(job.flags & job_flag::CHECKSUM);
    work.parent_index = parent_index(header.job, work.shard, job.hosts);
    // A parameter host may have a worker's address: they are distinguished by what they send.
    if header.kind == Kind::Result as u8 || header.kind == Kind::Report as u8 {
        return from_above(header, frame, job, work);
    }
    let parent = PARENTS.get(work.parent_index).ok_or(Reason::Internal)?;
    let is_past_us = frame.dst_ip == parent.ip;
    let rank =
        admit::sender(header, job).map_err(|reason| if is_past_us { Reason::Foreign } else { reason })?;
    let index = worker_index(header.job, rank);
    let worker = WORKERS.get(index).ok_or(Reason::Internal)?;
    admit::source(frame.src_ip, worker)?;
    if !is_for_us(frame, worker) {
        return Err(Reason::Foreign);
    }
    work.is_parents = 0;
    work.worker_index = index;
    work.plan = match admit::dynamic::request(header, job, work.shard)? {
        Some(contribution) => {
            work.chunk.contribution = contribution;
            // Sent again, without a slot: nobody's values are here.
            if header.slot == NO_SLOT { plan::PASSED | plan::NO_SLOT } else { 0 }
        }
        // The answer shall show the whole way.
        None => plan::PASSED | plan::NO_SLOT,
    };
    Ok(())
}

#[inline(always)]
fn from_above(header: &Header, frame: &Frame, job: &JobEntry, work: &mut Work) -> Result<(), Reason> {
    let parent = PARENTS.get(work.parent_index).ok_or(Reason::Internal)?;
    // A rack does not know the parameter host, whose answers may cross it.
    let is_child = job.flags & job_flag::CHILD != 0;
    if !is_for_us(frame, parent) && (is_child || frame.src_ip == parent.ip) {
        return Err(Reason::Foreign);
    }
    let (rank, plan) = match admit::dynamic::result(header, frame.src_ip, job, parent, work.shard)? {
        Down::All if header.slot == NO_SLOT => (0, plan::RESULT | plan::NO_SLOT),
        Down::All => (0, plan::RESULT),
        Down::One(rank) => (rank, plan::REPORT),
    };
    work.is_parents = 1;
    work.worker_index = worker_index(header.job, rank);
    work.plan = plan;
    work.chunk.contribution.owner = wire::owner(header.job, header.epoch, header.lane);
    work.chunk.contribution.seq = header.seq;
    Ok(())
}

/// Hands the answer to a probe down to the worker that asked. Drops on purpose are drawn for when it arrives,
/// not again as it leaves, as with a static job's: of one more draw the verifier sees many times the ways.
#[inline(always)]
fn report<const JUMBO: bool>(payload: Payload<JUMBO>, work: &mut Work) -> Result<Outcome, Reason> {
    let headers = payload.headers;
    without_slot(payload, work)?;
    if JUMBO {
        let job = JOBS.get(u32::from(headers.job())).ok_or(Reason::Internal)?;
        send::check_copies::<JUMBO>(work, job)?;
    }
    // The probe was marked on its way up.
    answer::change_flags(headers, 0, flag::LEVEL);
    answer::unmark(headers);
    Ok(Outcome::new(Reason::Probed, send::down(headers, work)?))
}

#[inline(always)]
fn take<const JUMBO: bool>(
    payload: Payload<JUMBO>,
    state: &State,
    work: &mut Work,
) -> Result<Outcome, Reason> {
    let headers = payload.headers;
    let done = if work.plan & plan::NO_SLOT != 0 {
        without_slot(payload, work)
    } else {
        // Admitted slots are below the job's, which are no more than there are of each shard.
        work.slot = u32::from(work.shard).wrapping_mul(state.dynamic_slots).wrapping_add(headers.slot());
        let slot = DYNAMIC_SLOTS.get_ptr_mut(work.slot).ok_or(Reason::Internal)?;
        slot::apply(slot, work, payload, state.slot_timeout)
    };
    stage_ends();
    if work.is_parents == 0 {
        count_worker(work.worker_index, |counters| count_effect(counters, work.plan, done));
    }
    done?;
    send_on::<JUMBO>(headers, work)
}

#[inline(always)]
fn without_slot(payload: impl Elements, work: &mut Work) -> Result<(), Reason> {
    if work.is_checked != 0 {
        sum::<false>(work, payload)?;
        if !is_intact(work) {
            return Err(Reason::BadChecksum);
        }
    }
    Ok(())
}

#[inline(always)]
fn count_effect(counters: &mut WorkerCounters, plan: u32, done: Result<(), Reason>) {
    if done.is_err() {
        return;
    }
    if plan & plan::TAKEN != 0 {
        counters.added += 1;
        if plan & plan::SUM != 0 {
            counters.last += 1;
        }
    } else if plan & plan::DYNAMIC_UP == 0 {
        counters.duplicates += 1;
    }
}

#[inline(always)]
fn send_on<const JUMBO: bool>(headers: Headers, work: &Work) -> Result<Outcome, Reason> {
    let is = |bits: u32| work.plan & bits != 0;
    let reason = match () {
        () if is(plan::RESULT) => Reason::Concluded,
        () if is(plan::SUM) => Reason::Forwarded,
        () if is(plan::FLUSHED) => Reason::Flushed,
        () if is(plan::COLLIDED) => Reason::Collided,
        () if is(plan::PASSED) => Reason::Passed,
        () if is(plan::RECLAIMED) => Reason::Reclaimed,
        () if is(plan::TAKEN) => Reason::Added,
        () => Reason::Duplicate,
    };
    if !is(plan::DYNAMIC_UP | plan::RESULT) {
        return Ok(Outcome::new(reason, XDP_DROP));
    }
    let job = JOBS.get(u32::from(headers.job())).ok_or(Reason::Internal)?;
    // Copies for several ports are drawn for one by one, as they leave.
    let is_single = !is(plan::RESULT) || job.flags & job_flag::MULTICAST != 0;
    let state = STATE.get(0).ok_or(Reason::Internal)?;
    if is_single && drops::on_leaving(state, headers.job()) {
        return Err(Reason::Injected);
    }
    answer::unmark(headers);
    let verdict = if is(plan::RESULT) {
        send::to_all::<JUMBO>(headers, work, job)?
    } else {
        write(headers, work)?;
        stage_ends();
        send::up(headers, work)?
    };
    Ok(Outcome::new(reason, verdict))
}

#[inline(always)]
fn write(headers: Headers, work: &Work) -> Result<(), Reason> {
    let request = Header::fields(&headers.sumac(), 0).ok_or(Reason::Internal)?;
    let is = |bits: u32| work.plan & bits != 0;
    let header = match () {
        () if is(plan::SUM) => wire::sum(&request, &work.chunk.sum),
        () if is(plan::FLUSHED) => wire::flushed(&request, &work.chunk.sum),
        () if is(plan::COLLIDED) => wire::collided(&request),
        () => wire::passed(&request),
    };
    answer::write_header(headers, &header);
    headers.set(Headers::SUMAC + offset::RECEIVED, header.received.to_be());
    Ok(())
}
