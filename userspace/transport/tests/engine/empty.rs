//! Contributions without values: chunks of which this worker has only zeros.

use crate::support::{Lone, Sent, job, peers};
use sumac_job::result_token;
use sumac_transport::{Arithmetic, DType, Engine, JobParams, Operation, Time, Tuning};
use sumac_wire::{
    Header, Kind, Reason,
    header::{ELEMENT_LEN, HEADER_LEN, flag},
    workers::all_workers,
};

const RTT: u64 = 50_000;

const CHUNKS: usize = 8;
const WORDS: usize = 20;
const BYTES: usize = WORDS * ELEMENT_LEN;

/// The values of eight chunks, of which another worker has all.
fn receive() -> Operation {
    let buffer = Box::new(vec![0u8; CHUNKS * BYTES]);
    let whole = Operation::allreduce(7, DType::Float32, Arithmetic::Bits, CHUNKS * WORDS, buffer);
    Operation { gives: 0..0, ..whole }
}

/// The result for a chunk of which this worker sent no values.
fn result(sent: &Sent, values: [u8; BYTES]) -> Vec<u8> {
    let header = Header {
        kind: Kind::Result as u8,
        flags: sent.header.flags & flag::POOL_VERSION,
        elements: WORDS as u16,
        bitmap_0: all_workers(2),
        contributors: 2,
        next_seq: sent.header.seq.wrapping_add(2 * sent.slots),
        token: result_token(sent.header.token),
        ..sent.header
    };
    [&header.to_bytes()[..], &values].concat()
}

/// The answer that the aggregator needs the values.
fn wanted(sent: &Sent) -> Vec<u8> {
    sent.answer_with(|header| {
        (header.flags, header.next_seq) = (flag::QUERY | header.flags & flag::POOL_VERSION, 0);
    })
}

/// Answers what was sent, and what follows, with results; returns what was sent.
fn answer_all(lone: &mut Lone, sent: Vec<Sent>) -> Vec<Sent> {
    let mut all = sent;
    let mut answered = 0;
    while answered < all.len() {
        let byte = (all[answered].header.offset / WORDS as u32) as u8 + 1;
        lone.take(&result(&all[answered], [byte; BYTES]));
        answered += 1;
        all.extend(lone.send_all());
    }
    all
}

#[test]
fn zeros_go_as_headers_and_their_results_are_taken() {
    let mut lone = Lone::ready(job(2, 4, WORDS as u16), RTT);
    lone.operate(receive());
    let sent = lone.send_all();
    let sent = answer_all(&mut lone, sent);
    let seen: Vec<_> =
        sent.iter().map(|sent| (sent.header.flags & !flag::POOL_VERSION, sent.header.offset)).collect();
    assert_eq!(seen, (0..8).map(|chunk| (flag::EMPTY, chunk * WORDS as u32)).collect::<Vec<_>>());
    assert!(sent.iter().all(|sent| sent.payload.len() == HEADER_LEN));
    let end = lone.engine.poll_completion().expect("it ends");
    assert_eq!(end.result, Ok(()));
    let expected: Vec<u8> = (1..=8).flat_map(|byte| [byte; BYTES]).collect();
    assert_eq!(end.buffer.input(0, CHUNKS * BYTES), expected);
    let stats = lone.engine.stats();
    assert_eq!((stats.chunks_sent, stats.chunks_empty, stats.empty_wanted), (8, 8, 0));
    assert_eq!((stats.elements_sent, stats.elements_received), (0, (CHUNKS * WORDS) as u64));
}

#[test]
fn wanted_zeros_are_sent_once_and_nothing_counts_as_lost() {
    let mut lone = Lone::ready(job(2, 4, WORDS as u16), RTT);
    lone.operate(receive());
    let mut sent = lone.send_all();
    lone.wait(RTT);
    lone.take(&wanted(&sent[1]));
    lone.take(&wanted(&sent[1]));
    let again = lone.send_all();
    assert_eq!(again.len(), 1, "one packet for two answers");
    let header =
        Header { flags: 0, elements: WORDS as u16, timestamp: again[0].header.timestamp, ..sent[1].header };
    assert_eq!((again[0].header, &again[0].payload[HEADER_LEN..]), (header, &[0; BYTES][..]));
    lone.take(&wanted(&sent[1]));
    assert!(lone.send_all().is_empty(), "they were sent");
    let stats = lone.engine.stats();
    assert_eq!((stats.chunks_sent, stats.chunks_empty, stats.empty_wanted), (4, 4, 1));
    assert_eq!((stats.missing, stats.resent, stats.questions, stats.in_flight), (0, 0, 0, 4));
    assert_eq!(stats.frames.get(Reason::Duplicate), 2 - stats.frames.get(Reason::OutOfTurn));
    sent[1] = again[0].clone();
    answer_all(&mut lone, sent);
    assert_eq!(lone.engine.poll_completion().map(|end| end.result), Some(Ok(())));
}

/// A mark goes to the aggregator with the zeros where it has not taken the header.
#[test]
fn a_mark_that_a_wanted_header_carried_goes_with_its_zeros() {
    let params = JobParams { congestion_control: true, ..job(2, 4, WORDS as u16) };
    let tuning = Tuning { initial_window: Some(4), ..Tuning::default() };
    let engine = Engine::starting_at(params, &peers(), &tuning, 0).expect("good parameters");
    let mut lone = Lone { engine, now: Time(1_000_000) };
    let probe = lone.send().expect("a probe");
    lone.wait(RTT);
    lone.take(&probe.answer());
    lone.operate(receive());
    let sent = lone.send_all();
    lone.take_marked(&result(&sent[0], [1; BYTES]));
    let next = lone.send_all();
    let has_mark = |sent: &Sent| (sent.header.has(flag::EMPTY), sent.header.has(flag::ECN_ECHO));
    assert_eq!(has_mark(&next[0]), (true, true));
    lone.take(&wanted(&next[0]));
    assert_eq!(has_mark(&lone.send_all()[0]), (false, true));
}

/// A header that was lost, or its result: a query, and then the zeros.
#[test]
fn what_is_sent_again_has_its_values() {
    let mut lone = Lone::ready(job(2, 4, WORDS as u16), RTT);
    lone.operate(receive());
    assert_eq!(lone.send_all().len(), 4);
    let query = std::iter::from_fn(|| {
        lone.expire();
        Some(lone.send_all())
    })
    .find(|sent| !sent.is_empty())
    .expect("endless");
    let flags: Vec<_> = query.iter().map(|sent| sent.header.flags & !flag::RESEND).collect();
    let mut last = query[0].clone();
    if flags[0] == flag::QUERY {
        lone.take(&last.answer());
        last = lone.send_all().remove(0);
    }
    assert_eq!((last.header.flags & flag::EMPTY, last.payload.len()), (0, HEADER_LEN + BYTES));
    lone.take(&last.answer());
    assert_eq!(lone.engine.stats().results, 1);
}

#[test]
fn zeros_go_in_full_where_the_aggregator_takes_no_others() {
    let short = Operation { count: 4 * WORDS, takes: 0..4 * WORDS, ..receive() };
    let one_given = Operation { gives: 3..4, ..receive() };
    let bounded = Operation { arithmetic: Arithmetic::Sum, loss_bound: 0.5, ..receive() };
    let alone = JobParams { rack_world: 1, ..job(2, 4, WORDS as u16) };
    let cases = [
        ("an older aggregator", JobParams { takes_empty: false, ..job(2, 4, WORDS as u16) }, receive(), 0),
        ("the only worker of a rack", alone, receive(), 0),
        ("no more chunks than slots", job(2, 4, WORDS as u16), short, 0),
        ("a chunk with one value of its own", job(2, 4, WORDS as u16), one_given, 3),
        ("a loss bound", job(2, 4, WORDS as u16), bounded, 0),
        ("a sum", job(2, 4, WORDS as u16), Operation { arithmetic: Arithmetic::Sum, ..receive() }, 4),
    ];
    for (what, params, operation, empty) in cases {
        let mut lone = Lone::ready(params, RTT);
        lone.operate(operation);
        let sent = lone.send_all();
        let empties = sent.iter().filter(|sent| sent.header.has(flag::EMPTY)).count();
        assert_eq!((sent.len(), empties), (4, empty), "{what}");
    }
}

#[test]
fn a_result_is_not_without_values() {
    let mut lone = Lone::ready(job(2, 4, WORDS as u16), RTT);
    lone.operate(receive());
    let sent = lone.send_all();
    lone.refuses(
        &sent[0],
        &[
            ("a header", |h| h.kind = Kind::Result as u8, Reason::BadType),
            ("a header without the flag", |h| h.flags = 0, Reason::WrongElements),
            (
                "wanted of another operation",
                |h| (h.flags, h.tensor) = (flag::QUERY, h.tensor ^ 1),
                Reason::WrongPlace,
            ),
        ],
    );
}

/// Headers for a window are there before the values of its last quarter.
#[test]
fn the_worker_with_the_values_has_three_quarters_of_the_slots() {
    let given = |gives| Operation { gives, ..receive() };
    let offsets =
        |sent: &[Sent]| sent.iter().map(|sent| sent.header.offset / WORDS as u32).collect::<Vec<_>>();
    let mut lone = Lone::ready(job(2, 4, WORDS as u16), RTT);
    lone.operate(given(0..8 * WORDS));
    let sent = lone.send_all();
    assert_eq!(offsets(&sent), [0, 1, 2], "three of four");
    lone.take(&result(&sent[1], [1; BYTES]));
    assert_eq!(offsets(&lone.send_all()), [3]);
    lone.take(&result(&sent[0], [1; BYTES]));
    assert_eq!(offsets(&lone.send_all()), [4], "before that of slot 1");

    // Of an allgather the other chunks' headers go at once.
    let mut lone = Lone::ready(job(2, 4, WORDS as u16), RTT);
    lone.operate(given(3 * WORDS..8 * WORDS));
    let sent = lone.send_all();
    assert_eq!(offsets(&sent), [0, 1, 2]);
    lone.take(&result(&sent[0], [1; BYTES]));
    assert_eq!(offsets(&lone.send_all()), [3], "its own, after the header of another's");

    // All values of a sum are of all workers, and an aggregator that takes no headers has no use for it.
    let sum = Operation { arithmetic: Arithmetic::Sum, ..given(0..8 * WORDS) };
    let whole = JobParams { takes_empty: false, ..job(2, 4, WORDS as u16) };
    for (params, operation) in [(job(2, 4, WORDS as u16), sum), (whole, given(0..8 * WORDS))] {
        let mut lone = Lone::ready(params, RTT);
        lone.operate(operation);
        assert_eq!(lone.send_all().len(), 4);
    }
}
