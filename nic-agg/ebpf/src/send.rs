//! Sends what a packet became: back, to all workers, or up.

use aya_ebpf::{bindings::BPF_F_BROADCAST, helpers::generated::bpf_redirect};
use sumac_wire::{
    Header, Reason, admit,
    slot::answer as wire,
    tables::{JobEntry, WorkerEntry, job_flag},
};

use crate::{
    answer::{self, Addresses},
    drops, egress,
    maps::{JOBS, PARENTS, PORTS, STATE, WORKERS},
    outcome::Outcome,
    packet::Headers,
    paths::{self, Avoided},
    plan,
    work::{Work, stage_ends},
};

#[inline(always)]
pub fn answer<const JUMBO: bool>(headers: Headers, work: &Work, ingress: u32) -> Result<Outcome, Reason> {
    let job = JOBS.get(u32::from(headers.job())).ok_or(Reason::Internal)?;
    write(headers, work, job)?;
    stage_ends();
    let is = |bits: u32| work.plan & bits != 0;
    let reason = match () {
        () if is(plan::REFUSAL) => Reason::Mismatch,
        () if is(plan::WANTED) => Reason::Wanted,
        () if is(plan::PARENTS) => Reason::Concluded,
        () if is(plan::TO_ALL) => Reason::Completed,
        () if is(plan::UP) => Reason::Forwarded,
        () => Reason::Replied,
    };
    let is_parents_want = is(plan::WANTED) && is(plan::PARENTS);
    let is_for_all = is(plan::TO_ALL) || is_parents_want && admit::wants_of_all(job);
    // Copies for several ports are drawn for one by one, as they leave.
    let is_single = !is_for_all || job.flags & job_flag::MULTICAST != 0;
    let state = STATE.get(0).ok_or(Reason::Internal)?;
    if is_single && drops::on_leaving(state, headers.job()) {
        return Err(Reason::Injected);
    }
    answer::unmark(headers);
    let verdict = match () {
        () if is_for_all => to_all::<JUMBO>(headers, work, job)?,
        () if is(plan::UP) => up(headers, work)?,
        () if is(plan::PARENTS) => down(headers, work)?,
        () => back(headers, work, ingress)?,
    };
    Ok(Outcome::new(reason, verdict))
}

#[inline(always)]
fn write(headers: Headers, work: &Work, job: &JobEntry) -> Result<(), Reason> {
    let request = Header::fields(&headers.sumac(), 0).ok_or(Reason::Internal)?;
    let is = |bits: u32| work.plan & bits != 0;
    let answer = match () {
        () if is(plan::RESULT) => wire::result(&request, &work.version, job),
        () if is(plan::PART) => wire::part(&request, &work.version, job),
        () if is(plan::AGREED) => wire::agreed(&request, &work.version, job),
        () if is(plan::PART_OF_ROUND) => wire::part_of_round(&request, &work.version, job),
        () if is(plan::WANTED) => wire::wanted(&request, job),
        () if is(plan::QUESTION) => wire::question(&request, job),
        () => wire::refusal(&request, &work.version, job),
    };
    answer::write_header(headers, &answer);
    Ok(())
}

#[inline(always)]
fn avoided(worker: &WorkerEntry, work: &Work, headers: Headers) -> Avoided {
    Avoided::of(worker, work.worker_index, headers.lane())
}

/// Addresses an answer to one worker, by any of its paths.
#[inline(always)]
fn address_reply(headers: Headers, work: &Work, worker: &WorkerEntry) {
    let to = Addresses::to(worker, work.base_port, work.shard);
    let to = paths::of_reply(to, worker, avoided(worker, work, headers), headers.seq());
    answer::address(headers, to, work);
}

#[inline(always)]
fn back(headers: Headers, work: &Work, ingress: u32) -> Result<u32, Reason> {
    let worker = WORKERS.get(work.worker_index).ok_or(Reason::Internal)?;
    headers.swap_macs();
    address_reply(headers, work, worker);
    Ok(out_of(ingress))
}

/// Answers a probe by the path that it asks for.
#[inline(always)]
pub fn report(headers: Headers, work: &Work, ingress: u32) -> Result<u32, Reason> {
    let worker = WORKERS.get(work.worker_index).ok_or(Reason::Internal)?;
    let probe = Header::fields(&headers.sumac(), 0).ok_or(Reason::Internal)?;
    headers.swap_macs();
    let to = Addresses::to(worker, work.base_port, work.shard);
    answer::address(headers, paths::of_report(to, worker, avoided(worker, work, headers), &probe), work);
    Ok(out_of(ingress))
}

/// To one worker, of a frame that came from the parent.
#[inline(always)]
pub fn down(headers: Headers, work: &Work) -> Result<u32, Reason> {
    let worker = WORKERS.get(work.worker_index).ok_or(Reason::Internal)?;
    headers.set_macs(worker.mac, worker.aggregator_mac);
    address_reply(headers, work, worker);
    Ok(out_of(worker.ifindex))
}

/// To the job's parent for the packet's shard.
#[inline(always)]
pub fn up(headers: Headers, work: &Work) -> Result<u32, Reason> {
    let parent = PARENTS.get(work.parent_index).ok_or(Reason::Internal)?;
    headers.set_macs(parent.mac, parent.aggregator_mac);
    answer::address(headers, Addresses::to(parent, work.base_port, work.shard), work);
    Ok(out_of(parent.ifindex))
}

/// To all workers of the job.
#[inline(always)]
pub fn to_all<const JUMBO: bool>(headers: Headers, work: &Work, job: &JobEntry) -> Result<u32, Reason> {
    let worker = WORKERS.get(work.worker_index).ok_or(Reason::Internal)?;
    let to = Addresses::to(worker, work.base_port, work.shard);
    if job.flags & job_flag::MULTICAST != 0 {
        headers.set_macs(answer::group_mac(job.group_ip), worker.aggregator_mac);
        answer::address(headers, Addresses { dst_ip: job.group_ip, ..to }, work);
        return Ok(out_of(worker.ifindex));
    }
    check_copies::<JUMBO>(work, job)?;
    if JUMBO && work.is_split != 0 {
        // There is one worker, and so no copy to address on its way out.
        headers.set_macs(worker.mac, worker.aggregator_mac);
        let avoided = avoided(worker, work, headers);
        answer::address(headers, paths::of_result(to, worker, avoided, headers.seq()), work);
        return Ok(out_of(worker.ifindex));
    }
    // The egress program gives each copy the addresses of the worker behind its port.
    headers.set_macs(egress::COPY, worker.aggregator_mac);
    answer::address(headers, to, work);
    PORTS.redirect(0, u64::from(BPF_F_BROADCAST)).map_err(|_| Reason::Internal)
}

/// Refuses a frame of which the kernel makes no copies for several ports, since it has several buffers: also
/// the probe of such a length, so that its job is not opened. The loader lets no job with longer chunks in; a
/// driver that splits shorter ones makes such frames of them.
#[inline(always)]
pub fn check_copies<const JUMBO: bool>(work: &Work, job: &JobEntry) -> Result<(), Reason> {
    let is_copied = job.world != 1 && job.flags & job_flag::MULTICAST == 0;
    if JUMBO && work.is_split != 0 && is_copied { Err(Reason::Internal) } else { Ok(()) }
}

/// Sends the frame out of a port.
///
/// Not by `XDP_TX` where it is the frame's own: a veth then wakes its peer only if that has an XDP program
/// too, and a frame to a worker without one would lie in the ring until something else arrives.
///
/// By the map of ports where the port is in it: what a CPU sends to a port in one poll the kernel hands on
/// together, with the egress program that the first frame of these had. After a frame by another way copies
/// would leave without.
#[inline(always)]
pub fn out_of(ifindex: u32) -> u32 {
    if let Ok(verdict) = PORTS.redirect(ifindex, 0) {
        return verdict;
    }
    // SAFETY: the helper reads nothing but its arguments.
    unsafe { bpf_redirect(ifindex, 0) as u32 }
}
