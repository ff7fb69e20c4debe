//! The slots of a lane's chunks: the next one that results name, other workers' operations, the measured
//! path.

use std::collections::VecDeque;

use crate::support::{Lone, SIGNATURE, Sent, block, job, peers};
use sumac_job::PathMeasure;
use sumac_transport::{
    Arithmetic, DType, Engine, JobError, JobParams, JobState, OpError, OpId, Operation, ParamError, Time,
};
use sumac_wire::{Header, Kind, Reason, header::flag};

const RTT: u64 = 50_000;

/// Slot, version and chunk.
fn places(sent: &[Sent]) -> Vec<(u32, u8, u32)> {
    sent.iter().map(|sent| (sent.header.slot, sent.header.pool_version(), sent.header.seq)).collect()
}

#[test]
fn slots_go_where_results_send_them() {
    let mut lone = Lone::ready(JobParams { lane: 1, ..job(2, 2, 4) }, RTT);
    lone.submit_floats(&[1.0; 32]);
    let first = lone.send_all();
    assert_eq!(places(&first), [(2, 0, 0), (3, 0, 1)], "the lane's slots come after lane 0's");
    // Slot 2 is held up: slot 3 goes on alone, and steals.
    lone.take(&first[1].answer_with(|header| header.next_seq = 4));
    let second = lone.send_all();
    assert_eq!(places(&second), [(3, 1, 3)]);
    lone.take(&second[0].answer_with(|header| header.next_seq = 5));
    let third = lone.send_all();
    assert_eq!(places(&third), [(2, 0, 0), (3, 0, 4)], "and what seems lost is asked for");
    assert!(third[0].is_question());
    lone.take(&third[1].answer_with(|header| header.next_seq = 6));
    let fourth = lone.send_all();
    assert_eq!(places(&fourth), [(3, 1, 5)]);
    assert_eq!(lone.engine.stats().steals, 3, "chunks 4 to 6 come out of turn");
    lone.take(&fourth[0].answer_with(|header| header.next_seq = 9));
    lone.take(&first[0].answer_with(|header| header.next_seq = 7));
    let rest = lone.send_all();
    assert_eq!(places(&rest), [(3, 0, 6), (2, 1, 2)]);
    rest.iter().for_each(|sent| lone.take(&sent.answer_with(|header| header.next_seq += 40)));
    let rest = lone.send_all();
    assert_eq!(places(&rest), [(2, 0, 7)], "slot 3 waits for chunk 9, which nobody has yet");
    lone.take(&rest[0].answer_with(|header| header.next_seq += 80));
    assert_eq!(lone.engine.poll_completion().map(|end| (end.id, end.result)), Some((OpId(0), Ok(()))));
    lone.submit_floats(&[1.0; 8]);
    assert_eq!(places(&lone.send_all()), [(3, 1, 9)], "of chunks 8 and 9");
}

#[test]
fn another_operation_of_another_worker_ends_the_job_and_names_both() {
    for (params, what) in [(job(2, 4, 4), "elements"), (block(2, 4, 4), "an exponent round")] {
        let mut lone = Lone::ready(params, RTT);
        lone.submit_floats(&[1.0; 16]);
        let sent = lone.send_all();
        lone.take(&sent[2].answer_with(|header| {
            (header.flags, header.tensor) = (header.flags | flag::MISMATCH, 0xbad);
        }));
        let why = JobError::Mismatch { lane: 0, seq: 2, base: 8, signature: SIGNATURE, theirs: 0xbad };
        assert_eq!(lone.engine.state(), JobState::Failed(&why), "{what}");
        let end = lone.engine.poll_completion().map(|end| end.result);
        assert_eq!(end, Some(Err(OpError::Job(why))), "{what}");
        assert_eq!(lone.engine.stats().mismatches, 1, "{what}");
    }
}

#[test]
fn a_chunk_in_two_slots_fails_the_job() {
    let mut lone = Lone::ready(job(2, 2, 4), RTT);
    lone.submit_floats(&[1.0; 24]);
    let first = lone.send_all();
    first.iter().for_each(|sent| lone.take(&sent.answer_with(|header| header.next_seq = 4)));
    let second = lone.send_all();
    second.iter().for_each(|sent| lone.take(&sent.answer_with(|header| header.next_seq += 20)));
    let third = lone.send_all();
    assert_eq!(places(&third), [(0, 0, 4), (1, 0, 4)], "an aggregator that cannot count");
    third.iter().for_each(|sent| lone.take(&sent.answer_with(|header| header.next_seq += 40)));
    let end = lone.engine.poll_completion().map(|end| end.result);
    assert!(matches!(end, Some(Err(OpError::Job(JobError::AggregatorLost { .. })))), "{end:?}");
}

#[test]
fn a_path_is_measured_before_its_slots_are_given_out() {
    let params = JobParams { lane: 3, shards: 2, measure: true, ..job(2, 1, 240) };
    let mut lone = Lone::ready(params, RTT);
    assert_eq!(lone.engine.state(), JobState::Probing, "the train is still to come");
    lone.submit_floats(&[1.0; 240 * 8]);
    // 1,024 bytes every 10 µs and two packets' sending, however many are asked for: the first window is
    // enough.
    let mut train = VecDeque::from(lone.send_all());
    while let Some(probe) = train.pop_front() {
        assert_eq!((probe.header.kind, probe.header.lane), (Kind::Probe as u8, 3));
        assert_eq!(probe.payload.len(), 1024);
        lone.wait(10_000);
        lone.take(&probe.answer());
        train.extend(lone.send_all());
    }
    let JobState::Measured(PathMeasure { rtt_ns, bytes_per_s, .. }) = lone.engine.state() else {
        panic!("{:?}", lone.engine.state());
    };
    assert_eq!((rtt_ns, bytes_per_s), (16 * 12_000, 85_333_333));
    assert!(lone.send().is_none() && lone.engine.poll_timeout().is_none(), "it waits");
    assert_eq!(lone.engine.set_slots(3), Err(ParamError::Slots { slots: 3 }));
    assert_eq!(lone.engine.set_slots(4), Ok(()));
    let sent = lone.send_all();
    assert_eq!(places(&sent), [(12, 0, 0), (13, 0, 1), (14, 0, 2), (15, 0, 3)]);
    assert_eq!(lone.engine.set_slots(8), Err(ParamError::Started));
    assert_eq!(lone.engine.params().slots, 4);
}

#[test]
fn slots_may_be_given_out_before_or_without_a_measure() {
    for measure in [false, true] {
        let mut engine =
            Engine::new(JobParams { measure, ..job(2, 1, 4) }, &peers()).expect("good parameters");
        assert_eq!(engine.set_slots(4), Ok(()));
        let mut payload = [0; 128];
        assert!(engine.poll_transmit(Time(0), &mut payload).is_some(), "the probe");
        let mut lone = Lone { engine, now: Time(0) };
        let probe = Sent {
            path: 0,
            header: sumac_wire::Header::read(&payload[..], 0, 80).expect("a probe"),
            payload: payload[..80].to_vec(),
            slots: 4,
            is_dynamic: false,
        };
        lone.take(&probe.answer());
        assert_eq!(lone.engine.state(), JobState::Ready, "measure: {measure}");
        lone.submit_floats(&[1.0; 40]);
        assert_eq!(lone.send_all().len(), 4);
    }
}

/// A chunk without a result is flushed once all workers have begun its operation. A partial sum is scaled up,
/// and the completion states what is missing in it.
#[test]
fn an_operation_with_a_bound_flushes_and_reports_its_loss() {
    let mut lone = Lone::ready(job(4, 4, 4), 100_000);
    lone.submit_floats(&[0.5; 3]);
    lone.finish();
    lone.engine.poll_completion().expect("the operation before");
    let bytes: Vec<u8> = [1.0f32; 16].iter().flat_map(|value| value.to_ne_bytes()).collect();
    let operation = Operation::allreduce(SIGNATURE, DType::Float32, Arithmetic::Sum, 16, Box::new(bytes));
    lone.operate(Operation { loss_bound: 0.5, ..operation });
    let sent = lone.send_all();
    let stated: Vec<_> = sent.iter().map(|sent| (sent.header.contributors, sent.header.next_seq)).collect();
    assert_eq!(
        stated,
        [(2, 5), (0, 0), (0, 0), (0, 0)],
        "the limit and the operation's end, with its first chunk"
    );
    lone.expire();
    let asked: Vec<Sent> = lone.send_all();
    assert!(!asked.is_empty() && asked.iter().all(Sent::is_question), "a worker may not have begun it");
    lone.take(&sent[0].answer());
    // Timers, until the rest was flushed.
    let mut flushed = Vec::new();
    while !flushed.iter().any(|sent: &Sent| sent.header.seq == 4) {
        lone.expire();
        flushed.extend(lone.send_all());
    }
    for Sent { header, .. } in &flushed {
        assert_eq!((header.flags, header.elements), (header.flags | flag::PARTIAL | flag::RESEND, 4));
        assert_eq!(
            (header.contributors, header.next_seq),
            (2, 1),
            "the limit, and the operation's first chunk"
        );
    }
    let some = |header: &mut Header, bitmap_0, contributors| {
        header.flags |= flag::PARTIAL;
        (header.bitmap_0, header.contributors) = (bitmap_0, contributors);
    };
    for (bitmap, contributors) in [(0b1111, 4), (0b0110, 3), (0b1_0010, 2), (0, 0)] {
        let before = lone.engine.stats().frames.get(Reason::WrongWorker);
        lone.take(&sent[1].answer_with(|header| some(header, bitmap, contributors)));
        let refused = lone.engine.stats().frames.get(Reason::WrongWorker);
        assert_eq!(refused, before + 1, "{bitmap:#b}, {contributors}");
    }
    lone.take(&sent[1].answer_with(|header| some(header, 0b0110, 2)));
    lone.take(&sent[2].answer_with(|header| some(header, 0b0111, 3)));
    lone.take(&sent[3].answer_with(|header| some(header, 0b1110, 3)));
    let end = lone.engine.poll_completion().expect("complete");
    assert_eq!(end.result, Ok(()));
    let loss = end.loss.expect("it has a bound");
    assert_eq!((loss.budget, loss.by_worker), (8, vec![8, 0, 0, 8]));
    assert_eq!(loss.own, [4..8, 12..16]);
    let sums: Vec<f32> =
        end.buffer.input(0, 64).as_chunks().0.iter().map(|value| f32::from_ne_bytes(*value)).collect();
    let scaled = [1.0, 2.0, 4.0 / 3.0, 4.0 / 3.0];
    assert_eq!(sums, scaled.iter().flat_map(|sum: &f32| [*sum; 4]).collect::<Vec<_>>());
    assert_eq!(lone.engine.stats().partial, 3);
}
