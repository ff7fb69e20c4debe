//! A frame's way through the aggregator: parse, admit, apply, answer. Each stage gives what the
//! next one needs, or the reason why there is no next one.

use aya_ebpf::{
    bindings::{
        BPF_F_BROADCAST,
        xdp_action::{XDP_DROP, XDP_PASS},
    },
    helpers::generated::bpf_redirect,
    programs::XdpContext,
};
use sumac_wire::{
    Header, Kind, Reason, admit, checksum,
    frame::{self, Frame, Parsed, Ports},
    slot::Contribution,
    tables::{JobEntry, WorkerEntry, job_flag, worker_index},
};

use crate::{
    answer::{self, Addresses},
    events,
    maps::{JOBS, PORTS, SLOTS, STATE, WORKERS, count_worker},
    packet::{Headers, Packet},
    payload::Payload,
    slot::{self, Effect},
};

/// What to do with a frame, and why.
#[derive(Clone, Copy)]
pub struct Outcome {
    pub reason: Reason,
    pub verdict: u32,
}

impl Outcome {
    const fn new(reason: Reason, verdict: u32) -> Outcome {
        Outcome { reason, verdict }
    }
}

/// `TELL` says whether the operator is told of refused frames. Only one program may: the code that writes
/// messages is inlined where it is called once, and a function of its own where twice. Kernels before
/// 6.2 follow no program that has functions as far as this one needs.
#[inline(always)]
pub fn run<const TELL: bool>(ctx: &XdpContext) -> Outcome {
    let packet = Packet::new(ctx);
    let Some(state) = STATE.get(0) else { return Outcome::new(Reason::Internal, XDP_PASS) };
    let ports = Ports { base: state.base_port, shards: state.shards };
    let frame = match frame::parse(&packet, ports) {
        Parsed::Foreign => return Outcome::new(Reason::Foreign, XDP_PASS),
        Parsed::Bad(reason) => return Outcome::new(reason, XDP_DROP),
        Parsed::Ours(frame) => frame,
    };
    match ours::<TELL>(ctx, packet, &frame, ports) {
        Ok(outcome) => outcome,
        Err(reason) => Outcome::new(reason, XDP_DROP),
    }
}

/// A frame of ours with everything known about its sender.
struct Packed<'a> {
    headers: Headers,
    payload: Payload,
    job: &'a JobEntry,
    worker: &'a WorkerEntry,
    /// Index of the worker in its tables.
    worker_index: u32,
    /// Where an answer to this sender goes.
    back: Addresses,
}

#[inline(always)]
fn ours<const TELL: bool>(
    ctx: &XdpContext,
    packet: Packet,
    frame: &Frame,
    ports: Ports,
) -> Result<Outcome, Reason> {
    let headers = packet.headers().ok_or(Reason::Truncated)?;
    let header = Header::read(&headers.sumac(), 0, frame.payload_len())?;
    let (job, rank) = match sender(&header) {
        Ok(sender) => sender,
        Err(reason) => {
            if TELL {
                events::refused(ctx, reason, &header, frame.src_ip);
            }
            return Err(reason);
        }
    };
    let worker_index = worker_index(header.job, rank);
    let worker = WORKERS.get(worker_index).ok_or(Reason::Internal)?;
    admit::source(frame.src_ip, worker)?;
    let packed = Packed {
        headers,
        payload: Payload { packet, headers },
        job,
        worker,
        worker_index,
        back: Addresses::worker(worker, ports.base, frame.dst_port.wrapping_sub(ports.base)),
    };
    let sum = headers_sum(&packed, frame)?;
    // Two ways from here on, with a call of `request` each: merged again behind it, LLVM would carry
    // the contribution that a probe has not through a register that the verifier finds unset.
    if header.kind == Kind::Probe as u8 {
        admit::request(&header, job)?;
        return report(ctx, &packed, sum);
    }
    let contribution = admit::request(&header, job)?.ok_or(Reason::BadType)?;
    contribute(ctx, &packed, header.slot, &contribution, sum)
}

#[inline(always)]
fn sender(header: &Header) -> Result<(&'static JobEntry, u16), Reason> {
    let job = JOBS.get(u32::from(header.job)).ok_or(Reason::UnknownJob)?;
    Ok((job, admit::sender(header, job)?))
}

/// The checksum's sum in front of the payload, `None` when the job goes without.
#[inline(always)]
fn headers_sum(packed: &Packed<'_>, frame: &Frame) -> Result<Option<u64>, Reason> {
    if packed.job.flags & job_flag::CHECKSUM == 0 {
        return Ok(None);
    }
    let pseudo_header = checksum::pseudo_header(frame.src_ip, frame.dst_ip, frame.udp_len);
    answer::headers_sum(packed.headers, pseudo_header).map(Some).ok_or(Reason::BadChecksum)
}

/// Answers a probe with the same frame: what can go to the aggregator and back is no longer than this.
#[inline(always)]
fn report(ctx: &XdpContext, packed: &Packed<'_>, headers_sum: Option<u64>) -> Result<Outcome, Reason> {
    let payload_sum = match headers_sum {
        Some(headers_sum) => {
            let payload_sum = packed.payload.sum();
            if !checksum::is_intact(headers_sum + payload_sum) {
                return Err(Reason::BadChecksum);
            }
            Some(payload_sum)
        }
        None => None,
    };
    answer::make_report(packed.headers);
    packed.headers.swap_macs();
    answer::address(packed.headers, packed.back, payload_sum);
    Ok(Outcome::new(Reason::Probed, back(ctx)))
}

#[inline(always)]
fn contribute(
    ctx: &XdpContext,
    packed: &Packed<'_>,
    slot: u32,
    contribution: &Contribution,
    headers_sum: Option<u64>,
) -> Result<Outcome, Reason> {
    let job = packed.job;
    let slot = SLOTS.get_ptr_mut(job.slot_base.wrapping_add(slot)).ok_or(Reason::Internal)?;
    let effect = slot::apply(slot, contribution, packed.payload, headers_sum);
    count_worker(packed.worker_index, |counters| match effect {
        Ok(Effect::Added) => counters.added += 1,
        Ok(Effect::Completed(_)) => (counters.added, counters.last) = (counters.added + 1, counters.last + 1),
        Ok(Effect::Replied(_)) => counters.replies += 1,
        Err(Reason::Duplicate) => counters.duplicates += 1,
        Err(_) => {}
    });
    let (sum, completed) = match effect? {
        Effect::Added => return Ok(Outcome::new(Reason::Added, XDP_DROP)),
        Effect::Completed(sum) => (sum, true),
        Effect::Replied(sum) => (sum, false),
    };
    answer::make_result(packed.headers, job, contribution.all, sum);
    let payload_sum = headers_sum.map(|_| sum.checksum);
    if !completed {
        packed.headers.swap_macs();
        answer::address(packed.headers, packed.back, payload_sum);
        return Ok(Outcome::new(Reason::Replied, back(ctx)));
    }
    send_to_all(ctx, packed, payload_sum)
}

/// Sends a result to all workers of its job.
#[inline(always)]
fn send_to_all(ctx: &XdpContext, packed: &Packed<'_>, payload_sum: Option<u64>) -> Result<Outcome, Reason> {
    let job = packed.job;
    if job.flags & job_flag::MULTICAST != 0 {
        packed.headers.set_macs(answer::group_mac(job.group_ip), packed.worker.aggregator_mac);
        answer::address(packed.headers, Addresses { dst_ip: job.group_ip, ..packed.back }, payload_sum);
        return Ok(Outcome::new(Reason::Completed, back(ctx)));
    }
    // The egress program gives each copy the addresses of the worker behind its port.
    answer::address(packed.headers, packed.back, payload_sum);
    match PORTS.redirect(0, u64::from(BPF_F_BROADCAST)) {
        Ok(verdict) => Ok(Outcome::new(Reason::Completed, verdict)),
        Err(_) => Err(Reason::Internal),
    }
}

/// Sends the frame out of the port that it came in by.
///
/// Not by `XDP_TX`: a veth then wakes its peer only if that has an XDP program too, and a frame to a
/// worker without one would lie in the ring until something else arrives.
#[inline(always)]
fn back(ctx: &XdpContext) -> u32 {
    // SAFETY: the helper reads nothing but its arguments, and the context is this run's.
    unsafe { bpf_redirect((*ctx.ctx).ingress_ifindex, 0) as u32 }
}
