//! Frames that lie: each ends in its counter, changes nothing, and the honest result still counts.

use crate::support::{Change, Lone, Sent, TAMPERED, block, job};
use proptest::prelude::*;
use sumac_transport::{DType, JobState};
use sumac_wire::{
    Header, Kind, Reason,
    header::{HEADER_LEN, exponent, flag},
};

/// A worker of two with chunks 0 to 3 in flight; the tensor's last chunk, 10, has 2 elements.
fn start() -> (Lone, Vec<Sent>) {
    let mut lone = Lone::ready(job(2, 4, 8), 50_000);
    lone.submit_floats(&[2.0; 82]);
    let sent = lone.send_all();
    assert_eq!(sent.len(), 4);
    (lone, sent)
}

/// Completes everything honestly. Returns whether the sum is right.
fn finish(lone: &mut Lone, flying: &[Sent]) -> bool {
    flying.iter().for_each(|sent| lone.take(&sent.answer()));
    lone.finish();
    let completion = lone.engine.poll_completion().expect("the operation ends");
    assert_eq!(completion.result, Ok(()));
    let sums = completion.buffer.input(0, 82 * 4);
    !sums.is_empty() && sums.as_chunks().0.iter().all(|sum| f32::from_ne_bytes(*sum) == 2.0)
}

#[test]
fn tampered_results_are_refused_by_reason() {
    let own: [(&str, Change, Reason); 20] = [
        ("two values a word", |h| h.format = 1, Reason::BadFormat),
        ("a collision", |h| h.flags |= flag::COLLISION, Reason::BadType),
        ("raw floats", |h| h.flags |= flag::RAW_FLOAT, Reason::BadType),
        ("another slot", |h| h.slot = 1, Reason::Stale),
        ("another lane's slot", |h| h.slot = 4, Reason::WrongSlot),
        ("no slot", |h| h.slot = u32::MAX, Reason::WrongSlot),
        ("the other version", |h| h.flags ^= flag::POOL_VERSION, Reason::WrongSlot),
        ("the slot's next chunk", |h| h.seq = 4, Reason::OutOfTurn),
        ("a chunk far ahead", |h| h.seq = 1 << 30, Reason::OutOfTurn),
        ("the chunk before", |h| h.seq = 4u32.wrapping_neg(), Reason::Duplicate),
        ("a chunk far behind", |h| h.seq = 1 << 31 | 4, Reason::Stale),
        ("another tensor", |h| h.tensor = 78, Reason::WrongPlace),
        ("another offset", |h| h.offset = 8, Reason::WrongPlace),
        ("an offset outside", |h| h.offset = u32::MAX, Reason::WrongPlace),
        ("an exponent that nobody asked for", |h| h.flags |= flag::EXPONENT, Reason::Duplicate),
        ("another operation that is ours", |h| h.flags |= flag::MISMATCH, Reason::WrongPlace),
        (
            "another operation elsewhere",
            |h| (h.flags, h.tensor, h.offset) = (flag::MISMATCH, 78, 8),
            Reason::WrongPlace,
        ),
        ("the next chunk before the next one", |h| h.next_seq = 4, Reason::OutOfTurn),
        ("the next chunk in the past", |h| h.next_seq = 1 << 31 | 4, Reason::OutOfTurn),
        ("no next chunk", |h| h.next_seq = 0, Reason::OutOfTurn),
    ];
    let table = [&TAMPERED[..], &own].concat();
    let (mut lone, sent) = start();
    lone.refuses(&sent[0], &table);
    assert_eq!(lone.engine.stats().frames.dropped(), table.len() as u64, "each counts once");
    assert!(finish(&mut lone, &sent));
}

#[test]
fn cut_and_stretched_results_are_refused() {
    let (mut lone, sent) = start();
    let good = sent[1].answer();
    for cut in 0..good.len() {
        lone.take(&good[..cut]);
    }
    let mut long = good.clone();
    long.extend([0; 4]);
    lone.take(&long);
    // Lengths that agree with each other, but not with the chunk.
    for elements in [0u16, 7, 9, 832] {
        let mut other = sent[1].answer_with(|header| header.elements = elements);
        other.resize(HEADER_LEN + usize::from(elements) * 4, 0xff);
        lone.take(&other);
    }
    let frames = &lone.engine.stats().frames;
    assert_eq!(frames.get(Reason::Truncated), HEADER_LEN as u64);
    assert_eq!(frames.get(Reason::BadLength), 32 + 1);
    assert_eq!(frames.get(Reason::WrongElements), 4);
    assert_eq!(lone.engine.stats().results, 0);
}

#[test]
fn results_for_chunks_that_were_not_sent_are_refused() {
    let (mut lone, sent) = start();
    let next = Sent {
        header: Header { seq: 4, offset: 32, flags: flag::POOL_VERSION, ..sent[0].header },
        ..sent[0].clone()
    };
    lone.take(&next.answer());
    lone.take(&sent[0].answer());
    // Chunk 4 may be sent now, but was not.
    lone.take(&next.answer());
    assert_eq!(lone.engine.stats().frames.get(Reason::OutOfTurn), 2);
    assert_eq!(lone.engine.stats().results, 1);
}

#[test]
fn strangers_cannot_end_the_handshake() {
    let mut lone = Lone::new(job(2, 4, 8));
    let probe = lone.send().expect("a probe");
    lone.take(&probe.answer_with(|header| header.token = 0));
    lone.take(&probe.answer_with(|header| header.job = 9));
    lone.take(&probe.answer_with(|header| header.kind = Kind::Result as u8));
    assert_eq!(lone.engine.state(), JobState::Probing);
    lone.take(&probe.answer());
    assert_eq!(lone.engine.state(), JobState::Ready);
}

#[test]
fn tampered_answers_to_an_exponent_round_are_refused_by_reason() {
    let table: [(&str, Change, Reason); 8] = [
        ("a result", |h| h.flags &= !flag::EXPONENT, Reason::OutOfTurn),
        ("no exponent after all", |h| h.exponent = exponent::UNKNOWN, Reason::WrongPlace),
        ("another operation's", |h| h.tensor ^= 1, Reason::WrongPlace),
        ("another offset", |h| h.offset = 8, Reason::WrongPlace),
        ("the other version", |h| h.flags ^= flag::POOL_VERSION, Reason::WrongSlot),
        ("one contributor", |h| h.contributors = 1, Reason::WrongWorker),
        ("between aggregators", |h| h.flags |= flag::LEVEL, Reason::BadType),
        ("another operation that is ours", |h| h.flags |= flag::MISMATCH, Reason::WrongPlace),
    ];
    let mut lone = Lone::ready(block(2, 4, 8), 50_000);
    lone.submit_floats(&[2.0; 50]);
    let rounds = lone.send_all();
    lone.refuses(&rounds[0], &table);
    let mut long = rounds[0].answer_with(|header| header.elements = 1);
    long.extend([0; 4]);
    lone.take(&long);
    assert_eq!(lone.engine.stats().frames.get(Reason::WrongElements), 1);
    assert_eq!((lone.engine.stats().in_flight, lone.engine.stats().results), (4, 0));
    // A result that is scaled by another exponent than was agreed on would be read wrongly.
    rounds.iter().for_each(|round| lone.take(&round.answer()));
    let sent = lone.send_all();
    lone.take(&sent[0].answer_with(|header| header.exponent += 1));
    assert_eq!(lone.engine.stats().frames.get(Reason::WrongPlace), 5);
    assert!(finish(&mut lone, &sent));
}

proptest! {
    #[test]
    fn any_bytes_are_survived(
        flips in proptest::collection::vec((0..4usize, 0..60usize, any::<u8>()), 1..60),
        lengths in proptest::collection::vec(0..120usize, 1..60),
        asks in any::<bool>(),
    ) {
        let dtype = if asks { DType::Float32 } else { DType::Int32 };
        Lone::ready(block(2, 4, 8), 50_000).survives(dtype, 82, &flips, &lengths);
    }
}
