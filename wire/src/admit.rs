//! May this packet go on? The checks that every aggregator and every host makes before a packet
//! changes anything. The order is fixed: identity first, so that a stranger learns nothing more.

pub mod dynamic;
mod identity;

use self::identity::identity;
pub use self::identity::source;

use crate::{
    Header, Kind, MAX_WORKERS, Reason,
    budget::is_quorum,
    header::{ELEMENT_LEN, HEADER_LEN, flag},
    slot::{Conclusion, Contribution, owner},
    stream::is_later,
    tables::{HostJobEntry, JobEntry, WorkerEntry, job_flag},
    workers::{all_workers, rank},
};

/// Checks who speaks, of a packet to an aggregator: gives the sender's rank; at the root, the rack's.
///
/// The caller looks the sender up by that rank and goes on with [`source`].
#[inline(always)]
pub fn sender(header: &Header, job: &JobEntry) -> Result<u16, Reason> {
    identity(header, job.flags, job.token, job.epoch)?;
    sender_rank(header, job)
}

/// The rank of a worker that still sends to a job which was removed here: its entry stays, without
/// [`job_flag::ACTIVE`]. The caller holds the address against [`source`], and answers with [`unknown_job`].
#[inline(always)]
pub fn former_sender(header: &Header, job: &JobEntry) -> Option<u16> {
    if !is_request(header) || job.flags & job_flag::ACTIVE != 0 {
        return None;
    }
    identity(header, job_flag::ACTIVE, job.token, job.epoch).ok()?;
    // A number that no job ever had has an entry of zeros, and no ranks.
    sender_rank(header, job).ok()
}

/// Whether a packet is of the kinds that workers send.
#[inline(always)]
const fn is_request(header: &Header) -> bool {
    header.kind == Kind::Contribution as u8 || header.kind == Kind::Probe as u8
}

/// The report to a [`former_sender`]: its packet, marked, in the same length.
#[inline(always)]
pub fn unknown_job(request: &Header, job: &JobEntry) -> Header {
    let flags = request.flags & flag::LEVEL | flag::UNKNOWN_JOB;
    Header { kind: Kind::Report as u8, flags, token: job.result_token, ..*request }
}

#[inline(always)]
fn sender_rank(header: &Header, job: &JobEntry) -> Result<u16, Reason> {
    let (fan_in, bitmap) = if job.flags & job_flag::ROOT != 0 {
        if !header.has(flag::LEVEL) {
            return Err(Reason::WrongWorker);
        }
        (header.fan_in_1, header.bitmap_1)
    } else if job.flags & job_flag::DYNAMIC != 0 {
        if header.has(flag::LEVEL) || !dynamic::is_of_rack(header, job) {
            return Err(Reason::WrongWorker);
        }
        (header.fan_in_0, header.bitmap_0)
    } else {
        if header.has(flag::LEVEL) || header.bitmap_1 != 0 || header.fan_in_1 > 1 {
            return Err(Reason::WrongWorker);
        }
        (header.fan_in_0, header.bitmap_0)
    };
    if fan_in as u16 != job.world {
        return Err(Reason::WrongWorker);
    }
    rank(bitmap, job.world).ok_or(Reason::WrongWorker)
}

/// The slot that a packet names, within its lane.
struct Place {
    lane: u16,
    slot: u32,
}

/// Checks that a packet names a slot of its job, and one of the shard whose port it came by.
#[inline(always)]
fn place(header: &Header, job: &JobEntry, shard: u16) -> Result<Place, Reason> {
    let lane = header.slot >> (job.lane_slots_log2 & 31);
    // What keeps a slot on the one queue, and so on the one CPU, that its shard's packets come by.
    if header.slot >= job.slots || job.shards == 0 || lane % job.shards as u32 != shard as u32 {
        return Err(Reason::WrongSlot);
    }
    Ok(Place { lane: lane as u16, slot: header.slot & job.lane_slots().wrapping_sub(1) })
}

/// Checks how many elements a packet carries: one with a flag of `short` none, everything else up to the
/// job's chunk.
#[inline(always)]
fn elements(header: &Header, job: &JobEntry, short: u16) -> Result<(), Reason> {
    let is_none = header.elements == 0;
    if is_none != header.has(short) || header.elements > job.elements {
        return Err(Reason::WrongElements);
    }
    Ok(())
}

/// Checks what a packet to an aggregator wants: a contribution's slot and size, or a probe.
///
/// `shard` is that of the port that it came by. Gives what [`crate::slot::decide`] needs, and `None` for a
/// probe.
#[inline(always)]
pub fn request(header: &Header, job: &JobEntry, shard: u16) -> Result<Option<Contribution>, Reason> {
    if header.kind == Kind::Probe as u8 {
        return if header.elements <= job.elements { Ok(None) } else { Err(Reason::WrongElements) };
    }
    // A round is as short as the question for it would be, and is asked for by its own repetition.
    let is_both = header.flags & (flag::EXPONENT | flag::QUERY) == flag::EXPONENT | flag::QUERY;
    if header.kind != Kind::Contribution as u8 || header.has(flag::MISMATCH) || is_both {
        return Err(Reason::BadType);
    }
    let empty = empty_flag(job);
    // The maximum with zeros is not the others', and a flush is to add what it has.
    let is_odd = header.has(SHORT | flag::PARTIAL | flag::MAXIMUM);
    if header.has(empty) && is_odd {
        return Err(Reason::BadType);
    }
    let limit = if header.has(empty) { 0 } else { limit(header, job)? };
    let place = place(header, job, shard)?;
    elements(header, job, SHORT | empty)?;
    let is_root = job.flags & job_flag::ROOT != 0;
    let is_whole = job.flags & job_flag::WHOLE != 0;
    Ok(Some(Contribution {
        owner: owner(header.job, header.epoch),
        seq: header.seq,
        slot: place.slot,
        lane: place.lane,
        version: header.pool_version(),
        worker: if is_root { header.bitmap_1 } else { header.bitmap_0 },
        all: job.all(),
        awaited: if is_whole { 0 } else { job.all() },
        slots: job.lane_slots(),
        tensor: header.tensor,
        elements: header.elements,
        flags: header.flags & (!flag::EMPTY | empty),
        received: header.received,
        next_exponent: header.next_exponent,
        child: job.flags & job_flag::CHILD != 0,
        ranks: all_workers(job.contributors),
        left_out: 0,
        limit,
        bound: header.next_seq,
    }))
}

/// Flags of packets without elements, in all static jobs.
const SHORT: u16 = flag::EXPONENT | flag::QUERY;

/// Flags of jobs in which [`flag::EMPTY`] has no meaning: a switch's program has no room for contributions
/// without values, and racks send their part with its values.
const WITH_VALUES: u16 = job_flag::WHOLE | job_flag::LANE_BUDGET | job_flag::ROOT;

/// [`flag::EMPTY`] where contributions without values are taken.
#[inline(always)]
const fn empty_flag(job: &JobEntry) -> u16 {
    if job.flags & WITH_VALUES == 0 { flag::EMPTY } else { 0 }
}

/// The limit that a flush carries, and a contribution that states an operation's terms; zero of any other
/// contribution. Racks are waited for: to their parent both are contributions like others. So it is where all
/// sums are whole, and below a parent where a bitmap cannot name all workers.
#[inline(always)]
fn limit(header: &Header, job: &JobEntry) -> Result<u32, Reason> {
    if header.has(flag::PARTIAL) {
        // A round is waited for by all, and the maximum of some workers' values is nobody's.
        if header.has(flag::EXPONENT | flag::QUERY | flag::MAXIMUM) {
            return Err(Reason::BadType);
        }
        if !may_be_part(job) && is_later(header.next_seq, header.seq) {
            return Err(Reason::OutOfTurn);
        }
    }
    let is_nameless = job.flags & job_flag::CHILD != 0 && job.contributors > MAX_WORKERS as u16;
    let is_like_others = job.flags & (job_flag::ROOT | job_flag::WHOLE) != 0 || is_nameless;
    let has_none = is_like_others || header.has(flag::EXPONENT | flag::QUERY);
    Ok(if has_none { 0 } else { header.contributors as u32 })
}

/// Whether contributions may be racks' parts without some workers.
#[inline(always)]
const fn may_be_part(job: &JobEntry) -> bool {
    job.flags & (job_flag::ROOT | job_flag::WHOLE) == job_flag::ROOT
}

/// The ranks that a rack's part leaves out, of those that this aggregator's own table has below the rack
/// (`below`): nobody speaks for another's workers. A rack freezes a part with at least half of its workers;
/// one with fewer, or of a rack without ranks in the table, is none.
#[inline(always)]
pub fn left_out(header: &Header, job: &JobEntry, below: u32) -> Result<u32, Reason> {
    if !header.has(flag::PARTIAL) || !may_be_part(job) || job.contributors > MAX_WORKERS as u16 {
        return Ok(0);
    }
    let part = below & header.bitmap_0;
    if part == 0 || !is_quorum(part.count_ones(), below.count_ones()) {
        return Err(Reason::WrongWorker);
    }
    Ok(below & !part)
}

/// Whether a packet is from the parent of this aggregator, by its fields. In the middle of a tree children
/// mark their packets as the parent does; parents only answer.
#[inline(always)]
pub const fn is_from_parent(header: &Header, job: &JobEntry) -> bool {
    let is_childs = job.flags & job_flag::ROOT != 0 && is_request(header);
    job.flags & job_flag::CHILD != 0 && header.has(flag::LEVEL) && !is_childs
}

/// Whether the parent's answer to a question is for all: in the middle of a tree the question's worker is
/// below some child, and the packet does not name it.
#[inline(always)]
pub const fn wants_of_all(job: &JobEntry) -> bool {
    job.flags & job_flag::ROOT != 0
}

/// Checks a packet from the parent of a [`job_flag::CHILD`]: gives what [`crate::slot::conclude`] needs, and
/// `None` for a report, the answer to a probe.
#[inline(always)]
pub fn conclusion(
    header: &Header,
    src_ip: u32,
    job: &JobEntry,
    parent: &WorkerEntry,
    shard: u16,
) -> Result<Option<Conclusion>, Reason> {
    identity(header, job.flags, job.result_token, job.epoch)?;
    source(src_ip, parent)?;
    if job.flags & job_flag::CHILD == 0 || !header.has(flag::LEVEL) {
        return Err(Reason::BadType);
    }
    if header.kind == Kind::Report as u8 {
        return Ok(None);
    }
    if header.kind != Kind::Result as u8 {
        return Err(Reason::BadType);
    }
    place(header, job, shard)?;
    elements(header, job, SHORT)?;
    // A result of nobody would be read as one of all.
    if header.has(flag::PARTIAL) && header.bitmap_0 == 0 {
        return Err(Reason::WrongWorker);
    }
    Ok(Some(Conclusion {
        owner: owner(header.job, header.epoch),
        seq: header.seq,
        version: header.pool_version(),
        all: job.all(),
        tensor: header.tensor,
        elements: header.elements,
        flags: header.flags,
        exponent: header.exponent,
        next_exponent: header.next_exponent,
        next_seq: header.next_seq,
        contributors: if header.has(flag::PARTIAL) { header.bitmap_0 } else { 0 },
    }))
}

/// Checks a packet that comes to a host: a result, or the answer to a probe; contributions and probes, where
/// the host is one of the job's parameter hosts; all but results in a direct job. Who sent those is checked
/// behind, where all workers are known. A packet to another address is foreign: this host only forwards it.
#[inline(always)]
pub fn answer(header: &Header, src_ip: u32, dst_ip: u32, job: &HostJobEntry) -> Result<(), Reason> {
    if job.flags & job_flag::ACTIVE == 0 {
        return Err(Reason::UnknownJob);
    }
    if dst_ip != job.ip && (dst_ip != job.group_ip || dst_ip == 0) {
        return Err(Reason::Foreign);
    }
    if job.flags & job_flag::DIRECT != 0 {
        return direct(header, job);
    }
    let is_answer = header.kind == Kind::Result as u8 || header.kind == Kind::Report as u8;
    // The other types have no token.
    if !is_answer && !is_request(header) {
        return Err(Reason::BadType);
    }
    identity(header, job.flags, if is_answer { job.result_token } else { job.token }, job.epoch)?;
    if is_answer && !is_source(src_ip, job) {
        return Err(Reason::WrongSource);
    }
    if !is_answer && job.flags & job_flag::PARAMETER == 0 {
        return Err(Reason::BadType);
    }
    if header.elements > job.elements {
        return Err(Reason::WrongElements);
    }
    Ok(())
}

/// Returns whether a packet has the token of this job, among those of a host that have its number.
#[inline(always)]
pub const fn has_token(header: &Header, job: &HostJobEntry) -> bool {
    job.flags & job_flag::ACTIVE != 0 && (header.token == job.token || header.token == job.result_token)
}

/// Checks a packet of a worker of a direct job to another one: both have the job's token.
#[inline(always)]
fn direct(header: &Header, job: &HostJobEntry) -> Result<(), Reason> {
    if header.kind == Kind::Result as u8 {
        return Err(Reason::BadType);
    }
    identity(header, job.flags, job.token, job.epoch)?;
    if header.elements > job.elements {
        return Err(Reason::WrongElements);
    }
    Ok(())
}

/// Whether a job's results come from this address.
#[inline(always)]
fn is_source(src_ip: u32, job: &HostJobEntry) -> bool {
    // An address of zero names nobody; no frame comes from there.
    let mut is_one = src_ip == job.aggregator_ip;
    for host in job.host_ips {
        is_one |= src_ip == host;
    }
    is_one && src_ip != 0
}

/// Bytes of the UDP payload that carries `elements`.
#[inline(always)]
pub const fn payload_len(elements: u16) -> usize {
    HEADER_LEN + elements as usize * ELEMENT_LEN
}

#[cfg(test)]
mod tests;
