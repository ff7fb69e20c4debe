//! Classification of a frame: foreign, refused, or of a job of this host.

use aya_ebpf::programs::XdpContext;
use sumac_wire::{
    Header, MAX_JOBS, Reason, admit,
    frame::{self, Frame, Parsed, Ports},
    tables::{HOST_JOB_WAYS, HostJobEntry, host_job_index, job_flag},
};

use crate::{
    checksum,
    headers::Headers,
    maps::{CONFIG, JOBS},
    packet::Packet,
    report,
};

/// Returns `Ok` for an intact frame of a job of this host, else the reason for its verdict.
#[inline(always)]
pub fn classify<const JUMBO: bool>(ctx: &XdpContext, packet: &Packet) -> Result<(), Reason> {
    // Without settings no port is Sumac's.
    let config = CONFIG.get(0).ok_or(Reason::Foreign)?;
    let ports = Ports { base: config.base_port, shards: config.shards };
    match frame::parse(packet, ports) {
        Parsed::Foreign => Err(Reason::Foreign),
        Parsed::Bad(reason) => Err(reason),
        Parsed::Ours(frame) => admit::<JUMBO>(ctx, packet, &frame),
    }
}

#[inline(always)]
fn admit<const JUMBO: bool>(ctx: &XdpContext, packet: &Packet, frame: &Frame) -> Result<(), Reason> {
    let headers = Headers::of(packet, frame).ok_or(Reason::Truncated)?;
    let header = Header::read(&headers.sumac(), 0, frame.payload_len())?;
    let job = match job(&header, frame) {
        Ok(job) => job,
        Err(reason) => {
            report::refused(ctx, reason, &header, frame.src_ip);
            return Err(reason);
        }
    };
    if job.flags & job_flag::OVER_UDP != 0 {
        // The kernel verifies the checksum.
        return Err(Reason::OverUdp);
    }
    if job.flags & job_flag::CHECKSUM == 0 {
        return Ok(());
    }
    match checksum::is_intact::<JUMBO>(ctx, packet, frame, &headers, header.elements) {
        true => Ok(()),
        false => Err(Reason::BadChecksum),
    }
}

/// Returns the packet's job, if the packet has all fields that one to this host must have.
#[inline(always)]
fn job(header: &Header, frame: &Frame) -> Result<&'static HostJobEntry, Reason> {
    let job = find(header).ok_or(Reason::UnknownJob)?;
    admit::answer(header, frame.src_ip, frame.dst_ip, job)?;
    Ok(job)
}

/// Returns the job with the packet's number and token. Without one, any with the number, whose check has the
/// reason.
#[inline(always)]
fn find(header: &Header) -> Option<&'static HostJobEntry> {
    if usize::from(header.job) >= MAX_JOBS {
        return None;
    }
    let mut other = None;
    for way in 0..HOST_JOB_WAYS {
        let job = JOBS.get(host_job_index(header.job, way))?;
        if admit::has_token(header, job) {
            return Some(job);
        }
        if job.flags & job_flag::ACTIVE != 0 {
            other = Some(job);
        }
    }
    other
}
