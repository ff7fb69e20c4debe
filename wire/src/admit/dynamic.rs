//! The checks of the dynamic mode (ATP): of contributions at an aggregator and at a parameter host, and of
//! the parameter host's results on their way down.

use super::identity::{identity, source};
use crate::{
    Header, Kind, MAX_LANES, Reason,
    dynamic::{
        Contribution,
        host::{Bits, holds},
    },
    header::{NO_SLOT, flag},
    stream::is_later,
    tables::{JobEntry, WorkerEntry, job_flag},
    workers::rank,
};

/// Flags of the other modes.
const FOREIGN: u16 = flag::EXPONENT | flag::MISMATCH | flag::QUERY;

/// Whether a contribution has flags that none has. A flush has been sent before, so that slots give what they
/// have to it; and the maximum of some workers' values is nobody's.
#[inline(always)]
const fn is_foreign(header: &Header) -> bool {
    let is_flush = header.has(flag::PARTIAL);
    header.has(FOREIGN) || is_flush && (!header.has(flag::RESEND) || header.has(flag::MAXIMUM))
}

/// Whether a packet from a worker names the rack of this aggregator among its root's; none where it is the
/// only one.
#[inline(always)]
pub(super) const fn is_of_rack(header: &Header, job: &JobEntry) -> bool {
    if job.flags & job_flag::CHILD == 0 {
        return header.bitmap_1 == 0 && header.fan_in_1 == 0;
    }
    header.bitmap_1 == 1 << (job.rack & 31) && header.fan_in_1 as u16 == job.racks
}

/// Checks that a packet's lane is of the shard whose port it came by.
#[inline(always)]
fn is_of_shard(header: &Header, shards: u16, shard: u16) -> bool {
    (header.lane as usize) < MAX_LANES && shards != 0 && header.lane % shards == shard
}

/// Checks that a packet names a slot of those that its job may take, or none at all.
#[inline(always)]
fn is_in_pool(header: &Header, job: &JobEntry) -> bool {
    header.slot < job.slots || header.slot == NO_SLOT
}

/// Checks what a packet of an admitted sender wants of an aggregator (after [`super::sender`] and
/// [`super::source`]).
///
/// `shard` is that of the port that it came by. Gives what [`crate::dynamic::decide`] needs, and `None` for a
/// probe, which goes up ([`crate::dynamic::passed`]): the parameter host answers it, so that the answer shows
/// the whole way. A contribution without a slot is marked as sent again, and so passes every slot.
#[inline(always)]
pub fn request(header: &Header, job: &JobEntry, shard: u16) -> Result<Option<Contribution>, Reason> {
    if header.kind == Kind::Probe as u8 {
        return if header.elements <= job.elements { Ok(None) } else { Err(Reason::WrongElements) };
    }
    if header.kind != Kind::Contribution as u8 || is_foreign(header) {
        return Err(Reason::BadType);
    }
    if !is_of_shard(header, job.shards, shard) || !is_in_pool(header, job) {
        return Err(Reason::WrongSlot);
    }
    if header.elements == 0 || header.elements > job.elements {
        return Err(Reason::WrongElements);
    }
    let aggregates = !header.has(flag::RESEND);
    // Floats are not added as integers.
    if aggregates && (header.has(flag::RAW_FLOAT) || header.slot == NO_SLOT) {
        return Err(Reason::BadType);
    }
    // Below the root a packet may hold a part of a rack, but somebody's values.
    if job.flags & job_flag::ROOT != 0 && header.bitmap_0 == 0 {
        return Err(Reason::WrongWorker);
    }
    Ok(Some(Contribution::of(header)))
}

/// The destination of a packet from above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Down {
    /// A result: frees the slot that it names, and goes to all below. Without elements it asks for floats, or
    /// refuses.
    All,
    /// The parameter host's answer to a probe: goes to the worker with this rank; at the root, to the rack
    /// that it came through.
    One(u16),
}

/// Checks a packet to an aggregator from where its sums go to: a parameter host, or the root of a rack's.
#[inline(always)]
pub fn result(
    header: &Header,
    src_ip: u32,
    job: &JobEntry,
    parent: &WorkerEntry,
    shard: u16,
) -> Result<Down, Reason> {
    identity(header, job.flags, job.result_token, job.epoch)?;
    source(src_ip, parent)?;
    if header.elements > job.elements {
        return Err(Reason::WrongElements);
    }
    if header.kind == Kind::Report as u8 {
        let bitmap = if job.flags & job_flag::ROOT != 0 { header.bitmap_1 } else { header.bitmap_0 };
        return rank(bitmap, job.world).map(Down::One).ok_or(Reason::WrongWorker);
    }
    if header.kind != Kind::Result as u8 {
        return Err(Reason::BadType);
    }
    if !is_of_shard(header, job.shards, shard) || !is_in_pool(header, job) {
        return Err(Reason::WrongSlot);
    }
    Ok(Down::All)
}

/// A job as its parameter host must know it to admit packets.
#[derive(Clone, Copy, Debug)]
pub struct HostTerms<'a> {
    /// The job's secret number.
    pub token: u64,
    /// The incarnation.
    pub epoch: u16,
    /// Most elements in a chunk.
    pub elements: u16,
    /// Shards.
    pub shards: u16,
    /// Lanes.
    pub lanes: u16,
    /// All workers.
    pub all: &'a Bits,
}

/// Checks a packet of the job to its parameter host: gives the workers whose values it holds, and `None` for
/// a probe. The source is the caller's to check: it is an aggregator's, or that of the one worker in it.
///
/// `shard` is that of the port that it came by.
pub fn to_host(header: &Header, job: &HostTerms<'_>, shard: u16) -> Result<Option<Bits>, Reason> {
    identity(header, job_flag::ACTIVE, job.token, job.epoch)?;
    if header.kind == Kind::Probe as u8 {
        return if header.elements <= job.elements { Ok(None) } else { Err(Reason::WrongElements) };
    }
    if header.kind != Kind::Contribution as u8 || is_foreign(header) {
        return Err(Reason::BadType);
    }
    if !is_of_shard(header, job.shards, shard) || header.lane >= job.lanes {
        return Err(Reason::WrongSlot);
    }
    if header.elements == 0 || header.elements > job.elements {
        return Err(Reason::WrongElements);
    }
    if header.has(flag::PARTIAL) && is_later(header.next_seq, header.seq) {
        return Err(Reason::OutOfTurn);
    }
    holds(header, job.all).map(Some).ok_or(Reason::WrongWorker)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admit::sender;

    const JOB: JobEntry = JobEntry {
        token: 0xfeed,
        result_token: 0xbeef,
        slot_base: 0,
        slots: 128,
        group_ip: 0,
        epoch: 7,
        world: 4,
        elements: 256,
        flags: job_flag::ACTIVE | job_flag::DYNAMIC,
        contributors: 4,
        shards: 2,
        lane_slots_log2: 0,
        rack: 0,
        racks: 0,
        hosts: 1,
    };

    fn good() -> Header {
        Header {
            kind: Kind::Contribution as u8,
            job: 1,
            epoch: 7,
            seq: 31,
            slot: 127,
            fan_in_0: 4,
            elements: 256,
            bitmap_0: 0b1000,
            lane: 3,
            token: 0xfeed,
            ..Header::default()
        }
    }

    type Change = fn(&mut Header);

    #[test]
    fn an_only_aggregator_refuses() {
        let table: [(&str, Change, Result<bool, Reason>); 24] = [
            ("a good one", |_| (), Ok(true)),
            ("a probe", |h| (h.kind, h.elements) = (Kind::Probe as u8, 0), Ok(false)),
            ("a long probe", |h| (h.kind, h.elements) = (Kind::Probe as u8, 257), Err(Reason::WrongElements)),
            ("token", |h| h.token = 1, Err(Reason::BadToken)),
            ("epoch", |h| h.epoch = 8, Err(Reason::WrongEpoch)),
            ("two workers", |h| h.bitmap_0 = 3, Err(Reason::WrongWorker)),
            ("no such worker", |h| h.bitmap_0 = 16, Err(Reason::WrongWorker)),
            ("fan-in", |h| h.fan_in_0 = 3, Err(Reason::WrongWorker)),
            ("a rack", |h| (h.bitmap_1, h.fan_in_1) = (1, 2), Err(Reason::WrongWorker)),
            ("another level", |h| h.flags = flag::LEVEL, Err(Reason::WrongWorker)),
            ("a result", |h| h.kind = Kind::Result as u8, Err(Reason::BadType)),
            ("a question", |h| h.flags = flag::QUERY, Err(Reason::BadType)),
            ("an exponent round", |h| h.flags = flag::EXPONENT, Err(Reason::BadType)),
            ("a lane of the other shard", |h| h.lane = 2, Err(Reason::WrongSlot)),
            ("no such lane", |h| h.lane = 33, Err(Reason::WrongSlot)),
            ("a lane beyond those of any shard", |h| h.lane = u16::MAX, Err(Reason::WrongSlot)),
            ("a slot beyond the pool", |h| h.slot = 128, Err(Reason::WrongSlot)),
            ("no slot", |h| h.slot = NO_SLOT, Err(Reason::BadType)),
            ("no slot, sent again", |h| (h.slot, h.flags) = (NO_SLOT, flag::RESEND), Ok(true)),
            ("floats to be added", |h| h.flags = flag::RAW_FLOAT, Err(Reason::BadType)),
            ("no elements", |h| h.elements = 0, Err(Reason::WrongElements)),
            ("a flush", |h| h.flags = flag::PARTIAL | flag::RESEND, Ok(true)),
            ("a flush that slots would keep", |h| h.flags = flag::PARTIAL, Err(Reason::BadType)),
            (
                "a flush of a maximum",
                |h| h.flags = flag::PARTIAL | flag::RESEND | flag::MAXIMUM,
                Err(Reason::BadType),
            ),
        ];
        for (what, change, expected) in table {
            let mut header = good();
            change(&mut header);
            let got = sender(&header, &JOB).and_then(|_| request(&header, &JOB, 1));
            assert_eq!(got.map(|c| c.is_some()), expected, "{what}");
        }
    }

    #[test]
    fn racks_and_their_root_know_their_senders() {
        let rack = JobEntry { flags: JOB.flags | job_flag::CHILD, rack: 2, racks: 3, ..JOB };
        let below = Header { bitmap_1: 4, fan_in_1: 3, ..good() };
        assert_eq!(sender(&below, &rack), Ok(3));
        assert_eq!(
            sender(&Header { bitmap_1: 2, ..below }, &rack),
            Err(Reason::WrongWorker),
            "another rack's"
        );
        assert_eq!(sender(&good(), &rack), Err(Reason::WrongWorker));
        let root = JobEntry { flags: JOB.flags | job_flag::ROOT, world: 3, ..JOB };
        let part = Header { flags: flag::LEVEL | flag::RESEND, bitmap_0: 0b11, ..below };
        assert_eq!(sender(&part, &root), Ok(2));
        assert_eq!(request(&part, &root, 1).map(|c| c.map(|c| c.sender)), Ok(Some(4)));
        let nobody = Header { bitmap_0: 0, ..part };
        assert_eq!(request(&nobody, &root, 1), Err(Reason::WrongWorker));
        assert_eq!(sender(&below, &root), Err(Reason::WrongWorker), "past its rack");
    }

    #[test]
    fn results_come_from_the_parameter_host() {
        let host = WorkerEntry { ip: 9, ..WorkerEntry::default() };
        let good = Header { kind: Kind::Result as u8, token: 0xbeef, ..good() };
        let of = |header: &Header, ip| result(header, ip, &JOB, &host, 1);
        assert_eq!(of(&good, 9), Ok(Down::All));
        assert_eq!(of(&Header { elements: 0, flags: flag::RAW_FLOAT, ..good }, 9), Ok(Down::All));
        assert_eq!(of(&good, 8), Err(Reason::WrongSource));
        let table: [(Change, Reason); 6] = [
            (|h| h.kind = Kind::Contribution as u8, Reason::BadType),
            (|h| h.token = 0xfeed, Reason::BadToken),
            (|h| h.epoch = 1, Reason::WrongEpoch),
            (|h| h.slot = 128, Reason::WrongSlot),
            (|h| h.lane = 0, Reason::WrongSlot),
            (|h| h.elements = 257, Reason::WrongElements),
        ];
        for (change, reason) in table {
            let mut header = good;
            change(&mut header);
            assert_eq!(of(&header, 9), Err(reason));
        }
    }

    #[test]
    fn answers_to_probes_find_their_way_down() {
        let host = WorkerEntry { ip: 9, ..WorkerEntry::default() };
        let report = Header { kind: Kind::Report as u8, token: 0xbeef, slot: NO_SLOT, elements: 0, ..good() };
        let at = |job: &JobEntry, report: &Header, ip| result(report, ip, job, &host, 1);
        assert_eq!(at(&JOB, &report, 9), Ok(Down::One(3)), "the only level knows workers");
        assert_eq!(at(&JOB, &report, 8), Err(Reason::WrongSource));
        assert_eq!(at(&JOB, &Header { elements: 257, ..report }, 9), Err(Reason::WrongElements));
        for bitmap_0 in [0, 3, 16] {
            let nobody = Header { bitmap_0, ..report };
            assert_eq!(at(&JOB, &nobody, 9), Err(Reason::WrongWorker), "{bitmap_0:#b}");
        }
        let below = Header { bitmap_1: 0b10, fan_in_1: 3, flags: flag::LEVEL, ..report };
        let root = JobEntry { flags: JOB.flags | job_flag::ROOT, world: 3, ..JOB };
        assert_eq!(at(&root, &below, 9), Ok(Down::One(1)), "the root knows racks, and workers beside it");
        assert_eq!(at(&root, &Header { bitmap_1: 8, ..below }, 9), Err(Reason::WrongWorker));
        let rack = JobEntry { flags: JOB.flags | job_flag::CHILD, rack: 1, racks: 3, ..JOB };
        assert_eq!(at(&rack, &below, 9), Ok(Down::One(3)), "and the rack the worker");
    }

    #[test]
    fn the_host_admits_what_holds_its_workers() {
        let mut all = [0; 32];
        all[0] = 0b1111;
        let terms = HostTerms { token: 0xfeed, epoch: 7, elements: 256, shards: 2, lanes: 4, all: &all };
        let mut one = [0; 32];
        one[0] = 0b1000;
        assert_eq!(to_host(&good(), &terms, 1), Ok(Some(one)));
        assert_eq!(to_host(&Header { kind: Kind::Probe as u8, ..good() }, &terms, 1), Ok(None));
        let flush = Header { flags: flag::PARTIAL | flag::RESEND, next_seq: 31, ..good() };
        assert_eq!(to_host(&flush, &terms, 1), Ok(Some(one)));
        let early = Header { next_seq: 32, ..flush };
        assert_eq!(to_host(&early, &terms, 1), Err(Reason::OutOfTurn), "its operation begins later");
        let table: [(Change, Reason); 8] = [
            (|h| h.flags = flag::PARTIAL, Reason::BadType),
            (|h| h.kind = Kind::Result as u8, Reason::BadType),
            (|h| h.token = 1, Reason::BadToken),
            (|h| h.epoch = 1, Reason::WrongEpoch),
            (|h| h.lane = 5, Reason::WrongSlot),
            (|h| h.bitmap_0 = 16, Reason::WrongWorker),
            (|h| h.elements = 257, Reason::WrongElements),
            (|h| h.elements = 0, Reason::WrongElements),
        ];
        for (change, reason) in table {
            let mut header = good();
            change(&mut header);
            assert_eq!(to_host(&header, &terms, 1), Err(reason));
        }
    }
}
