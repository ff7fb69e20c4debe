//! The tables of a slot's cases (docs/protocol.md, "Slot" and "Dynamic mode"), each from an empty slot.

mod bounded;

pub use bounded::bounded;

use sumac_wire::{
    Header, Kind,
    Reason::{
        self, Added, Collided, Completed, Concluded, Duplicate, Flushed, Forwarded, Mismatch, OutOfTurn,
        Passed, Replied, Stale, Wanted,
    },
    frame::OVERHEAD,
    header::{HEADER_LEN, NO_SLOT, flag},
};

use crate::{
    packets::{TOS, at_rack, dynamic_job, frame, header, setup, static_job},
    record::{Job, Setup, Step},
    reference::Reference,
};

/// Packets of a case: the rank and the chunk of a contribution, or the chunk alone.
#[derive(Clone, Copy)]
enum Packet {
    From(usize, u32),
    /// The contributions of all three workers.
    All(u32),
    Again(usize, u32),
    /// A contribution without values.
    Empty(usize, u32),
    /// A contribution whose sender's values overflowed, sent again.
    Overflowed(usize, u32),
    Floats(usize, u32),
    WithoutSlot(usize, u32),
    OtherOperation(usize, u32),
    /// A contribution with the terms of an operation: the limit.
    Terms(usize, u32, u16),
    /// A flush of the operation that begins with chunk 0; its limit is the largest.
    Flush(usize, u32),
    /// The contribution of another job, to the same slot.
    OtherJob(usize, u32),
    /// The parameter host's result.
    Result(u32),
}
use Packet::{
    Again, All, Empty, Floats, Flush, From, OtherJob, OtherOperation, Overflowed, Result, Terms, WithoutSlot,
};

/// The flags of an answer, and the ranks whose values it carries.
type Carried = Option<(u16, &'static [usize])>;

/// A case: its name, its packets, and for the last of them the counter, the answer, and the chunks in the
/// slot afterwards, each with the bitmap of its contributors.
type Case = (&'static str, &'static [Packet], Reason, Carried, &'static [(u32, u32)]);

const SUM: Carried = Some((0, &[0, 1, 2]));
const OVERFLOW: Carried = Some((flag::OVERFLOW, &[0, 1, 2]));
const PARTIAL: Carried = Some((flag::PARTIAL, &[0, 1]));
const REFUSAL: Carried = Some((flag::MISMATCH, &[1]));
/// The request for values, to a packet that has none.
const WANTED: Carried = Some((flag::QUERY, &[]));
/// The sum of two workers without values and one with some.
const ONE: Carried = Some((0, &[2]));

/// A lane of 4 slots; chunk 3 is slot 3's first.
const STATIC: [Case; 30] = [
    ("first ever", &[From(0, 3)], Added, None, &[(3, 1)]),
    ("first ever, but not the slot's first", &[From(1, 7)], OutOfTurn, None, &[]),
    ("first ever, from far ahead", &[From(1, 11)], OutOfTurn, None, &[]),
    ("second worker", &[From(0, 3), From(1, 3)], Added, None, &[(3, 3)]),
    ("last worker", &[All(3)], Completed, SUM, &[(3, 7)]),
    ("sent again, slot waits", &[From(0, 3), From(1, 3), From(1, 3)], Duplicate, None, &[(3, 3)]),
    ("sent again, slot complete", &[All(3), From(1, 3)], Replied, SUM, &[(3, 7)]),
    ("next chunk", &[All(3), From(1, 7)], Added, None, &[(3, 7), (7, 2)]),
    (
        "result lost, others moved on",
        &[All(3), From(0, 7), From(1, 7), From(2, 3)],
        Replied,
        SUM,
        &[(3, 7), (7, 3)],
    ),
    ("chunk after next", &[All(3), All(7), From(0, 11)], Added, None, &[(11, 1), (7, 7)]),
    ("chunk after next completes", &[All(3), All(7), All(11)], Completed, SUM, &[(11, 7), (7, 7)]),
    (
        "delayed duplicate of the chunk before last",
        &[All(3), All(7), From(0, 11), From(1, 3)],
        Stale,
        None,
        &[(11, 1), (7, 7)],
    ),
    (
        "next chunk before this one is complete",
        &[From(0, 3), From(1, 3), From(0, 7)],
        OutOfTurn,
        None,
        &[(3, 3)],
    ),
    ("this version again before the other was used", &[All(3), From(0, 11)], OutOfTurn, None, &[(3, 7)]),
    ("another operation", &[From(0, 3), OtherOperation(1, 3)], Mismatch, REFUSAL, &[(3, 1)]),
    (
        "overflow is merged into the result",
        &[Overflowed(0, 3), From(1, 3), From(2, 3)],
        Completed,
        OVERFLOW,
        &[(3, 7)],
    ),
    ("a flush where nobody has stated terms", &[From(0, 3), Flush(1, 3)], Added, None, &[(3, 3)]),
    (
        "a flush where only its sender has stated terms",
        &[From(0, 0), Terms(1, 0, u16::MAX), From(2, 0), From(0, 3), Flush(1, 3)],
        Added,
        None,
        &[(3, 3)],
    ),
    (
        "a flush within the limit of all",
        &[Terms(0, 0, 1), Terms(1, 0, u16::MAX), Terms(2, 0, 1), From(0, 3), Flush(1, 3)],
        Completed,
        PARTIAL,
        &[(3, 3)],
    ),
    (
        "a flush beyond the others' limit",
        &[
            Terms(0, 0, 1),
            Terms(1, 0, u16::MAX),
            Terms(2, 0, 1),
            From(0, 3),
            Flush(1, 3),
            From(0, 2),
            Flush(1, 2),
        ],
        Added,
        None,
        &[(2, 3)],
    ),
    (
        "a flush behind the operation",
        &[Terms(0, 0, 1), Terms(1, 0, u16::MAX), Terms(2, 0, 1), All(4), From(0, 8), Flush(1, 8)],
        Added,
        None,
        &[(8, 3), (4, 7)],
    ),
    ("without values, first", &[Empty(0, 3)], Added, None, &[(3, 1)]),
    ("without values, after values", &[From(0, 3), Empty(1, 3)], Added, None, &[(3, 3)]),
    ("without values, again", &[Empty(0, 3), Empty(0, 3)], Duplicate, None, &[(3, 1)]),
    ("without values, again with zeros", &[Empty(0, 3), From(0, 3)], Duplicate, None, &[(3, 1)]),
    ("without values, last", &[From(0, 3), From(1, 3), Empty(2, 3)], Wanted, WANTED, &[(3, 3)]),
    ("without values, slot complete", &[All(3), Empty(1, 3)], Wanted, WANTED, &[(3, 7)]),
    ("without values, then values", &[Empty(0, 3), Empty(1, 3), From(2, 3)], Completed, ONE, &[(3, 7)]),
    (
        "without values where another chunk's were",
        &[All(3), All(7), Empty(0, 11), Empty(1, 11), From(2, 11)],
        Completed,
        ONE,
        &[(11, 7), (7, 7)],
    ),
    (
        "without values, values again",
        &[Empty(0, 3), Empty(1, 3), From(2, 3), From(1, 3)],
        Replied,
        ONE,
        &[(3, 7)],
    ),
];

const FORWARDED: Carried = Some((flag::LEVEL, &[0, 1, 2]));
const CONCLUDED: Carried = Some((0, &[HOST]));

/// The flags of packets that go on to the parameter host.
const COLLISION: u16 = AGAIN | flag::COLLISION;
const AGAIN: u16 = flag::LEVEL | flag::RESEND;
const FLOATS: u16 = AGAIN | flag::RAW_FLOAT;

/// Chunks 9, 25 and 41 are in slot 9. A slot that becomes free refuses the other packets of a chunk that it
/// refused before, unless it has refused another job's since: then the chunk stalls in it (ATP section 3.7,
/// appendix A.1).
const DYNAMIC: [Case; 33] = [
    ("dynamic: first", &[From(0, 9)], Added, None, &[(9, 1)]),
    ("dynamic: second", &[From(0, 9), From(2, 9)], Added, None, &[(9, 5)]),
    ("dynamic: last", &[From(0, 9), From(2, 9), From(1, 9)], Forwarded, FORWARDED, &[(9, 7)]),
    ("dynamic: twice", &[From(0, 9), From(0, 9)], Duplicate, None, &[(9, 1)]),
    ("dynamic: another chunk", &[From(0, 9), From(0, 25)], Collided, Some((COLLISION, &[0])), &[(9, 1)]),
    ("dynamic: sent again to nothing", &[Again(0, 9)], Passed, Some((AGAIN, &[0])), &[]),
    (
        "dynamic: sent again, is in",
        &[From(0, 9), From(2, 9), Again(0, 9)],
        Flushed,
        Some((AGAIN, &[0, 2])),
        &[],
    ),
    ("dynamic: sent again, is not in", &[From(0, 9), Again(1, 9)], Flushed, Some((AGAIN, &[0, 1])), &[]),
    (
        "dynamic: sent again after a flush",
        &[From(0, 9), Again(1, 9), Again(2, 9)],
        Passed,
        Some((AGAIN, &[2])),
        &[],
    ),
    (
        "dynamic: sent again to a complete one",
        &[All(9), Again(1, 9)],
        Flushed,
        Some((AGAIN, &[0, 1, 2])),
        &[],
    ),
    ("dynamic: twice after the sum", &[All(9), From(1, 9)], Duplicate, None, &[(9, 7)]),
    ("dynamic: another chunk after the sum", &[All(9), From(0, 25)], Added, None, &[(25, 1)]),
    (
        "dynamic: another chunk after a duplicate of the sum's",
        &[All(9), From(1, 9), From(0, 25)],
        Added,
        None,
        &[(25, 1)],
    ),
    ("dynamic: another job's chunk after the sum", &[All(9), OtherJob(1, 9)], Added, None, &[(9, 2)]),
    ("dynamic: two sums, one after another", &[All(9), All(25)], Forwarded, FORWARDED, &[(25, 7)]),
    (
        "dynamic: a refused chunk after the sum",
        &[From(0, 9), From(0, 25), From(1, 9), From(2, 9), From(1, 25)],
        Collided,
        Some((COLLISION, &[1])),
        &[(9, 7)],
    ),
    (
        "dynamic: sent again after another chunk took the sum's slot",
        &[All(9), From(0, 25), Again(1, 9)],
        Passed,
        Some((AGAIN, &[1])),
        &[(25, 1)],
    ),
    (
        "dynamic: the result after another chunk took the sum's slot",
        &[All(9), From(0, 25), Result(9)],
        Concluded,
        CONCLUDED,
        &[(25, 1)],
    ),
    ("dynamic: sent again to another's", &[From(0, 9), Again(1, 25)], Passed, Some((AGAIN, &[1])), &[(9, 1)]),
    ("dynamic: without a slot", &[WithoutSlot(0, 9)], Passed, Some((AGAIN, &[0])), &[]),
    ("dynamic: floats", &[Floats(0, 9)], Passed, Some((FLOATS, &[0])), &[]),
    (
        "dynamic: floats to the chunk's integers",
        &[From(0, 9), Floats(1, 9)],
        Passed,
        Some((FLOATS, &[1])),
        &[],
    ),
    ("dynamic: a result to nothing", &[Result(9)], Concluded, CONCLUDED, &[]),
    ("dynamic: a result", &[All(9), Result(9)], Concluded, CONCLUDED, &[]),
    ("dynamic: another's result", &[From(0, 9), Result(25)], Concluded, CONCLUDED, &[(9, 1)]),
    (
        "dynamic: a contribution after the result",
        &[From(0, 9), Result(9), From(1, 9)],
        Added,
        None,
        &[(9, 2)],
    ),
    (
        "dynamic: a refused chunk again",
        &[From(0, 9), From(0, 25), Result(9), From(0, 25)],
        Collided,
        Some((COLLISION, &[0])),
        &[],
    ),
    (
        "dynamic: the other packets of a refused chunk",
        &[From(0, 9), From(0, 25), Result(9), From(1, 25), From(2, 25)],
        Collided,
        Some((COLLISION, &[2])),
        &[],
    ),
    (
        "dynamic: the chunk after a refused one",
        &[From(0, 9), From(0, 25), Result(9), From(1, 41)],
        Added,
        None,
        &[(41, 2)],
    ),
    (
        "dynamic: a chunk stalls",
        &[From(0, 9), From(0, 25), OtherJob(0, 9), Result(9), From(1, 25), From(2, 25)],
        Added,
        None,
        &[(25, 6)],
    ),
    (
        "dynamic: a stalled chunk is sent again, is in",
        &[From(0, 9), From(0, 25), OtherJob(0, 9), Result(9), From(1, 25), From(2, 25), Again(1, 25)],
        Flushed,
        Some((AGAIN, &[1, 2])),
        &[],
    ),
    (
        "dynamic: a stalled chunk is sent again, is not in",
        &[From(0, 9), From(0, 25), OtherJob(0, 9), Result(9), From(1, 25), From(2, 25), Again(0, 25)],
        Flushed,
        Some((AGAIN, &[0, 1, 2])),
        &[],
    ),
    (
        "dynamic: a stalled chunk is sent again by all",
        &[
            From(0, 9),
            From(0, 25),
            OtherJob(0, 9),
            Result(9),
            From(1, 25),
            From(2, 25),
            Again(0, 25),
            Again(2, 25),
            Again(1, 25),
        ],
        Passed,
        Some((AGAIN, &[1])),
        &[],
    ),
];

/// The same in a rack below a root: with two levels no other chunk takes a slot whose sum has left.
const RACK: [Case; 2] = [
    (
        "rack: another chunk after the sum",
        &[All(9), From(0, 25)],
        Collided,
        Some((COLLISION, &[0])),
        &[(9, 7)],
    ),
    ("rack: sent again to a complete one", &[All(9), Again(1, 9)], Flushed, Some((AGAIN, &[0, 1, 2])), &[]),
];

const PART: Carried = Some((flag::LEVEL | flag::PARTIAL, &[0, 1]));

/// At a rack of a static job.
const STATIC_RACK: [Case; 2] = [
    (
        "rack: a flush within the limit of all",
        &[Terms(0, 0, 1), Terms(1, 0, 1), Terms(2, 0, 1), From(0, 3), Flush(1, 3)],
        Forwarded,
        PART,
        &[(3, 3)],
    ),
    (
        "rack: a part takes in nothing more",
        &[Terms(0, 0, 1), Terms(1, 0, 1), Terms(2, 0, 1), From(0, 3), Flush(1, 3), From(2, 3)],
        Forwarded,
        PART,
        &[(3, 3)],
    ),
];

const ELEMENTS: u16 = 6;
const WORKERS: usize = 3;
/// The number of the parameter host's values, beside those of ranks.
const HOST: usize = WORKERS;

/// Returns an aggregator and its packets for each case. All have the same jobs, but for cases that no switch
/// takes.
pub fn all(checksum: bool) -> Vec<(Setup, Vec<Step>)> {
    let world = WORKERS as u8;
    let jobs = [
        static_job(1, world, ELEMENTS),
        dynamic_job(2, world, ELEMENTS),
        dynamic_job(3, world, ELEMENTS),
        at_rack(dynamic_job(4, world, ELEMENTS)),
    ];
    let jobs = jobs.map(|job| Job { checksum, ..job });
    let racks_jobs = [Job { checksum, ..at_rack(static_job(1, world, ELEMENTS)) }];
    let all_of = |all: &[Job], job: &Job, case: &Case| vectors(all, job, &jobs[2], case);
    let of = |job: &Job, case: &Case| all_of(&jobs, job, case);
    let dynamic = DYNAMIC.iter().map(|case| of(&jobs[1], case));
    let rack = RACK.iter().map(|case| of(&jobs[3], case));
    let static_rack = STATIC_RACK.iter().map(|case| all_of(&racks_jobs, &racks_jobs[0], case));
    STATIC.iter().map(|case| of(&jobs[0], case)).chain(dynamic).chain(rack).chain(static_rack).collect()
}

/// Returns a case's aggregator with these jobs, and its packets, which are those of `job`.
fn vectors(all: &[Job], job: &Job, other_job: &Job, case: &Case) -> (Setup, Vec<Step>) {
    let setup = setup(case.0, None, all.to_vec());
    let mut reference = Reference::new(setup.clone());
    let receive =
        |(interface, frame)| Step { case: Some(case.0.to_owned()), ..reference.receive(interface, frame) };
    let frames = case.1.iter().flat_map(|packet| packet.frames(job, other_job));
    let steps: Vec<Step> = frames.map(receive).collect();
    check(case, &steps);
    (setup, steps)
}

/// Whether a case is beyond the profile of a switch: a result lacks some workers, or a contribution has no
/// values.
pub fn is_beyond_switch(steps: &[Step]) -> bool {
    let header = |payload: &[u8]| Header::read(payload, 0, payload.len());
    let answers = steps.iter().filter_map(|step| step.answer.as_ref());
    let mut answers = answers.flat_map(|answer| header(&answer.payload));
    let mut sent = steps.iter().flat_map(|step| header(&step.frame[OVERHEAD..]));
    answers.any(|header| header.has(flag::PARTIAL)) || sent.any(|header| header.has(flag::EMPTY))
}

impl Packet {
    /// Returns the frames, each with its interface.
    fn frames(self, job: &Job, other_job: &Job) -> Vec<(u32, Vec<u8>)> {
        let of = |job: &Job, rank: usize, seq: u32, change: &dyn Fn(&mut Header)| {
            let from = job.workers.get(rank).unwrap_or_else(|| &job.parents[0]);
            let mut header = header(job, rank % WORKERS, seq);
            change(&mut header);
            if rank == HOST {
                (header.kind, header.token) = (Kind::Result as u8, job.result_token);
            }
            (from.interface, frame(job, from, &header, &values(rank, seq), 0, TOS))
        };
        let (rank, seq, change): (usize, u32, fn(&mut Header)) = match self {
            All(seq) => return (0..WORKERS).map(|rank| of(job, rank, seq, &|_| ())).collect(),
            Terms(rank, seq, limit) => {
                let terms = |header: &mut Header| (header.contributors, header.next_seq) = (limit, seq + 8);
                return vec![of(job, rank, seq, &terms)];
            }
            OtherJob(rank, seq) => return vec![of(other_job, rank, seq, &|_| ())],
            From(rank, seq) => (rank, seq, |_| ()),
            Again(rank, seq) => (rank, seq, |h| h.flags |= flag::RESEND),
            Empty(rank, seq) => (rank, seq, |h| (h.elements, h.flags) = (0, h.flags | flag::EMPTY)),
            Overflowed(rank, seq) => (rank, seq, |h| h.flags |= flag::RESEND | flag::OVERFLOW),
            Floats(rank, seq) => (rank, seq, |h| h.flags |= flag::RESEND | flag::RAW_FLOAT),
            WithoutSlot(rank, seq) => (rank, seq, |h| (h.flags, h.slot) = (flag::RESEND, NO_SLOT)),
            OtherOperation(rank, seq) => (rank, seq, |h| h.tensor += 1),
            Flush(rank, seq) => {
                (rank, seq, |h| (h.flags, h.contributors) = (h.flags | flag::PARTIAL, u16::MAX))
            }
            Result(seq) => (HOST, seq, |_| ()),
        };
        vec![of(job, rank, seq, &change)]
    }
}

/// Checks the last step against the table, since the other expectations are the reference's own.
fn check((name, _, reason, carried, after): &Case, steps: &[Step]) {
    let step = &steps[steps.len() - 1];
    let read = |payload: &[u8]| Header::read(payload, 0, payload.len());
    let seq = read(&step.frame[OVERHEAD..]).map_or(0, |sent| sent.seq);
    assert_eq!(step.reason, reason.name(), "{name}");
    let answer = step.answer.as_ref().map(|answer| {
        let words = answer.payload.get(HEADER_LEN..).unwrap_or_default().as_chunks::<4>().0.iter();
        let values: Vec<i32> = words.map(|word| i32::from_be_bytes(*word)).collect();
        (read(&answer.payload).map(|header| header.flags & !flag::POOL_VERSION), values)
    });
    let expected = carried.as_ref().map(|(flags, ranks)| {
        let elements = if ranks.is_empty() { 0 } else { ELEMENTS };
        let mut sums = vec![0; elements.into()];
        for rank in *ranks {
            sums.iter_mut().zip(values(*rank, seq)).for_each(|(sum, value)| *sum += value);
        }
        (Ok(*flags), sums)
    });
    assert_eq!(answer, expected, "{name}: the answer");
    let versions = step.slot.iter().flat_map(|slot| &slot.after.versions).filter(|version| version.seen != 0);
    let shared = step.shared.iter().map(|slot| &slot.after).filter(|slot| slot.owner != 0);
    let versions = versions.map(|version| (version.seq, version.seen));
    let slots = versions.chain(shared.map(|slot| (slot.seq, slot.bitmap)));
    assert_eq!(slots.collect::<Vec<_>>(), *after, "{name}: the slot");
}

/// Returns elements whose every bit depends on the worker, the chunk and the element's number.
fn values(rank: usize, seq: u32) -> Vec<i32> {
    let value = |i: u32| {
        let mixed = (rank as u32 + 1).wrapping_mul(0x9e37_79b9)
            ^ seq.wrapping_mul(0x85eb_ca6b)
            ^ i.wrapping_mul(0xc2b2_ae35);
        (mixed ^ mixed >> 15) as i32 >> 5
    };
    (0..ELEMENTS.into()).map(value).collect()
}
