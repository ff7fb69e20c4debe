//! An operation's outcome for its owner: order, errors that name the element, failure of the job.

use crate::support::{Lone, SIGNATURE, Sent, job};
use sumac_transport::{
    Arithmetic, CompletionQueue, DType, Importance, JobError, JobState, OpError, OpId, Operation, SubmitError,
};
use sumac_wire::header::{HEADER_LEN, flag};

const RTT: u64 = 50_000;

fn complete(lone: &mut Lone) -> Vec<(OpId, Result<(), OpError>)> {
    lone.finish();
    results(lone)
}

fn results(lone: &mut Lone) -> Vec<(OpId, Result<(), OpError>)> {
    let ended = std::iter::from_fn(|| lone.engine.poll_completion());
    let mut ended: Vec<_> = ended.map(|end| (end.id, end.result)).collect();
    ended.sort_by_key(|(id, _)| *id);
    ended
}

#[test]
fn operations_share_the_window_without_a_gap() {
    let mut lone = Lone::ready(job(2, 16, 4), RTT);
    [5, 0, 4, 17].iter().for_each(|count| lone.submit_floats(&vec![1.0; *count]));
    let sent = lone.send_all();
    let places: Vec<_> = sent.iter().map(|s| (s.header.seq, s.header.offset, s.header.elements)).collect();
    let expected = [(0, 0, 4), (1, 4, 1), (2, 0, 4), (3, 0, 4), (4, 4, 4), (5, 8, 4), (6, 12, 4), (7, 16, 1)];
    assert_eq!(places, expected);
}

#[test]
fn operations_complete_by_themselves_and_a_queue_puts_them_in_order() {
    let mut queue = CompletionQueue::default();
    let mut ends = |lone: &mut Lone| {
        let ended: Vec<_> = std::iter::from_fn(|| lone.engine.poll_completion()).collect();
        let ids: Vec<u64> = ended.iter().map(|end| end.id.0).collect();
        ended.into_iter().for_each(|end| queue.push(end));
        (ids, std::iter::from_fn(|| queue.pop()).map(|end| (end.id.0, end.result)).collect::<Vec<_>>())
    };
    let mut lone = Lone::ready(job(2, 8, 4), RTT);
    [8, 0, 4].iter().for_each(|count| lone.submit_floats(&vec![1.0; *count]));
    let sent = lone.send_all();
    lone.take(&sent[2].answer());
    lone.take(&sent[0].answer());
    assert_eq!(ends(&mut lone), (vec![1, 2], vec![]), "the first still waits for chunk 1");
    lone.take(&sent[1].answer());
    assert_eq!(ends(&mut lone), (vec![0], vec![(0, Ok(())), (1, Ok(())), (2, Ok(()))]));
    assert!(lone.engine.is_idle());
}

#[test]
fn an_empty_operation_completes_at_once() {
    let mut lone = Lone::new(job(2, 8, 4));
    lone.submit_floats(&[]);
    assert_eq!(results(&mut lone), [(OpId(0), Ok(()))], "before any handshake");
}

#[test]
fn packets_say_where_and_how_they_want_to_go() {
    let params = sumac_transport::JobParams { shards: 4, lane: 6, ..job(2, 8, 4) };
    let mut lone = Lone::ready(params, RTT);
    lone.submit_floats(&[1.0; 32]);
    let mut frame = [0; 4096];
    let sent: Vec<_> = std::iter::from_fn(|| lone.engine.poll_transmit(lone.now, &mut frame)).collect();
    assert!(sent.iter().all(|sent| sent.port_offset == 2), "lane 6 is the urgent one of shard 2");
    assert!(sent.iter().all(|sent| sent.dscp_ecn == 0xa0 && sent.len == HEADER_LEN + 16), "class selector 5");
    let mut paths: Vec<u16> = sent.iter().map(|sent| sent.path).collect();
    paths.sort_unstable();
    paths.dedup();
    assert_eq!(paths.len(), 8, "every packet may take another path");
}

#[test]
fn important_chunks_are_told_apart() {
    let dynamic = sumac_transport::DynamicParams::new(64).with_window(16);
    let dynamic = sumac_transport::JobParams { dynamic: Some(dynamic), slots: 1, ..job(2, 8, 4) };
    // Chunks 4 to 7 have the larger values. DSCP and ECN of small and of large ones, and of probes.
    let table = [
        ("static", job(2, 8, 4), Importance::Magnitude, (0xa0, 0xa2)),
        ("static, all", job(2, 8, 4), Importance::High, (0xa2, 0xa2)),
        ("static, none", job(2, 8, 4), Importance::Low, (0xa0, 0xa0)),
        ("dynamic", dynamic, Importance::Magnitude, (38 << 2 | 2, 34 << 2 | 2)),
    ];
    for (case, params, importance, (small, large)) in table {
        let mut lone = Lone::new(params);
        let mut frame = [0; 4096];
        let mut send = |lone: &mut Lone| -> Vec<u8> {
            let sent = std::iter::from_fn(|| lone.engine.poll_transmit(lone.now, &mut frame));
            sent.map(|sent| sent.dscp_ecn).collect()
        };
        assert!(send(&mut lone).iter().all(|byte| *byte == 48 << 2), "{case}: probes are CS6");
        let mut lone = Lone::ready(lone.engine.params().clone(), RTT);
        let values: Vec<u8> =
            (0..32).flat_map(|at| if at < 16 { 0.5f32 } else { -3.0 }.to_ne_bytes()).collect();
        let sum = Operation::allreduce(SIGNATURE, DType::Float32, Arithmetic::Sum, 32, Box::new(values));
        lone.operate(Operation { importance, ..sum });
        let expected = [[small; 4], [large; 4]].concat();
        assert_eq!(send(&mut lone), expected, "{case}");
    }
}

#[test]
fn the_worker_at_fault_names_the_element() {
    type Expected = fn(&OpError) -> bool;
    let table: [(&str, f32, Expected); 3] = [
        ("too large", 1e9, |e| matches!(e, OpError::Saturated { index: 41, value: 1e9, scale: 65536.0, .. })),
        ("NaN", f32::NAN, |e| matches!(e, OpError::NotFinite { index: 41, value } if value.is_nan())),
        ("infinite", f32::NEG_INFINITY, |e| {
            matches!(e, OpError::NotFinite { index: 41, value: f32::NEG_INFINITY })
        }),
    ];
    for (what, value, expected) in table {
        let mut lone = Lone::ready(job(2, 4, 4), RTT);
        let mut values = [1.0; 100];
        values[41] = value;
        values[60] = value;
        lone.submit_floats(&values);
        lone.submit_floats(&[1.0; 100]);
        let ended = complete(&mut lone);
        let Err(error) = &ended[0].1 else { panic!("{what}: no error") };
        assert!(expected(error), "{what}: {error:?}");
        assert_eq!(ended[1], (OpId(1), Ok(())), "{what}: the next operation is unharmed");
        let stats = lone.engine.stats();
        assert_eq!((stats.chunks_faulty, stats.operations_failed), (2, 1), "{what}");
    }
}

#[test]
fn the_flag_goes_out_and_the_others_learn_the_range() {
    let mut lone = Lone::ready(job(2, 32, 4), RTT);
    let mut values = [1.0; 8];
    values[6] = f32::INFINITY;
    lone.submit_floats(&values);
    let sent = lone.send_all();
    assert!(!sent[0].header.has(flag::NOT_FINITE) && sent[1].header.has(flag::NOT_FINITE));
    assert_eq!(sent[1].payload[HEADER_LEN + 8..HEADER_LEN + 12], [0; 4], "what is not finite counts as zero");

    let mut other = Lone::ready(job(2, 32, 4), RTT);
    other.submit_floats(&[1.0; 8]);
    let sent: Vec<Sent> = other.send_all();
    other.take(&sent[0].answer());
    other.take(&sent[1].answer_with(|header| header.flags |= flag::NOT_FINITE));
    let expected = OpError::Peer { first: 4, last: 7 };
    assert_eq!(results(&mut other), [(OpId(0), Err(expected))]);
}

#[test]
fn integers_too_large_for_the_sum_are_named() {
    let mut lone = Lone::ready(job(4, 4, 4), RTT);
    let values = [i32::MAX / 4, -(i32::MAX / 4), i32::MAX / 4 + 1];
    let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_ne_bytes()).collect();
    lone.submit(DType::Int32, 3, bytes);
    let limit = i32::MAX / 4;
    let error = OpError::IntegerTooLarge { index: 2, value: values[2], limit };
    let text = error.to_string();
    assert!(!text.contains("scale") && text.contains("split the values"), "{text}");
    assert_eq!(complete(&mut lone), [(OpId(0), Err(error))]);
}

#[test]
fn a_buffer_that_is_too_short_fails_its_operation_only() {
    let mut lone = Lone::ready(job(2, 4, 4), RTT);
    lone.submit(DType::Float32, 10, vec![0; 7 * 4]);
    lone.submit_floats(&[1.0; 4]);
    let expected = [(OpId(0), Err(OpError::ShortBuffer { index: 7 })), (OpId(1), Ok(()))];
    assert_eq!(complete(&mut lone), expected);
}

#[test]
fn what_this_mode_cannot_carry_is_handed_back() {
    let mut lone = Lone::ready(job(2, 4, 4), RTT);
    let operation =
        |count| Operation::allreduce(1, DType::Float32, Arithmetic::Min, count, Box::new(vec![9u8; 4]));
    type Change = fn(&mut Operation);
    let signature = 1;
    let bound = |bound, problem| SubmitError::LossBound { signature, bound, problem };
    let (fraction, floats) =
        ("a fraction from 0 to 1 is needed", "only sums and means of floats can do without a worker");
    let table: [(&str, Change, SubmitError); 9] = [
        ("a loss bound of a minimum", |o| o.loss_bound = 0.1, bound(0.1, floats)),
        (
            "a loss bound of integers",
            |o| (o.loss_bound, o.arithmetic, o.dtype) = (0.1, Arithmetic::Sum, DType::Int32),
            bound(0.1, floats),
        ),
        ("a loss bound above 1", |o| o.loss_bound = 1.1, bound(1.1, fraction)),
        ("a loss bound below 0", |o| o.loss_bound = -0.1, bound(-0.1, fraction)),
        ("too long", |o| o.count = 1 << 32, SubmitError::TooLong { signature, count: 1 << 32, base: 0 }),
        ("too far", |o| o.base = u32::MAX, SubmitError::TooLong { signature, count: 1, base: u32::MAX }),
        ("gives beyond", |o| o.gives = 0..2, SubmitError::Range { signature, range: 0..2, count: 1 }),
        ("takes beyond", |o| o.takes = 2..3, SubmitError::Range { signature, range: 2..3, count: 1 }),
        ("a minimum of some", |o| o.gives = 0..0, SubmitError::Gives { signature, gives: 0..0, count: 1 }),
    ];
    for (what, change, expected) in table {
        let mut operation = operation(1);
        change(&mut operation);
        let (error, back) = lone.engine.submit(lone.now, operation).expect_err(what);
        assert_eq!(error, expected, "{what}");
        assert_eq!(back.buffer.input(0, 4), [9; 4], "{what}: with its buffer");
    }
    let nan = Operation { loss_bound: f32::NAN, ..operation(1) };
    assert!(lone.engine.submit(lone.now, nan).is_err());
}

#[test]
fn a_failed_job_ends_everything_by_name() {
    let mut lone = Lone::ready(job(2, 4, 4), RTT);
    lone.submit_floats(&[1.0; 100]);
    lone.submit_floats(&[]);
    lone.submit_floats(&[1.0; 4]);
    let sent = lone.send_all();
    let why = JobError::Worker { rank: 2, reason: "(10.77.2.2) stopped answering".into() };
    lone.engine.fail(why.clone());
    lone.engine.fail(JobError::Cancelled { by: "nobody, too late".into() });
    lone.submit_floats(&[1.0; 4]);
    lone.submit_floats(&[]);
    let failed = |id| (OpId(id), Err(OpError::Job(why.clone())));
    let expected = [failed(0), (OpId(1), Ok(())), failed(2), failed(3), failed(4)];
    assert_eq!(results(&mut lone), expected);
    assert_eq!(why.to_string(), "rank 2 (10.77.2.2) stopped answering");
    assert_eq!(lone.engine.state(), JobState::Failed(&why));
    assert!(lone.send().is_none() && lone.engine.poll_timeout().is_none());
    sent.iter().for_each(|sent| lone.take(&sent.answer()));
    assert!(lone.engine.is_idle());
}

#[test]
fn an_aggregator_that_never_answers_fails_the_job() {
    let mut lone = Lone::new(job(2, 4, 4));
    lone.submit_floats(&[1.0; 4]);
    let mut probes = 0;
    while lone.engine.state() == JobState::Probing {
        probes += lone.send_all().len() as u64;
        lone.expire();
    }
    assert_eq!(lone.engine.stats().probes_sent, probes);
    let ended = results(&mut lone);
    assert!(
        matches!(
            ended[..],
            [(OpId(0), Err(OpError::Job(JobError::NoReply { probes: 10.., waited_ms: 3000 })))]
        ),
        "{ended:?}"
    );
}

#[test]
fn a_path_that_drops_large_packets_is_named() {
    let mut lone = Lone::new(job(2, 4, 4));
    while lone.engine.state() == JobState::Probing {
        for probe in lone.send_all().into_iter().filter(|probe| probe.header.elements == 0) {
            lone.take(&probe.answer());
        }
        lone.expire();
    }
    let error = JobError::MtuTooSmall { elements: 4, bytes: 80 };
    assert_eq!(lone.engine.state(), JobState::Failed(&error));
}

#[test]
fn a_port_with_short_frames_is_named() {
    let mut lone = Lone::ready(job(2, 4, 256), RTT);
    lone.submit_floats(&[1.0; 4]);
    assert_eq!(lone.engine.poll_transmit(lone.now, &mut [0; 1087]), None);
    let error = JobError::FrameTooSmall { needed: 1088, given: 1087 };
    assert_eq!(results(&mut lone), [(OpId(0), Err(OpError::Job(error)))]);
}
