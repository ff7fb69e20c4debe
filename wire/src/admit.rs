//! May this packet go on? The checks that every aggregator and every host makes before a packet
//! changes anything. The order is fixed: identity first, so that a stranger learns nothing more.

pub mod dynamic;

use crate::{
    Header, Kind, Reason,
    header::{ELEMENT_LEN, HEADER_LEN, flag},
    slot::{Conclusion, Contribution, owner},
    tables::{HostJobEntry, JobEntry, WorkerEntry, job_flag},
};

/// The bitmap of a job's workers.
#[inline(always)]
pub const fn all_workers(world: u16) -> u32 {
    if world >= 32 { u32::MAX } else { (1 << world) - 1 }
}

/// The rank in a one-hot bitmap of a job with `world` workers.
#[inline(always)]
pub const fn rank(bitmap: u32, world: u16) -> Option<u16> {
    if bitmap == 0 || bitmap & (bitmap - 1) != 0 || bitmap & !all_workers(world) != 0 {
        return None;
    }
    // trailing_zeros without the instruction that eBPF lacks.
    let mut rank = 0;
    if bitmap & 0xffff_0000 != 0 {
        rank += 16;
    }
    if bitmap & 0xff00_ff00 != 0 {
        rank += 8;
    }
    if bitmap & 0xf0f0_f0f0 != 0 {
        rank += 4;
    }
    if bitmap & 0xcccc_cccc != 0 {
        rank += 2;
    }
    if bitmap & 0xaaaa_aaaa != 0 {
        rank += 1;
    }
    Some(rank)
}

/// Checks whose packet it is: the job's, in this incarnation.
#[inline(always)]
fn identity(header: &Header, flags: u16, token: u64, epoch: u16) -> Result<(), Reason> {
    if flags & job_flag::ACTIVE == 0 {
        return Err(Reason::UnknownJob);
    }
    if header.token != token {
        return Err(Reason::BadToken);
    }
    if header.epoch != epoch {
        return Err(Reason::WrongEpoch);
    }
    Ok(())
}

/// Checks who speaks, of a packet to an aggregator: gives the sender's rank; at the root, the rack's.
///
/// The caller looks the sender up by that rank and goes on with [`source`].
#[inline(always)]
pub fn sender(header: &Header, job: &JobEntry) -> Result<u16, Reason> {
    identity(header, job.flags, job.token, job.epoch)?;
    sender_rank(header, job)
}

/// The rank of a worker that still sends to a job which was removed here: its entry stays, without [`job_flag::ACTIVE`]. The
/// caller holds the address against [`source`], and answers with [`unknown_job`].
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

/// Checks that a packet comes from the address bound to its worker.
#[inline(always)]
pub fn source(src_ip: u32, worker: &WorkerEntry) -> Result<(), Reason> {
    if worker.ip == src_ip { Ok(()) } else { Err(Reason::WrongSource) }
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

/// Checks how many elements a packet carries: an exponent round and a question none, everything else up to the job's
/// chunk.
#[inline(always)]
fn elements(header: &Header, job: &JobEntry) -> Result<(), Reason> {
    let is_none = header.elements == 0;
    if is_none != header.has(flag::EXPONENT | flag::QUERY) || header.elements > job.elements {
        return Err(Reason::WrongElements);
    }
    Ok(())
}

/// Checks what a packet to an aggregator wants: a contribution's slot and size, or a probe.
///
/// `shard` is that of the port that it came by. Gives what [`crate::slot::decide`] needs, and `None` for a probe.
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
    let place = place(header, job, shard)?;
    elements(header, job)?;
    let is_root = job.flags & job_flag::ROOT != 0;
    Ok(Some(Contribution {
        owner: owner(header.job, header.epoch),
        seq: header.seq,
        slot: place.slot,
        lane: place.lane,
        version: header.pool_version(),
        worker: if is_root { header.bitmap_1 } else { header.bitmap_0 },
        all: job.all(),
        slots: job.lane_slots(),
        tensor: header.tensor,
        elements: header.elements,
        flags: header.flags,
        received: header.received,
        next_exponent: header.next_exponent,
        child: job.flags & job_flag::CHILD != 0,
    }))
}

/// Checks a packet from the parent of a [`job_flag::CHILD`]: gives what [`crate::slot::conclude`] needs, and `None`
/// for a report, the answer to a probe.
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
    elements(header, job)?;
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
    }))
}

/// Checks a packet that comes to a host: a result, or the answer to a probe; contributions and probes, where the host is
/// one of the job's parameter hosts. Who sent those is checked behind, where all workers are known. A packet to another
/// address is foreign: this host only forwards it.
#[inline(always)]
pub fn answer(header: &Header, src_ip: u32, dst_ip: u32, job: &HostJobEntry) -> Result<(), Reason> {
    if job.flags & job_flag::ACTIVE == 0 {
        return Err(Reason::UnknownJob);
    }
    if dst_ip != job.ip && (dst_ip != job.group_ip || dst_ip == 0) {
        return Err(Reason::Foreign);
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
mod tests {
    use super::*;

    const JOB: JobEntry = JobEntry {
        token: 0xfeed,
        result_token: 0xbeef,
        slot_base: 64,
        slots: 128,
        group_ip: 0,
        epoch: 7,
        world: 4,
        elements: 256,
        flags: job_flag::ACTIVE,
        contributors: 4,
        shards: 2,
        lane_slots_log2: 5,
        rack: 0,
        racks: 0,
        hosts: 0,
    };

    fn good() -> Header {
        Header {
            kind: Kind::Contribution as u8,
            job: 1,
            epoch: 7,
            seq: 31,
            slot: 63,
            fan_in_0: 4,
            elements: 256,
            bitmap_0: 0b1000,
            token: 0xfeed,
            ..Header::default()
        }
    }

    #[test]
    fn ranks() {
        for world in 1..=32u16 {
            for bit in 0..32u16 {
                assert_eq!(rank(1 << bit, world), (bit < world).then_some(bit), "{bit} of {world}");
            }
            assert_eq!(rank(0, world), None);
            assert_eq!(rank(3, world), None);
        }
    }

    #[test]
    fn aggregator_refuses() {
        type Case = (&'static str, fn(&mut Header), Result<Option<(u32, u16, u32)>, Reason>);
        let table: [Case; 25] = [
            ("a good one", |_| (), Ok(Some((0b1000, 1, 31)))),
            ("the other lane of the shard", |h| h.slot = 96, Ok(Some((0b1000, 3, 0)))),
            ("a probe", |h| h.kind = Kind::Probe as u8, Ok(None)),
            ("a probe that is too long", |h| (h.kind, h.elements) = (3, 257), Err(Reason::WrongElements)),
            ("a result", |h| h.kind = Kind::Result as u8, Err(Reason::BadType)),
            ("one marked as a refusal", |h| h.flags = flag::MISMATCH, Err(Reason::BadType)),
            ("token", |h| h.token = 0, Err(Reason::BadToken)),
            ("epoch", |h| h.epoch = 6, Err(Reason::WrongEpoch)),
            ("fan-in", |h| h.fan_in_0 = 5, Err(Reason::WrongWorker)),
            ("second level", |h| h.bitmap_1 = 1, Err(Reason::WrongWorker)),
            ("from a rack", |h| h.flags = flag::LEVEL, Err(Reason::WrongWorker)),
            ("two workers", |h| h.bitmap_0 = 3, Err(Reason::WrongWorker)),
            ("no such worker", |h| h.bitmap_0 = 16, Err(Reason::WrongWorker)),
            ("slot beyond the range", |h| h.slot = 128, Err(Reason::WrongSlot)),
            ("no slot", |h| h.slot = u32::MAX, Err(Reason::WrongSlot)),
            ("slot of the other shard", |h| h.slot = 64, Err(Reason::WrongSlot)),
            ("slot of the other shard, first lane", |h| h.slot = 31, Err(Reason::WrongSlot)),
            ("no elements", |h| h.elements = 0, Err(Reason::WrongElements)),
            ("too many elements", |h| h.elements = 257, Err(Reason::WrongElements)),
            ("an exponent round", |h| (h.elements, h.flags) = (0, flag::EXPONENT), Ok(Some((0b1000, 1, 31)))),
            ("a question", |h| (h.elements, h.flags) = (0, flag::QUERY), Ok(Some((0b1000, 1, 31)))),
            ("a question with elements", |h| h.flags = flag::QUERY, Err(Reason::WrongElements)),
            (
                "the question of a round",
                |h| (h.elements, h.flags) = (0, flag::QUERY | flag::EXPONENT),
                Err(Reason::BadType),
            ),
            ("an exponent round with elements", |h| h.flags = flag::EXPONENT, Err(Reason::WrongElements)),
            ("any chunk: the slot decides", |h| h.seq = 77, Ok(Some((0b1000, 1, 31)))),
        ];
        for (what, change, expected) in table {
            let mut header = good();
            change(&mut header);
            let got = sender(&header, &JOB).and_then(|_| request(&header, &JOB, 1));
            assert_eq!(got.map(|c| c.map(|c| (c.worker, c.lane, c.slot))), expected, "{what}");
        }
        assert_eq!(sender(&good(), &JobEntry { flags: 0, ..JOB }), Err(Reason::UnknownJob));
        let former = JobEntry { flags: 0, ..JOB };
        type Change = (&'static str, fn(&mut Header), Option<u16>);
        let changes: [Change; 6] = [
            ("a worker that was not told", |_| (), Some(3)),
            ("its probe", |h| h.kind = Kind::Probe as u8, Some(3)),
            ("no worker of it", |h| h.bitmap_0 = 16, None),
            ("no packet of a worker", |h| h.kind = Kind::Report as u8, None),
            ("another token", |h| h.token = 1, None),
            ("another epoch", |h| h.epoch = 8, None),
        ];
        for (what, change, expected) in changes {
            let mut header = good();
            change(&mut header);
            assert_eq!(former_sender(&header, &former), expected, "{what}");
            assert_eq!(former_sender(&header, &JOB), None, "{what}, of a job that is here");
        }
        let never = Header { token: 0, epoch: 0, fan_in_0: 0, ..good() };
        assert_eq!(former_sender(&never, &JobEntry::default()), None);
        let told = unknown_job(&good(), &former);
        assert_eq!((told.kind, told.flags, told.elements), (Kind::Report as u8, flag::UNKNOWN_JOB, 256));
        assert_eq!(told.token, 0xbeef);
        let worker = WorkerEntry { ip: 9, ..WorkerEntry::default() };
        assert_eq!((source(9, &worker), source(8, &worker)), (Ok(()), Err(Reason::WrongSource)));
    }

    #[test]
    fn a_root_has_racks_for_workers() {
        let root = JobEntry { flags: job_flag::ACTIVE | job_flag::ROOT, ..JOB };
        let rack = Header { flags: flag::LEVEL, fan_in_1: 4, bitmap_1: 2, bitmap_0: 0xff, ..good() };
        assert_eq!(sender(&rack, &root), Ok(1));
        let contribution = request(&rack, &root, 1).map(|c| c.map(|c| (c.worker, c.child)));
        assert_eq!(contribution, Ok(Some((2, false))));
        assert_eq!(sender(&good(), &root), Err(Reason::WrongWorker), "a worker past its rack");
        assert_eq!(sender(&Header { bitmap_1: 3, ..rack }, &root), Err(Reason::WrongWorker));
    }

    #[test]
    fn a_child_listens_to_its_parent() {
        let child = JobEntry { flags: job_flag::ACTIVE | job_flag::CHILD, ..JOB };
        let parent = WorkerEntry { ip: 9, ..WorkerEntry::default() };
        let result =
            Header { kind: Kind::Result as u8, token: 0xbeef, flags: flag::LEVEL, next_seq: 99, ..good() };
        let got =
            |header: &Header, ip, job| conclusion(header, ip, job, &parent, 1).map(|c| c.map(|c| c.next_seq));
        assert_eq!(got(&result, 9, &child), Ok(Some(99)));
        assert_eq!(got(&Header { kind: Kind::Report as u8, ..result }, 9, &child), Ok(None));
        type Change = fn(&mut Header);
        let table: [(&str, Change, Reason); 6] = [
            ("a contribution", |h| h.kind = Kind::Contribution as u8, Reason::BadType),
            ("not between levels", |h| h.flags = 0, Reason::BadType),
            ("the token of contributions", |h| h.token = 0xfeed, Reason::BadToken),
            ("epoch", |h| h.epoch = 8, Reason::WrongEpoch),
            ("slot", |h| h.slot = 0, Reason::WrongSlot),
            ("elements", |h| h.elements = 0, Reason::WrongElements),
        ];
        for (what, change, reason) in table {
            let mut header = result;
            change(&mut header);
            assert_eq!(got(&header, 9, &child), Err(reason), "{what}");
        }
        assert_eq!(got(&result, 8, &child), Err(Reason::WrongSource));
        assert_eq!(got(&result, 9, &JOB), Err(Reason::BadType), "it has no parent");
        assert_eq!(
            sender(&good(), &child).and_then(|_| request(&good(), &child, 1)).map(|c| c.map(|c| c.child)),
            Ok(Some(true))
        );
    }

    #[test]
    fn host_refuses() {
        let job = HostJobEntry {
            token: 0xfeed,
            result_token: 0xbeef,
            ip: 20,
            group_ip: 0,
            aggregator_ip: 9,
            host_ips: [11, 0, 0, 12],
            epoch: 7,
            elements: 256,
            world: 4,
            flags: job_flag::ACTIVE,
            reserved: 0,
        };
        type Change = fn(&mut Header);
        let table: [(&str, Change, u32, Result<(), Reason>); 10] = [
            ("a result", |h| (h.kind, h.token) = (2, 0xbeef), 9, Ok(())),
            ("a parameter host's", |h| (h.kind, h.token) = (2, 0xbeef), 12, Ok(())),
            ("nobody's", |h| (h.kind, h.token) = (2, 0xbeef), 0, Err(Reason::WrongSource)),
            ("a stop", |h| h.kind = Kind::Stop as u8, 9, Err(Reason::BadType)),
            ("a report", |h| (h.kind, h.token) = (4, 0xbeef), 9, Ok(())),
            ("a contribution", |_| (), 9, Err(Reason::BadType)),
            ("the token of contributions", |h| h.kind = 2, 9, Err(Reason::BadToken)),
            ("epoch", |h| (h.kind, h.token, h.epoch) = (2, 0xbeef, 1), 9, Err(Reason::WrongEpoch)),
            ("source", |h| (h.kind, h.token) = (2, 0xbeef), 8, Err(Reason::WrongSource)),
            ("elements", |h| (h.kind, h.token, h.elements) = (2, 0xbeef, 257), 9, Err(Reason::WrongElements)),
        ];
        for (what, change, src_ip, expected) in table {
            let mut header = good();
            change(&mut header);
            assert_eq!(answer(&header, src_ip, 20, &job), expected, "{what}");
        }
        assert_eq!(answer(&good(), 9, 20, &HostJobEntry { flags: 0, ..job }), Err(Reason::UnknownJob));
        let result = Header { kind: Kind::Result as u8, token: 0xbeef, ..good() };
        for (dst_ip, group_ip, expected) in
            [(21, 0, Err(Reason::Foreign)), (0, 0, Err(Reason::Foreign)), (21, 21, Ok(())), (20, 21, Ok(()))]
        {
            let job = HostJobEntry { group_ip, ..job };
            assert_eq!(answer(&result, 9, dst_ip, &job), expected, "to {dst_ip}, group {group_ip}");
            let forged = Header { token: 1, ..result };
            assert_eq!(
                answer(&forged, 9, dst_ip, &job).is_err_and(|r| r == Reason::Foreign),
                expected.is_err()
            );
        }
        let host = HostJobEntry { flags: job_flag::ACTIVE | job_flag::PARAMETER, ..job };
        assert_eq!(answer(&good(), 77, 20, &host), Ok(()), "a contribution, whoever sent it");
        assert_eq!(answer(&Header { token: 0xbeef, ..good() }, 77, 20, &host), Err(Reason::BadToken));
        assert_eq!(answer(&result, 77, 20, &host), Err(Reason::WrongSource));
    }
}
