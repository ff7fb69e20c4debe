//! Exponents that workers agree on, values that are not finite, and who gives and takes what, on the wire.

use crate::support::{Lone, SIGNATURE, Sent, block, job};
use sumac_transport::{
    Arithmetic, DType, DynamicParams, JobParams, NonFinitePolicy, OpError, OpId, Operation, WireFormat,
};
use sumac_wire::{
    Header,
    header::{HEADER_LEN, exponent, flag},
};

const RTT: u64 = 50_000;

/// Sequence number, whether it asks for an exponent, the exponent it is scaled by, and its look-ahead.
fn exponents(sent: &[Sent]) -> Vec<(u32, bool, i8, i8)> {
    let of = |sent: &Sent| {
        let header = &sent.header;
        (header.seq, header.has(flag::EXPONENT), header.exponent, header.next_exponent)
    };
    sent.iter().map(of).collect()
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_ne_bytes()).collect()
}

/// The exponent byte of a largest magnitude of 2^m.
fn byte(m: i32) -> i8 {
    (m + exponent::BIAS) as i8
}

#[test]
fn an_exponent_is_asked_for_at_the_head_and_looked_ahead_for_after_it() {
    // 2 slots of 4: chunk i has values up to 2^i.
    let mut lone = Lone::ready(block(2, 2, 4), RTT);
    let values: Vec<f32> = (0..20).map(|at| f32::exp2((at / 4) as f32)).collect();
    lone.submit_floats(&values);
    let (none, unknown) = (exponent::NONE, exponent::UNKNOWN);
    let rounds = lone.send_all();
    assert_eq!(exponents(&rounds), [(0, true, none, byte(0)), (1, true, none, byte(1))]);
    assert!(rounds.iter().all(|round| round.payload.len() == HEADER_LEN && round.header.elements == 0));

    // Another worker has larger values in chunk 1.
    lone.take(&rounds[0].answer());
    lone.take(&rounds[1].answer_with(|header| header.exponent = byte(9)));
    let first = lone.send_all();
    assert_eq!(exponents(&first), [(0, false, byte(0), byte(2)), (1, false, byte(9), byte(3))]);

    first.iter().for_each(|sent| lone.take(&sent.answer()));
    let second = lone.send_all();
    assert_eq!(
        exponents(&second),
        [(2, false, byte(2), byte(4)), (3, false, byte(3), unknown)],
        "no further round; slot 1's next chunk is not there yet"
    );
    second.iter().for_each(|sent| lone.take(&sent.answer()));
    let last = lone.send_all();
    assert_eq!(exponents(&last), [(4, false, byte(4), unknown)]);
    last.iter().for_each(|sent| lone.take(&sent.answer()));
    let stats = lone.engine.stats();
    assert_eq!((stats.exponent_rounds, stats.chunks_sent, stats.results), (2, 5, 5));
    assert_eq!((stats.elements_sent, stats.elements_scanned, stats.elements_received), (20, 20, 20));
}

#[test]
fn the_tail_of_one_operation_carries_the_exponents_of_the_next() {
    let mut lone = Lone::ready(block(2, 2, 4), RTT);
    lone.submit_floats(&[1.0; 16]);
    lone.send_all().iter().for_each(|round| lone.take(&round.answer()));
    let first = lone.send_all();
    first.iter().for_each(|sent| lone.take(&sent.answer()));
    // Chunks 2 and 3 are not sent before the next operation is there.
    lone.submit_floats(&[2.0; 8]);
    let tail = lone.send_all();
    assert_eq!(exponents(&tail), [(2, false, byte(0), byte(1)), (3, false, byte(0), byte(1))]);
    tail.iter().for_each(|sent| lone.take(&sent.answer()));
    assert_eq!(exponents(&lone.send_all())[0], (4, false, byte(1), exponent::UNKNOWN), "no round");
    assert_eq!(lone.engine.stats().exponent_rounds, 2);
}

#[test]
fn where_somebody_lacks_the_chunk_all_ask_for_it() {
    let mut lone = Lone::ready(block(2, 1, 4), RTT);
    lone.submit_floats(&[1.0; 8]);
    lone.send_all().iter().for_each(|round| lone.take(&round.answer()));
    let first = lone.send_all();
    lone.take(&first[0].answer_with(|header| header.next_exponent = exponent::UNKNOWN));
    let round = lone.send_all();
    assert_eq!(exponents(&round), [(1, true, exponent::NONE, byte(0))]);
    assert_eq!(round[0].header.has(flag::POOL_VERSION), !first[0].header.has(flag::POOL_VERSION));
    lone.take(&round[0].answer());
    // The answer comes twice, before and after the elements went.
    lone.take(&round[0].answer());
    assert_eq!(exponents(&lone.send_all()), [(1, false, byte(0), exponent::UNKNOWN)]);
    lone.take(&round[0].answer());
    assert_eq!(lone.engine.stats().frames.get(sumac_wire::Reason::Duplicate), 2);
}

#[test]
fn what_needs_no_exponent_asks_for_none() {
    let mut lone = Lone::ready(block(2, 8, 4), RTT);
    lone.submit(DType::Int32, 4, vec![1; 16]);
    for arithmetic in [Arithmetic::Max, Arithmetic::Min, Arithmetic::Bits] {
        let buffer = Box::new(vec![0; 16]);
        lone.operate(Operation::allreduce(9, DType::Float32, arithmetic, 4, buffer));
    }
    lone.submit_floats(&[1.0; 4]);
    let sent = lone.send_all();
    let asks: Vec<bool> = sent.iter().map(|sent| sent.header.has(flag::EXPONENT)).collect();
    assert_eq!(asks, [false, false, false, false, true]);
    let maximum: Vec<bool> = sent.iter().map(|sent| sent.header.has(flag::MAXIMUM)).collect();
    assert_eq!(maximum, [false, true, true, false, false]);
    let formats: Vec<u8> = sent.iter().map(|sent| sent.header.format).collect();
    assert_eq!(formats, [0, 0, 0, 2, 0]);
}

#[test]
fn two_values_share_a_word_in_16_bits() {
    let params = JobParams { wire: WireFormat::Int16, ..job(2, 4, 4) };
    let mut lone = Lone::ready(params, RTT);
    let values: Vec<f32> = (0..11).map(|at| (at as f32 - 5.0) / 8.0).collect();
    lone.submit_floats(&values);
    let sent = lone.send_all();
    let places: Vec<_> = sent.iter().map(|s| (s.header.offset, s.header.elements, s.header.format)).collect();
    assert_eq!(places, [(0, 4, 1), (8, 2, 1)], "8 values in 4 words, then 3 in 2");
}

#[test]
fn values_that_are_not_finite_fail_the_operation_or_are_carried() {
    for policy in [NonFinitePolicy::Error, NonFinitePolicy::Carry] {
        let mut lone = Lone::ready(JobParams { not_finite: policy, ..block(2, 1, 4) }, RTT);
        let operation = Operation::allreduce(
            7,
            DType::Float32,
            Arithmetic::Sum,
            8,
            Box::new(bytes(&[1.0, 2.0, f32::NAN, 4.0, 5.0, 6.0, 7.0, 8.0])),
        );
        lone.operate(Operation { base: 100, ..operation });
        let mut flags = Vec::new();
        loop {
            let sent = lone.send_all();
            if sent.is_empty() {
                break;
            }
            flags.extend(sent.iter().map(|sent| sent.header.has(flag::NOT_FINITE)));
            sent.iter().for_each(|sent| lone.take(&sent.answer()));
        }
        assert_eq!(flags, [false, true, false], "the round, the chunk at fault, the other one");
        let end = lone.engine.poll_completion().expect("it ends");
        match (policy, end.result) {
            (NonFinitePolicy::Error, Err(OpError::NotFinite { index: 102, value })) if value.is_nan() => {}
            (NonFinitePolicy::Carry, Ok(())) => {
                let nan = [f32::NAN.to_ne_bytes(); 4].concat();
                assert_eq!(end.buffer.input(0, 16), nan, "the whole chunk");
                assert_ne!(end.buffer.input(16, 16), nan, "and no other");
            }
            (_, other) => panic!("{policy:?}: {other:?}"),
        }
    }
}

#[test]
fn values_that_integers_do_not_hold_are_left_to_the_clients() {
    let params = JobParams { not_finite: NonFinitePolicy::Raw, ..block(2, 4, 4) };
    let far = [1e30, 1.0, 1e-10, 1e-30];
    // Two workers: 16 steps are 2^-26 of the largest.
    let near = [1.0, 0.0, -f32::exp2(-25.0), f32::exp2(-26.0) * 1.01];
    let below = [1.0, 0.0, 0.5, f32::exp2(-26.0) * 0.99];
    for (chunk, is_left) in [
        (far, true),
        (near, false),
        (below, true),
        ([1.0, f32::NAN, 1.0, 1.0], true),
        ([1.0, f32::INFINITY, 1.0, 1.0], true),
        ([0.0; 4], false),
        ([1e-40, 0.0, 0.0, 0.0], false),
    ] {
        let mut lone = Lone::ready(params.clone(), RTT);
        let values = [[3.0; 4], chunk, [5.0; 4]].concat();
        lone.submit_floats(&values);
        lone.finish();
        let end = lone.engine.poll_completion().expect("it ends");
        assert_eq!((end.result, end.from), (Ok(()), 0));
        assert_eq!(end.left.first(), is_left.then_some(&0b10), "{chunk:?}");
        let found = end.buffer.input(16, 16);
        assert!(!is_left || found == bytes(&chunk), "{chunk:?}: it has this worker's values");
    }
}

#[test]
fn another_workers_values_are_left_too() {
    let params = JobParams { not_finite: NonFinitePolicy::Raw, ..block(2, 4, 4) };
    let mut lone = Lone::ready(params, RTT);
    lone.submit_floats(&[1.0; 12]);
    lone.send_all().iter().for_each(|round| lone.take(&round.answer()));
    let overflow = |header: &mut sumac_wire::Header| header.flags |= flag::OVERFLOW;
    for sent in lone.send_all() {
        let is_first = sent.header.seq == 0;
        lone.take(&if is_first { sent.answer_with(overflow) } else { sent.answer() });
    }
    let end = lone.engine.poll_completion().expect("it ends");
    assert_eq!((end.result, &end.left[..]), (Ok(()), &[1][..]));
}

#[test]
fn sums_with_a_loss_bound_carry_what_is_not_finite_and_maxima_have_it() {
    let params = JobParams { not_finite: NonFinitePolicy::Raw, ..block(2, 4, 4) };
    let input = bytes(&[1.0, f32::INFINITY, -f32::INFINITY, 1.0]);
    let nan = [f32::NAN.to_ne_bytes(); 4].concat();
    for (arithmetic, loss_bound, expected) in
        [(Arithmetic::Max, 0.0, &input), (Arithmetic::Min, 0.0, &input), (Arithmetic::Sum, 0.5, &nan)]
    {
        let mut lone = Lone::ready(params.clone(), RTT);
        let operation = Operation::allreduce(7, DType::Float32, arithmetic, 4, Box::new(input.clone()));
        lone.operate(Operation { loss_bound, ..operation });
        lone.finish();
        let end = lone.engine.poll_completion().expect("it ends");
        assert_eq!((end.result, end.left.len()), (Ok(()), 0));
        assert_eq!(end.buffer.input(0, 16), &expected[..], "{arithmetic:?}");
    }
}

#[test]
fn what_is_not_given_travels_as_zeros_and_what_is_not_taken_stays() {
    let mut lone = Lone::ready(JobParams { takes_empty: false, ..job(2, 4, 4) }, RTT);
    let values: Vec<u8> = (1..=48).collect();
    let operation = |gives, takes| Operation {
        gives,
        takes,
        base: 1000,
        ..Operation::allreduce(7, DType::Float32, Arithmetic::Bits, 12, Box::new(values.clone()))
    };
    // The middle is this worker's; chunk 0 ends in it and chunk 2 begins in it.
    lone.operate(operation(3..9, 5..12));
    let sent = lone.send_all();
    let wire: Vec<u8> = sent.iter().flat_map(|sent| sent.payload[HEADER_LEN..].to_vec()).collect();
    let mut expected = vec![0; 48];
    expected[12..36].copy_from_slice(&values[12..36]);
    assert_eq!(wire, expected);
    assert_eq!(sent.iter().map(|sent| sent.header.offset).collect::<Vec<_>>(), [1000, 1004, 1008]);
    sent.iter().for_each(|sent| lone.take(&sent.answer()));
    let end = lone.engine.poll_completion().expect("it ends");
    assert_eq!((end.id, end.result), (OpId(0), Ok(())));
    let memory = end.buffer.input(0, 48);
    assert_eq!((&memory[..20], &memory[20..]), (&values[..20], &expected[20..]));
    let stats = lone.engine.stats();
    assert_eq!((stats.elements_sent, stats.elements_received), (6, 7));
}

#[test]
fn a_worker_that_gives_and_takes_nothing_keeps_the_others_going() {
    let mut lone = Lone::ready(JobParams { takes_empty: false, ..block(2, 4, 4) }, RTT);
    // No memory at all.
    let reduce = Operation::allreduce(7, DType::Float32, Arithmetic::Sum, 8, Box::new(Vec::new()));
    lone.operate(Operation { gives: 0..0, takes: 0..0, ..reduce });
    let rounds = lone.send_all();
    assert!(rounds.iter().all(|round| round.header.next_exponent == exponent::NONE));
    rounds.iter().for_each(|round| lone.take(&round.answer_with(|header| header.exponent = byte(3))));
    let sent = lone.send_all();
    assert!(sent.iter().all(|sent| sent.payload[HEADER_LEN..].iter().all(|byte| *byte == 0)));
    sent.iter().for_each(|sent| lone.take(&sent.answer()));
    assert_eq!(lone.engine.poll_completion().map(|end| end.result), Some(Ok(())));
}

/// A sum of few floats has no exponent, so that it takes one packet and one round trip wherever the stream
/// stands; and it is exact.
#[test]
fn a_sum_of_few_floats_takes_one_packet_and_one_round_trip() {
    let few = [1e30, 1.0, 1e-10, -1e-45];
    for not_finite in [NonFinitePolicy::Error, NonFinitePolicy::Carry, NonFinitePolicy::Raw] {
        let mut lone = Lone::ready(JobParams { not_finite, ..block(2, 16, 352) }, RTT);
        for number in 0..20 {
            lone.submit_floats(&few);
            let sent = lone.send_all();
            assert_eq!(sent.len(), 1, "operation {number}");
            let Header { seq, elements, format, exponent, next_exponent, flags, .. } = sent[0].header;
            assert_eq!((seq, elements, format, flags & flag::OVERFLOW), (number, 40, 0, 0), "{not_finite:?}");
            assert_eq!((exponent, next_exponent), (exponent::NONE, exponent::UNKNOWN));
            lone.take(&sent[0].answer());
            let end = lone.engine.poll_completion().expect("complete");
            assert_eq!((end.result, end.left), (Ok(()), Vec::new()));
            assert_eq!(end.buffer.input(0, 16), bytes(&few));
        }
        let stats = lone.engine.stats();
        assert_eq!((stats.chunks_sent, stats.exponent_rounds, stats.exponent_chunks), (20, 0, 0));
    }
}

#[test]
fn longer_sums_and_those_of_some_workers_are_scaled() {
    let sum = |count: usize| {
        let buffer = Box::new(bytes(&vec![1.0; count]));
        Operation::allreduce(SIGNATURE, DType::Float32, Arithmetic::Sum, count, buffer)
    };
    // A part of a tensor is summed as the other parts are.
    let table = [
        ("35 values", sum(35), false),
        ("36 values", sum(36), true),
        ("with a loss bound", Operation { loss_bound: 0.5, ..sum(4) }, true),
        ("the end of a long tensor", Operation { base: 352, ..sum(4) }, true),
    ];
    for (what, operation, has_round) in table {
        let mut lone = Lone::ready(block(2, 16, 352), RTT);
        lone.operate(operation);
        let sent = lone.send_all();
        assert_eq!((sent.len(), sent[0].header.has(flag::EXPONENT)), (1, has_round), "{what}");
    }
    let dynamic = DynamicParams::new(64).with_window(16).without_congestion_control();
    let mut lone = Lone::ready(JobParams { dynamic: Some(dynamic), ..block(2, 1, 352) }, RTT);
    lone.operate(sum(4));
    let sent = lone.send_all();
    assert!(
        sent[0].header.has(flag::RAW_FLOAT) && sent[0].header.elements == 4,
        "a parameter host adds floats"
    );
}

/// Each value has words of its own, also where a packet has others' values before and behind it.
#[test]
fn few_floats_are_given_and_taken_by_range() {
    let mut lone = Lone::ready(block(2, 16, 352), RTT);
    let buffer = Box::new(bytes(&[1.5, 2.5, 3.5, 4.5]));
    let sum = Operation::allreduce(SIGNATURE, DType::Float32, Arithmetic::Mean, 4, buffer);
    lone.operate(Operation { gives: 1..3, takes: 2..4, ..sum });
    let sent = lone.send_all().remove(0);
    let is_zero: Vec<bool> = sent.payload[HEADER_LEN..].chunks(40).map(|value| value == [0; 40]).collect();
    assert_eq!(is_zero, [true, false, false, true]);
    lone.take(&sent.answer());
    let end = lone.engine.poll_completion().expect("complete");
    assert_eq!(end.buffer.input(0, 16), bytes(&[1.5, 2.5, 1.75, 0.0]));
}

#[test]
fn few_floats_that_are_not_finite_follow_the_jobs_policy() {
    for (not_finite, result, value, left) in [
        (NonFinitePolicy::Error, false, None, Vec::new()),
        (NonFinitePolicy::Carry, true, Some(f32::NAN), Vec::new()),
        (NonFinitePolicy::Raw, true, Some(1.0), vec![1]),
    ] {
        let mut lone = Lone::ready(JobParams { not_finite, ..block(2, 16, 352) }, RTT);
        lone.submit_floats(&[1.0, f32::INFINITY]);
        lone.finish();
        let end = lone.engine.poll_completion().expect("complete");
        assert_eq!((end.result.is_ok(), end.left), (result, left), "{not_finite:?}");
        let first = end.buffer.input(0, 4).first_chunk().copied().map(u32::from_ne_bytes);
        assert!(value.is_none_or(|value| first == Some(value.to_bits())), "{not_finite:?}");
    }
}
