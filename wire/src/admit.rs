//! May this packet go on? The checks that every aggregator and every host makes before a packet
//! changes anything. The order is fixed: identity first, so that a stranger learns nothing more.

use crate::{
    Header, Kind, Reason,
    header::{ELEMENT_LEN, HEADER_LEN},
    slot::{Contribution, owner},
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

/// Checks who speaks, of a packet to an aggregator: gives the sender's rank.
///
/// The caller looks the worker up by that rank and goes on with [`source`].
#[inline(always)]
pub fn sender(header: &Header, job: &JobEntry) -> Result<u16, Reason> {
    if job.flags & job_flag::ACTIVE == 0 {
        return Err(Reason::UnknownJob);
    }
    if header.token != job.token {
        return Err(Reason::BadToken);
    }
    if header.epoch != job.epoch {
        return Err(Reason::WrongEpoch);
    }
    if header.fan_in_0 as u16 != job.world || header.bitmap_1 != 0 || header.fan_in_1 > 1 {
        return Err(Reason::WrongWorker);
    }
    rank(header.bitmap_0, job.world).ok_or(Reason::WrongWorker)
}

/// Checks that a packet comes from the address bound to its worker.
#[inline(always)]
pub fn source(src_ip: u32, worker: &WorkerEntry) -> Result<(), Reason> {
    if worker.ip == src_ip { Ok(()) } else { Err(Reason::WrongSource) }
}

/// Checks what a packet to an aggregator wants: a contribution's slot and size, or a probe.
///
/// Gives what [`crate::slot::decide`] needs, and `None` for a probe.
#[inline(always)]
pub fn request(header: &Header, job: &JobEntry) -> Result<Option<Contribution>, Reason> {
    if header.kind == Kind::Probe as u8 {
        return if header.elements <= job.elements { Ok(None) } else { Err(Reason::WrongElements) };
    }
    if header.kind != Kind::Contribution as u8 {
        return Err(Reason::BadType);
    }
    // The chunk names its slot and version too (`stream::place`; the number of slots is a power of
    // two). Their agreement is what keeps a sender's mistake out of a slot that others use.
    let chunk_version = (header.seq & job.slots != 0) as u8;
    if header.slot != header.seq & job.slots.wrapping_sub(1) || header.pool_version() != chunk_version {
        return Err(Reason::WrongSlot);
    }
    if header.elements == 0 || header.elements > job.elements {
        return Err(Reason::WrongElements);
    }
    Ok(Some(Contribution {
        owner: owner(header.job, header.epoch),
        seq: header.seq,
        version: header.pool_version(),
        worker: header.bitmap_0,
        all: all_workers(job.world),
        slots: job.slots,
        elements: header.elements,
        flags: header.flags,
    }))
}

/// Checks a packet that comes to a worker's host: a result, or the answer to a probe.
#[inline(always)]
pub fn answer(header: &Header, src_ip: u32, job: &HostJobEntry) -> Result<(), Reason> {
    if job.flags & job_flag::ACTIVE == 0 {
        return Err(Reason::UnknownJob);
    }
    if header.token != job.token {
        return Err(Reason::BadToken);
    }
    if header.epoch != job.epoch {
        return Err(Reason::WrongEpoch);
    }
    if src_ip != job.aggregator_ip {
        return Err(Reason::WrongSource);
    }
    if header.kind != Kind::Result as u8 && header.kind != Kind::Report as u8 {
        return Err(Reason::BadType);
    }
    if header.elements > job.elements {
        return Err(Reason::WrongElements);
    }
    Ok(())
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
        slot_base: 64,
        slots: 32,
        group_ip: 0,
        epoch: 7,
        world: 4,
        elements: 256,
        flags: job_flag::ACTIVE,
        reserved: 0,
    };

    fn good() -> Header {
        Header {
            kind: Kind::Contribution as u8,
            job: 1,
            epoch: 7,
            seq: 31,
            slot: 31,
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
        type Case = (&'static str, fn(&mut Header), Result<Option<u32>, Reason>);
        let table: [Case; 15] = [
            ("a good one", |_| (), Ok(Some(0b1000))),
            ("a probe", |h| h.kind = Kind::Probe as u8, Ok(None)),
            ("a probe that is too long", |h| (h.kind, h.elements) = (3, 257), Err(Reason::WrongElements)),
            ("a result", |h| h.kind = Kind::Result as u8, Err(Reason::BadType)),
            ("token", |h| h.token = 0, Err(Reason::BadToken)),
            ("epoch", |h| h.epoch = 6, Err(Reason::WrongEpoch)),
            ("fan-in", |h| h.fan_in_0 = 5, Err(Reason::WrongWorker)),
            ("second level", |h| h.bitmap_1 = 1, Err(Reason::WrongWorker)),
            ("two workers", |h| h.bitmap_0 = 3, Err(Reason::WrongWorker)),
            ("no such worker", |h| h.bitmap_0 = 16, Err(Reason::WrongWorker)),
            ("slot beyond the range", |h| (h.seq, h.slot) = (32, 32), Err(Reason::WrongSlot)),
            ("slot of another chunk", |h| h.slot = 30, Err(Reason::WrongSlot)),
            ("version of another chunk", |h| h.seq = 63, Err(Reason::WrongSlot)),
            ("no elements", |h| h.elements = 0, Err(Reason::WrongElements)),
            ("too many elements", |h| h.elements = 257, Err(Reason::WrongElements)),
        ];
        for (what, change, expected) in table {
            let mut header = good();
            change(&mut header);
            let got = sender(&header, &JOB).and_then(|_| request(&header, &JOB));
            assert_eq!(got.map(|c| c.map(|c| c.worker)), expected, "{what}");
        }
        assert_eq!(sender(&good(), &JobEntry { flags: 0, ..JOB }), Err(Reason::UnknownJob));
        let worker = WorkerEntry { ip: 9, ..WorkerEntry::default() };
        assert_eq!((source(9, &worker), source(8, &worker)), (Ok(()), Err(Reason::WrongSource)));
    }

    #[test]
    fn host_refuses() {
        let job = HostJobEntry {
            token: 0xfeed,
            aggregator_ip: 9,
            epoch: 7,
            elements: 256,
            world: 4,
            flags: job_flag::ACTIVE,
            reserved: 0,
        };
        type Change = fn(&mut Header);
        let table: [(&str, Change, u32, Result<(), Reason>); 7] = [
            ("a result", |h| h.kind = Kind::Result as u8, 9, Ok(())),
            ("a report", |h| h.kind = Kind::Report as u8, 9, Ok(())),
            ("a contribution", |_| (), 9, Err(Reason::BadType)),
            ("token", |h| (h.kind, h.token) = (2, 1), 9, Err(Reason::BadToken)),
            ("epoch", |h| (h.kind, h.epoch) = (2, 1), 9, Err(Reason::WrongEpoch)),
            ("source", |h| h.kind = 2, 8, Err(Reason::WrongSource)),
            ("elements", |h| (h.kind, h.elements) = (2, 257), 9, Err(Reason::WrongElements)),
        ];
        for (what, change, src_ip, expected) in table {
            let mut header = good();
            change(&mut header);
            assert_eq!(answer(&header, src_ip, &job), expected, "{what}");
        }
        assert_eq!(answer(&good(), 9, &HostJobEntry { flags: 0, ..job }), Err(Reason::UnknownJob));
    }
}
