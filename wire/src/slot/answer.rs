//! The headers of what a slot sends. Each is the header of the packet that asked for it, with some fields
//! changed: what is not named here comes back as its sender wrote it.

use super::{SlotMeta, Version};
use crate::{
    Header, Kind,
    header::flag,
    slot::state,
    tables::{JobEntry, job_flag},
    workers::all_workers,
};

impl SlotMeta {
    /// The version that a packet names.
    #[inline(always)]
    pub fn version(&self, number: u8) -> Version {
        if number == 0 { self.versions[0] } else { self.versions[1] }
    }
}

/// Marks and bitmaps of an answer to all senders of the job: a root's senders are racks, and so are those of
/// an aggregator in the middle of a tree, whose parent's fan-in is another.
#[inline(always)]
fn to_senders(request: &Header, flags: u16, job: &JobEntry) -> Header {
    let keep = flags | request.flags & flag::POOL_VERSION;
    let (kind, token) = (Kind::Result as u8, job.result_token);
    let answer = Header { kind, token, contributors: job.contributors, ..*request };
    if job.flags & job_flag::ROOT != 0 {
        Header { flags: keep | flag::LEVEL, bitmap_1: job.all(), fan_in_1: job.world as u8, ..answer }
    } else {
        Header { flags: keep, bitmap_0: job.all(), bitmap_1: 0, fan_in_0: job.world as u8, ..answer }
    }
}

/// The result of a final version; the elements are the version's values. One without some workers names its
/// contributors by their ranks.
#[inline(always)]
pub fn result(request: &Header, version: &Version, job: &JobEntry) -> Header {
    let whole = Header {
        next_seq: version.next,
        next_exponent: version.next_exponent,
        elements: version.elements,
        ..to_senders(request, version.flags & flag::MERGED, job)
    };
    if version.state & state::PARTIAL == 0 { whole } else { of_some(whole, version.seen) }
}

/// The header of a sum of the workers with these ranks.
#[inline(always)]
fn of_some(whole: Header, ranks: u32) -> Header {
    let (flags, contributors) = (whole.flags | flag::PARTIAL, ranks.count_ones() as u16);
    Header { flags, contributors, bitmap_0: ranks, ..whole }
}

/// The result of an exponent round.
#[inline(always)]
pub fn agreed(request: &Header, version: &Version, job: &JobEntry) -> Header {
    let flags = flag::EXPONENT | version.flags & flag::ECN_ECHO;
    Header { exponent: version.exponent, ..to_senders(request, flags, job) }
}

/// The refusal of another operation's chunk: names the operation that the slot holds.
#[inline(always)]
pub fn refusal(request: &Header, version: &Version, job: &JobEntry) -> Header {
    let flags = flag::MISMATCH | request.flags & (flag::EXPONENT | flag::QUERY);
    Header { tensor: version.tensor, ..to_senders(request, flags, job) }
}

/// The answer to a question whose contribution is wanted. Below other aggregators it keeps the bit of the
/// worker that asked.
#[inline(always)]
pub fn wanted(request: &Header, job: &JobEntry) -> Header {
    let asked_by = request.bitmap_0;
    Header { bitmap_0: asked_by, ..to_senders(request, flag::QUERY, job) }
}

/// A worker's question on its way to the parent, as one of its aggregator's. It keeps the worker's bit.
#[inline(always)]
pub fn question(request: &Header, job: &JobEntry) -> Header {
    Header { bitmap_0: request.bitmap_0, ..up(request, flag::QUERY, job) }
}

/// A child's part on its way to the parent; the elements are the version's values. One without some workers
/// names all of the job but those.
#[inline(always)]
pub fn part(request: &Header, version: &Version, job: &JobEntry) -> Header {
    let whole = Header {
        next_exponent: version.next_exponent,
        elements: version.elements,
        ..up(request, version.flags, job)
    };
    let is_whole = version.state & state::PARTIAL == 0;
    if is_whole { whole } else { of_some(whole, all_workers(job.contributors) & !version.next) }
}

/// A child's exponent on its way to the parent.
#[inline(always)]
pub fn part_of_round(request: &Header, version: &Version, job: &JobEntry) -> Header {
    let flags = flag::EXPONENT | version.flags & flag::ECN_ECHO;
    Header { next_exponent: version.exponent, ..up(request, flags, job) }
}

#[inline(always)]
fn up(request: &Header, flags: u16, job: &JobEntry) -> Header {
    let keep = request.flags & (flag::POOL_VERSION | flag::MAXIMUM | flag::RESEND);
    Header {
        kind: Kind::Contribution as u8,
        flags: flags | keep | flag::LEVEL,
        bitmap_0: job.all(),
        bitmap_1: 1 << (job.rack & 31),
        fan_in_1: job.racks as u8,
        ..*request
    }
}
