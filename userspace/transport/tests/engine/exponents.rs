//! Exponent chunks: one packet with the exponents of the chunks after it, in both modes.

use sumac_transport::{Arithmetic, DType, DynamicParams, JobError, JobParams, JobState, Operation};
use sumac_wire::{
    Kind, Reason,
    header::{HEADER_LEN, exponent, flag},
};

use crate::support::{Change, Lone, SIGNATURE, Sent, block, job};

const RTT: u64 = 50_000;

fn dynamic(window: u32, params: JobParams) -> JobParams {
    let dynamic = DynamicParams::new(4 * window).with_window(window).without_congestion_control();
    JobParams { dynamic: Some(dynamic), ..params }
}

/// The exponent byte of a largest magnitude of 2^m.
fn byte(m: i32) -> i8 {
    (m + exponent::BIAS) as i8
}

/// A job with 16 chunks of 16 values in flight, in this mode.
fn small(is_dynamic: bool) -> Lone {
    let params = block(2, 16, 16);
    Lone::ready(if is_dynamic { dynamic(16, params) } else { params }, RTT)
}

/// Submits `chunks` chunks of 16 values of 2^m, for an m that is one larger in each.
fn submit(lone: &mut Lone, chunks: i32, m: i32) {
    let values = (0..chunks * 16).map(|at| f32::exp2((m + at / 16) as f32));
    lone.submit_floats(&values.collect::<Vec<f32>>());
}

/// The words of an exponent chunk.
fn words(sent: &Sent) -> Vec<i32> {
    sent.payload[HEADER_LEN..].as_chunks().0.iter().map(|word| i32::from_be_bytes(*word)).collect()
}

fn is_exponents(sent: &Sent) -> bool {
    sent.header.has(flag::MAXIMUM)
}

/// Whether a packet is neither an exponent round nor floats, nor bypasses the slots.
fn is_in_slots(sent: &Sent) -> bool {
    sent.header.elements > 0 && !sent.header.has(flag::EXPONENT | flag::RAW_FLOAT | flag::RESEND)
}

/// Sequence numbers and exponents.
fn scaled(sent: &[Sent]) -> Vec<(u32, i8)> {
    sent.iter().map(|sent| (sent.header.seq, sent.header.exponent)).collect()
}

/// The answer of an exponent chunk after another worker has changed some of its words.
fn merged(sent: &Sent, change: impl FnOnce(&mut [[u8; 4]])) -> Vec<u8> {
    let mut payload = sent.answer();
    change(payload[HEADER_LEN..].as_chunks_mut().0);
    payload
}

#[test]
fn a_lone_tensor_of_256_kib_costs_one_packet_more_than_its_chunks() {
    for params in [block(2, 256, 352), dynamic(256, block(2, 1, 352))] {
        let is_dynamic = params.dynamic.is_some();
        let mut lone = Lone::ready(params, RTT);
        lone.submit_floats(&[1.5; 65_536]);
        let first = lone.send_all();
        assert_eq!((first.len(), is_exponents(&first[0])), (1, true), "dynamic: {is_dynamic}");
        let Sent { header, .. } = &first[0];
        assert_eq!((header.seq, header.offset, header.elements, header.format), (0, 0, 255, 0));
        assert_eq!((header.tensor, header.exponent), (SIGNATURE, exponent::NONE));
        assert_eq!(header.has(flag::RESEND), is_dynamic, "to the parameter host, which answers at any time");
        let expected = [vec![i32::from(byte(1)); 187], vec![i32::from(exponent::UNKNOWN); 68]].concat();
        assert_eq!(words(&first[0]), expected, "no operation follows yet");
        lone.wait(RTT);
        lone.take(&first[0].answer());
        let chunks = lone.send_all();
        assert_eq!(chunks.len(), 187, "dynamic: {is_dynamic}");
        assert!(chunks.iter().all(|sent| is_in_slots(sent) && sent.header.exponent == byte(1)));
        chunks.iter().for_each(|sent| lone.take(&sent.answer()));
        let end = lone.engine.poll_completion().expect("complete");
        assert_eq!((end.result, lone.engine.poll_completion().is_none()), (Ok(()), true));
        assert_eq!(end.buffer.input(65_535 * 4, 4), 1.5f32.to_ne_bytes());
        let stats = lone.engine.stats();
        assert_eq!((stats.chunks_sent, stats.exponent_chunks, stats.results), (188, 1, 188));
        assert_eq!((stats.exponent_rounds, stats.raw_chunks, stats.resent), (0, 0, 0));
        assert_eq!((stats.elements_sent, stats.elements_scanned), (65_536, 65_536));
        assert_eq!((stats.operations_submitted, stats.operations_completed), (1, 1));
    }
}

#[test]
fn tensors_that_are_open_at_the_same_time_share_one() {
    for is_dynamic in [false, true] {
        let mut lone = small(is_dynamic);
        submit(&mut lone, 8, 0);
        submit(&mut lone, 3, 10);
        lone.operate(Operation::allreduce(9, DType::Int32, Arithmetic::Sum, 16, Box::new(vec![0; 64])));
        let first = lone.send_all();
        assert_eq!(
            first.iter().map(|sent| sent.header.seq).collect::<Vec<_>>(),
            [0, 12],
            "integers wait for nothing"
        );
        let known = [0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12].map(|m| i32::from(byte(m)));
        let rest = [exponent::NONE, exponent::UNKNOWN, exponent::UNKNOWN, exponent::UNKNOWN].map(i32::from);
        assert_eq!(words(&first[0]), [&known[..], &rest].concat(), "dynamic: {is_dynamic}");
        // Another worker has larger values in chunk 2.
        lone.take(&merged(&first[0], |words| words[1] = 20i32.to_be_bytes()));
        let chunks = lone.send_all();
        let mut expected: Vec<(u32, i8)> = (1..).zip(known.map(|word| word as i8)).collect();
        expected[1].1 = 20;
        assert_eq!(scaled(&chunks), expected);
        assert!(chunks.iter().all(is_in_slots), "dynamic: {is_dynamic}");
    }
}

/// It has an own exponent chunk if it is long. The exponents of a short one are not known: a round, or
/// floats.
#[test]
fn a_tensor_that_comes_late_is_not_in_it() {
    for is_dynamic in [false, true] {
        let mut lone = small(is_dynamic);
        submit(&mut lone, 8, 0);
        let first = lone.send_all();
        submit(&mut lone, 2, 10);
        submit(&mut lone, 8, 20);
        let second = lone.send_all();
        assert_eq!(second.iter().map(|sent| sent.header.seq).collect::<Vec<_>>(), [11], "its own");
        assert!(is_exponents(&second[0]));
        lone.take(&first[0].answer());
        let chunks = lone.send_all();
        assert_eq!(
            chunks.iter().map(|sent| sent.header.seq).collect::<Vec<_>>(),
            (1..=10).collect::<Vec<_>>()
        );
        assert!(chunks[..8].iter().all(is_in_slots), "dynamic: {is_dynamic}");
        let fallback = if is_dynamic { flag::RAW_FLOAT } else { flag::EXPONENT };
        assert!(chunks[8..].iter().all(|sent| sent.header.has(fallback)), "dynamic: {is_dynamic}");
        lone.take(&second[0].answer());
        let long = lone.send_all();
        assert_eq!(scaled(&long)[..4], [(12, byte(20)), (13, byte(21)), (14, byte(22)), (15, byte(23))]);
        [chunks, long].concat().iter().for_each(|sent| lone.take(&sent.answer()));
        lone.finish();
        let ends: Vec<_> =
            std::iter::from_fn(|| lone.engine.poll_completion()).map(|end| end.result).collect();
        assert_eq!(ends, [Ok(()), Ok(()), Ok(())]);
    }
}

/// All workers have the same result, and so the same exponents, and do the same without one.
#[test]
fn what_another_worker_lacks_is_unknown_to_all() {
    for is_dynamic in [false, true] {
        let mut lone = small(is_dynamic);
        submit(&mut lone, 8, 0);
        submit(&mut lone, 2, 10);
        let first = lone.send_all();
        lone.take(&merged(&first[0], |words| {
            words[8] = i32::from(exponent::UNKNOWN).to_be_bytes();
            // No worker of ours sends this.
            words[9] = i32::MAX.to_be_bytes();
        }));
        let chunks = lone.send_all();
        let fallback = if is_dynamic { flag::RAW_FLOAT } else { flag::EXPONENT };
        let falls_back: Vec<bool> = chunks.iter().map(|sent| sent.header.has(fallback)).collect();
        assert_eq!(falls_back, [[false; 8].as_slice(), &[true; 2]].concat(), "dynamic: {is_dynamic}");
    }
}

/// In a pipeline of long tensors the chunks a window before tell the exponents: no chunk waits.
#[test]
fn a_chunk_that_was_looked_ahead_for_does_not_wait() {
    for is_dynamic in [false, true] {
        let mut lone = small(is_dynamic);
        submit(&mut lone, 20, 0);
        submit(&mut lone, 20, 30);
        let first = lone.send_all();
        lone.take(&first[0].answer());
        let mut flight = lone.send_all();
        let mut exponents = None;
        while !flight.is_empty() {
            for sent in std::mem::take(&mut flight) {
                match is_exponents(&sent) {
                    true => exponents = Some(sent),
                    false => lone.take(&sent.answer()),
                }
                flight.extend(lone.send_all());
            }
        }
        let exponents = exponents.expect("one of the second tensor");
        assert_eq!(exponents.header.seq, 21);
        // The slot of the exponents has chunk 37 next; a window ends before it.
        let chunks = if is_dynamic { 37 } else { 41 };
        assert_eq!(lone.engine.stats().chunks_sent, chunks, "as far as the window: {is_dynamic}");
        assert_eq!(lone.engine.stats().operations_completed, 0);
        assert_eq!(lone.engine.poll_completion().map(|end| end.id.0), Some(0));
        assert!(lone.engine.poll_completion().is_none(), "other workers may lack the exponents");
        lone.take(&exponents.answer());
        lone.finish();
        assert_eq!(lone.engine.poll_completion().map(|end| end.result), Some(Ok(())));
        let stats = lone.engine.stats();
        assert_eq!((stats.exponent_rounds, stats.raw_chunks, stats.exponent_chunks), (0, 0, 2));
    }
}

#[test]
fn tensors_of_one_chunk_have_one_of_eight() {
    for is_dynamic in [false, true] {
        let mut lone = small(is_dynamic);
        (0..15).for_each(|m| submit(&mut lone, 1, m));
        let first = lone.send_all();
        let exponents: Vec<u32> =
            first.iter().filter(|sent| is_exponents(sent)).map(|sent| sent.header.seq).collect();
        assert_eq!(exponents, [7, 15], "dynamic: {is_dynamic}");
        assert_eq!(first.len(), 9, "7 that no exponent chunk is before");
        first.iter().for_each(|sent| lone.take(&sent.answer()));
        lone.finish();
        assert_eq!(std::iter::from_fn(|| lone.engine.poll_completion()).count(), 15);
        let stats = lone.engine.stats();
        let fallbacks = if is_dynamic { stats.raw_chunks } else { stats.exponent_rounds };
        assert_eq!((stats.chunks_sent, fallbacks), (17, 7), "dynamic: {is_dynamic}");
    }
}

#[test]
fn jobs_with_a_fixed_scale_and_other_operations_have_none() {
    for params in [job(2, 16, 16), dynamic(16, job(2, 1, 16))] {
        let mut lone = Lone::ready(params, RTT);
        submit(&mut lone, 12, 0);
        assert!(lone.send_all().iter().all(|sent| is_in_slots(sent) && !is_exponents(sent)));
    }
    for arithmetic in [Arithmetic::Max, Arithmetic::Bits] {
        let mut lone = small(false);
        lone.operate(Operation::allreduce(9, DType::Float32, arithmetic, 160, Box::new(vec![0; 640])));
        let sent = lone.send_all();
        assert_eq!((sent.len(), sent[0].header.elements), (10, 16), "{arithmetic:?}");
    }
}

/// It is sent again at once: a query would cost a round trip for which all wait. It is no part of an
/// operation's loss bound.
#[test]
fn a_lost_one_is_repaired_and_never_flushed() {
    for is_dynamic in [false, true] {
        for loss_bound in [0.0, 0.9] {
            let mut lone = small(is_dynamic);
            submit(&mut lone, 1, 0);
            lone.send_all().iter().for_each(|sent| {
                lone.wait(RTT);
                lone.take(&sent.answer());
            });
            lone.finish();
            let buffer = Box::new(vec![0; 640]);
            let sum = Operation::allreduce(SIGNATURE, DType::Float32, Arithmetic::Sum, 160, buffer);
            lone.operate(Operation { loss_bound, ..sum });
            let lost = lone.send_all().remove(0);
            let first = lone.expire();
            let rtt = lone.engine.stats().rtt;
            let early = if loss_bound > 0.0 { rtt.timeout_begun_ns - 1 } else { rtt.timeout_begun_ns };
            assert!(first <= early, "dynamic: {is_dynamic}, {loss_bound}: {first} ns, {rtt:?}");
            let mut again = Vec::new();
            loop {
                let mut sent = lone.send_all();
                sent.retain(|sent| sent.header.kind == Kind::Contribution as u8);
                for sent in &sent {
                    assert_eq!((sent.header.seq, words(sent)), (lost.header.seq, words(&lost)));
                    assert_eq!((sent.is_question(), sent.header.has(flag::PARTIAL)), (false, false));
                }
                again.extend(sent);
                if again.len() >= 5 {
                    break;
                }
                lone.expire();
            }
            let last = again.last().expect("it was sent");
            // No sum of some workers is a maximum of all.
            let refused = |lone: &Lone| lone.engine.stats().frames.get(Reason::BadType);
            lone.take(&last.answer_with(|header| {
                (header.flags, header.bitmap_0) = (header.flags | flag::PARTIAL, 1);
                header.contributors = 1;
            }));
            assert_eq!(refused(&lone), 1);
            lone.take(&last.answer());
            let chunks = lone.send_all();
            assert_eq!(chunks.iter().filter(|sent| is_in_slots(sent)).count(), 10, "dynamic: {is_dynamic}");
        }
    }
}

/// Workers with the same operations have the same exponent chunks: another signature in it names both
/// operations.
#[test]
fn another_operation_is_found_by_it() {
    let mut lone = small(false);
    submit(&mut lone, 8, 0);
    let sent = lone.send_all();
    lone.take(&sent[0].answer_with(|header| {
        (header.flags, header.tensor) = (header.flags | flag::MISMATCH, 0xbad);
    }));
    let why = JobError::Mismatch { lane: 0, seq: 0, base: 0, signature: SIGNATURE, theirs: 0xbad };
    assert_eq!(lone.engine.state(), JobState::Failed(&why));
}

#[test]
fn a_result_that_is_not_its_own_is_refused() {
    let table: [(&str, Change, Reason); 5] = [
        ("another tensor", |h| h.tensor = 78, Reason::WrongPlace),
        ("another offset", |h| h.offset = 16, Reason::WrongPlace),
        ("16-bit words", |h| h.format = 1, Reason::BadFormat),
        ("floats", |h| h.flags |= flag::RAW_FLOAT, Reason::BadType),
        ("a chunk that waits for it", |h| h.seq = 1, Reason::OutOfTurn),
    ];
    let mut lone = small(false);
    submit(&mut lone, 8, 0);
    let sent = lone.send_all().remove(0);
    lone.refuses(&sent, &table);
    let mut lone = small(true);
    submit(&mut lone, 8, 0);
    let sent = lone.send_all().remove(0);
    // Floats of it are no form that was sent.
    lone.refuses(&sent, &[&table[..3], &[("floats", table[3].1, Reason::OutOfTurn), table[4]]].concat());
    // Nobody asks for its floats, either.
    let mut ask = sent.answer_with(|header| (header.flags, header.elements) = (flag::RAW_FLOAT, 0));
    ask.truncate(HEADER_LEN);
    lone.take(&ask);
    assert_eq!(lone.engine.stats().frames.get(Reason::WrongElements), 1);
    let short = |sent: &Sent| {
        let mut payload = sent.answer_with(|header| header.elements -= 1);
        payload.truncate(payload.len() - 4);
        payload
    };
    lone.take(&short(&sent));
    assert_eq!(lone.engine.stats().frames.get(Reason::WrongElements), 2);
    assert_eq!(lone.engine.stats().results, 0);
}

/// With one slot, or a congestion window of one, chunks follow each other.
#[test]
fn a_window_of_one_chunk_is_enough() {
    let narrow = JobParams { congestion_control: true, ..block(2, 16, 16) };
    for params in [block(2, 1, 16), block(2, 2, 1), narrow, dynamic(8, block(2, 1, 16))] {
        let chunks = 20 * 16 / u64::from(params.elements) + 1;
        let mut lone = Lone::ready(params, RTT);
        submit(&mut lone, 20, 0);
        lone.finish();
        assert_eq!(lone.engine.poll_completion().map(|end| end.result), Some(Ok(())));
        assert_eq!(lone.engine.stats().chunks_sent, chunks);
    }
}

/// The others' exponents are unknown to a worker that replaces another one: what waits for them goes as
/// floats.
#[test]
fn chunks_that_wait_go_as_floats_after_a_worker_was_replaced() {
    let mut lone = small(true);
    submit(&mut lone, 24, 0);
    let first = lone.send_all();
    assert_eq!(first.len(), 1);
    lone.engine.renew(lone.now, 8, 0);
    let again = lone.send_all();
    assert_eq!(again.len(), 16);
    assert_eq!((is_exponents(&again[0]), again[0].header.has(flag::RESEND)), (true, true));
    assert!(again[1..].iter().all(|sent| sent.header.has(flag::RAW_FLOAT)));
    // The result of the incarnation before is no evidence of later chunks, either.
    again.iter().for_each(|sent| lone.take(&sent.answer()));
    let rest = lone.send_all();
    assert!(!rest.is_empty() && rest.iter().all(|sent| sent.header.has(flag::RAW_FLOAT)));
    rest.iter().for_each(|sent| lone.take(&sent.answer()));
    assert_eq!(lone.engine.poll_completion().map(|end| end.result), Some(Ok(())));
}

/// Other workers had the exponents, and did not wait for this one's values.
#[test]
fn the_sum_of_others_needs_no_exponent_of_ones_own() {
    let mut lone = small(true);
    submit(&mut lone, 1, 0);
    lone.finish();
    let values: Vec<u8> = [1.0f32; 160].iter().flat_map(|value| value.to_ne_bytes()).collect();
    let sum = Operation::allreduce(SIGNATURE, DType::Float32, Arithmetic::Sum, 160, Box::new(values));
    lone.operate(Operation { loss_bound: 0.9, ..sum });
    let exponents = lone.send_all().remove(0);
    assert_eq!(exponents.header.seq, 1);
    let mut sums = exponents.answer_with(|header| {
        (header.seq, header.offset, header.elements) = (3, 16, 16);
        header.flags = flag::PARTIAL;
        (header.exponent, header.bitmap_0, header.contributors) = (byte(1), 0b10, 1);
    });
    sums.resize(HEADER_LEN + 64, 0);
    sums[HEADER_LEN..].as_chunks_mut().0.fill((1i32 << 29).to_be_bytes());
    lone.take(&sums);
    assert_eq!(lone.engine.stats().partial, 1);
    lone.take(&exponents.answer());
    let sent = lone.send_all();
    assert_eq!(sent.iter().map(|sent| sent.header.seq).collect::<Vec<_>>(), [2, 4, 5, 6, 7, 8, 9, 10, 11]);
    sent.iter().for_each(|sent| lone.take(&sent.answer()));
    let end = (0..2).filter_map(|_| lone.engine.poll_completion()).last().expect("complete");
    let value = end.buffer.input(16 * 4, 4).first_chunk().copied().map(f32::from_ne_bytes);
    // Half of the range of one of two workers, for a 2^m of 2; then doubled for the worker that is missing.
    let value = value.expect("a value");
    assert!((value - 2.0).abs() < 1e-6, "{value}");
    assert_eq!(end.loss.map(|loss| loss.by_worker), Some(vec![16, 0]));
}
