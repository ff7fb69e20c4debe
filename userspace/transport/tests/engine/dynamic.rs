//! One engine of a dynamic job whose frames the test answers: times of transmissions, and forged frames.

use sumac_transport::{DType, DynamicParams, Engine, JobError, JobParams, JobState, Scale, Time, Tuning};
use sumac_wire::{
    Kind, Reason,
    header::{HEADER_LEN, NO_SLOT, flag},
};

use crate::support::{self, Change, Lone, Sent, TAMPERED, peers};

const RTT: u64 = 50_000;

/// Whether it is a probe that goes to the parameter host, not by the aggregator.
fn is_straight(sent: &Sent) -> bool {
    sent.header.kind == Kind::Probe as u8 && sent.header.seq >> 31 == 1
}

/// A worker of two, with 16 chunks of 8 elements in flight and 4 more behind them.
fn start(params: JobParams) -> (Lone, Vec<Sent>) {
    let mut lone = Lone::ready(params, RTT);
    assert_eq!(lone.engine.state(), JobState::Ready);
    lone.submit_floats(&[2.0; 160]);
    let sent = lone.send_all();
    (lone, sent)
}

/// A job of two workers with a window of 16 chunks of 8 elements and 64 slots.
fn with(change: impl FnOnce(&mut DynamicParams)) -> JobParams {
    let mut dynamic = DynamicParams::new(64).with_window(16);
    change(&mut dynamic);
    JobParams { dynamic: Some(dynamic), scaling: Scale::Fixed(1e6), ..support::job(2, 1, 8) }
}

#[test]
fn packets_say_where_they_belong() {
    let (_, sent) = start(with(|_| ()));
    assert_eq!(sent.len(), 16);
    for (seq, Sent { header, .. }) in (0..).zip(&sent) {
        assert_eq!((header.seq, header.offset, header.elements), (seq, seq * 8, 8));
        assert_eq!((header.fan_in_0, header.bitmap_0, header.fan_in_1, header.bitmap_1), (2, 1, 0, 0));
        assert_eq!((header.flags, header.lane), (0, 0));
        assert!(header.slot < 64);
    }
    let rack = |dynamic: &mut DynamicParams| {
        (dynamic.fan_in_1, dynamic.bitmap_1, dynamic.beside_root) = (3, 4, true);
    };
    let (_, sent) = start(JobParams { lane: 5, shards: 4, rack_world: 1, ..with(rack) });
    let header = sent[0].header;
    assert_eq!((header.flags, header.lane), (flag::LEVEL, 5));
    assert_eq!((header.fan_in_0, header.bitmap_0, header.fan_in_1, header.bitmap_1), (1, 1, 3, 4));
    let (_, sent) = start(with(|dynamic| dynamic.slots = 0));
    assert_eq!((sent[0].header.slot, sent[0].header.flags), (NO_SLOT, flag::RESEND), "no aggregator");
}

/// RFC 3168, section 6.1.5: neither on packets that are sent again nor on probes, and not by who ignores
/// marks.
#[test]
fn only_first_transmissions_that_can_be_marked_say_so() {
    let fields = |params: JobParams| {
        let mut lone = Lone::new(params);
        let mut frame = [0; 4096];
        let mut send = |lone: &mut Lone| -> Vec<u8> {
            let next = || lone.engine.poll_transmit(lone.now, &mut frame);
            std::iter::from_fn(next).map(|sent| sent.dscp_ecn & 0b11).collect()
        };
        let probes = send(&mut lone);
        let mut lone = Lone::ready(lone.engine.params().clone(), RTT);
        lone.submit_floats(&[2.0; 160]);
        let first = send(&mut lone);
        lone.expire();
        (probes, first, send(&mut lone))
    };
    let (probes, first, again) = fields(with(|_| ()));
    assert_eq!((probes, first), (vec![0, 0], vec![0b10; 16]));
    assert!(!again.is_empty() && again.iter().all(|ecn| *ecn == 0), "{again:?}");
    let fixed = with(|dynamic| *dynamic = dynamic.clone().without_congestion_control());
    assert_eq!(fields(fixed).1, vec![0; 16]);
}

#[test]
fn a_later_result_and_the_reordering_window_halve_the_congestion_window() {
    let (mut lone, sent) = start(with(|_| ()));
    lone.wait(RTT);
    for answered in [0, 1, 3, 4] {
        lone.take(&sent[answered].answer());
    }
    let new: Vec<u32> = lone.send_all().iter().map(|sent| sent.header.seq).collect();
    assert_eq!(new, [16, 17], "chunk 18 waits for chunk 2");
    lone.take(&sent[5].answer());
    assert!(lone.send().is_none() && lone.engine.stats().halvings == 0, "three later results are no loss");
    lone.expire();
    let again = lone.send().expect("chunk 2");
    assert_eq!((again.header.seq, again.header.flags), (2, flag::RESEND));
    assert!(lone.send().is_none(), "half of the window is more than full");
    let stats = lone.engine.stats();
    assert_eq!((stats.cwnd, stats.halvings, stats.suspects_fast), (8, 1, 1));
    // Its result lets the window go on, as far as there is room.
    sent[6..16].iter().for_each(|sent| lone.take(&sent.answer()));
    lone.wait(RTT);
    lone.take(&again.answer());
    let new: Vec<u32> = lone.send_all().iter().map(|sent| sent.header.seq).collect();
    assert_eq!(new, [18, 19]);
    let stats = lone.engine.stats();
    assert_eq!((stats.suspects_spurious, stats.halvings_undone), (0, 0));
}

/// ATP section 3.6: its slot was busy for another worker's packet, and free for this one's.
#[test]
fn a_halving_for_a_chunk_that_collided_is_taken_back() {
    for (flags, expected) in [(flag::COLLISION, (16, 1)), (0, (8, 0))] {
        let (mut lone, sent) = start(with(|_| ()));
        lone.wait(RTT);
        [0, 1, 3, 4, 5].iter().for_each(|at| lone.take(&sent[*at].answer()));
        lone.send_all();
        lone.expire();
        let again = lone.send().expect("chunk 2");
        assert_eq!((again.header.seq, lone.engine.stats().cwnd, lone.engine.stats().halvings), (2, 8, 1));
        lone.wait(RTT);
        lone.take(&again.answer_with(|header| (header.flags, header.bitmap_0) = (flags, 7)));
        let stats = lone.engine.stats();
        assert_eq!((stats.cwnd, stats.halvings_undone), expected, "flags {flags}");
        assert_eq!(stats.suspects_spurious, 0);
    }
}

#[test]
fn a_halving_for_a_late_result_is_taken_back() {
    let (mut lone, sent) = start(with(|_| ()));
    lone.wait(RTT);
    [0, 1, 3, 4, 5].iter().for_each(|at| lone.take(&sent[*at].answer()));
    lone.send_all();
    lone.expire();
    assert_eq!((lone.engine.stats().cwnd, lone.engine.stats().halvings), (8, 1));
    lone.send_all();
    lone.wait(RTT);
    lone.take(&sent[2].answer());
    let stats = lone.engine.stats();
    assert_eq!((stats.cwnd, stats.suspects_spurious, stats.halvings_undone), (16, 1, 1));
}

#[test]
fn chunks_of_which_others_have_sent_their_part_straight_pass_the_slots() {
    let (mut lone, sent) = start(with(|_| ()));
    // Chunks 5 and 16, and 18, which is not within the window yet.
    lone.take(&sent[0].answer_with(|header| header.bitmap_1 = 1 << 4 | 1 << 15 | 1 << 17));
    (1..4).for_each(|seq| lone.take(&sent[seq].answer()));
    let new: Vec<_> = lone.send_all().iter().map(|sent| (sent.header.seq, sent.header.flags)).collect();
    assert_eq!(new, [(16, flag::RESEND), (17, 0), (18, 0), (19, 0)]);
    assert_eq!(lone.engine.stats().resent, 0);
}

#[test]
fn the_first_chunks_of_a_worker_that_comes_late_are_no_congestion() {
    let (mut lone, sent) = start(with(|_| ()));
    sent[2..6].iter().for_each(|sent| lone.take(&sent.answer()));
    lone.expire();
    let again: Vec<u32> = lone.send_all().iter().map(|sent| sent.header.seq).collect();
    assert_eq!((again, lone.engine.stats().halvings), (vec![0, 1], 0), "they are sent again");
    lone.take(&sent[7].answer());
    lone.take(&sent[8].answer());
    lone.take(&sent[9].answer());
    lone.expire();
    assert_eq!((lone.engine.stats().suspects_fast, lone.engine.stats().halvings), (3, 1), "chunk 6");
}

#[test]
fn marks_halve_the_window_once_per_round_trip() {
    let (mut lone, sent) = start(with(|_| ()));
    lone.take(&sent[0].answer_with(|header| header.flags |= flag::ECN_ECHO));
    lone.take_marked(&sent[1].answer());
    let stats = lone.engine.stats();
    assert_eq!((stats.marked, stats.halvings, stats.cwnd), (2, 1, 8));
    let (mut lone, sent) = start(with(|dynamic| dynamic.congestion = false));
    lone.take(&sent[0].answer_with(|header| header.flags |= flag::ECN_ECHO));
    assert_eq!((lone.engine.stats().halvings, lone.engine.stats().cwnd), (0, 16));
}

#[test]
fn marks_that_one_worker_saw_go_back_with_its_next_packet_also_after_a_pause() {
    let mut lone = Lone::ready(with(|_| ()), RTT);
    // All of the tensor is in flight before the first result comes, and the network marks them on their last
    // way.
    lone.submit_floats(&[2.0; 64]);
    let sent = lone.send_all();
    sent.iter().for_each(|sent| lone.take_marked(&sent.answer()));
    assert_eq!((lone.engine.stats().marked, lone.engine.stats().halvings), (8, 0), "nobody else knows");
    lone.wait(1_000_000_000);
    lone.submit_floats(&[2.0; 64]);
    let sent = lone.send_all();
    let told: Vec<bool> = sent.iter().map(|sent| sent.header.has(flag::ECN_ECHO)).collect();
    assert_eq!(told, [true, false, false, false, false, false, false, false]);
    sent.iter().for_each(|sent| lone.take(&sent.answer()));
    assert_eq!((lone.engine.stats().halvings, lone.engine.stats().cwnd), (1, 8));
    lone.submit_floats(&[2.0; 64]);
    assert!(lone.send_all().iter().all(|sent| sent.header.flags == 0), "once");
}

#[test]
fn the_first_window_is_what_the_job_says_and_grows_with_results() {
    let (mut lone, sent) = start(with(|dynamic| dynamic.initial_window = Some(3)));
    assert_eq!(sent.len(), 3);
    lone.take(&sent[0].answer());
    let more = lone.send_all();
    assert_eq!(more.len(), 2, "slow start");
    assert!(more.iter().all(|sent| sent.header.flags == 0));
}

#[test]
fn silence_has_the_first_chunks_sent_again_and_the_aggregator_asked() {
    let (mut lone, _) = start(with(|_| ()));
    lone.expire();
    let sent = lone.send_all();
    let probe = &sent[0].header;
    assert_eq!((probe.kind, probe.elements, sent.len()), (Kind::Probe as u8, 0, 3));
    assert_eq!([sent[1].header.seq, sent[2].header.seq], [0, 1]);
    assert_eq!(lone.engine.stats().halvings, 0, "somebody may be late");
    // Something gets through by the aggregator: nothing changes. Nor if nobody answers at all.
    lone.take(&sent[0].answer());
    let began = lone.now;
    while lone.now.since(began) < 500_000_000 {
        lone.expire();
        lone.send_all();
    }
    assert_eq!(lone.engine.stats().direct, 0);
    // The parameter host does: everything goes again.
    let began = lone.now;
    while lone.engine.stats().direct == 0 {
        lone.expire();
        let sent = lone.send_all();
        sent.iter().filter(|sent| is_straight(sent)).for_each(|sent| lone.take(&sent.answer()));
        assert!(lone.now.since(began) < 1_000_000_000);
    }
    assert!(lone.now.since(began) >= 100_000_000);
    let stats = lone.engine.stats();
    assert_eq!(stats.resent, stats.suspects_timer + 16 - 2, "{stats:?}");
    lone.wait(1_000_000);
    lone.expire();
}

#[test]
fn chunk_numbers_wrap() {
    let engine = Engine::starting_at(with(|_| ()), &peers(), &Tuning::default(), u32::MAX - 4)
        .expect("good parameters");
    let mut lone = Lone { engine, now: Time(0) };
    lone.finish();
    lone.submit_floats(&[2.0; 400]);
    let mut seqs = Vec::new();
    loop {
        let sent = lone.send_all();
        if sent.is_empty() {
            break;
        }
        // Results come in another order, and twice.
        for sent in sent.iter().rev() {
            seqs.push(sent.header.seq);
            lone.take(&sent.answer());
            lone.take(&sent.answer());
        }
    }
    seqs.sort_unstable_by_key(|seq| seq.wrapping_add(5));
    assert_eq!(seqs, (0..50u32).map(|at| at.wrapping_sub(5)).collect::<Vec<_>>());
    assert_eq!(lone.engine.stats().frames.get(Reason::Duplicate), 50);
    assert!(lone.engine.poll_completion().is_some_and(|completion| completion.result.is_ok()));
}

#[test]
fn the_parameter_host_must_answer() {
    let mut lone = Lone::new(with(|_| ()));
    let probes: Vec<Sent> = std::iter::from_fn(|| lone.send()).collect();
    assert_eq!(probes.len(), 2);
    lone.take(&probes[1].answer());
    assert_eq!(lone.engine.state(), JobState::Probing);
    while lone.engine.state() == JobState::Probing {
        lone.expire();
        lone.send_all();
    }
    let JobState::Failed(JobError::HostSilent { waited_ms: 3000, .. }) = lone.engine.state() else {
        panic!("{:?}", lone.engine.state())
    };
    assert_eq!(lone.engine.poll_timeout(), None);
}

#[test]
fn a_worker_whose_aggregator_is_silent_starts_without_it() {
    let mut lone = Lone::new(with(|_| ()));
    let probes: Vec<Sent> = std::iter::from_fn(|| lone.send()).collect();
    lone.take(&probes[0].answer());
    while lone.engine.state() == JobState::Probing {
        lone.expire();
        assert!(lone.now < Time(200_000_000), "{:?}", lone.now);
        let sent = lone.send_all();
        sent.iter().filter(|sent| is_straight(sent)).for_each(|sent| lone.take(&sent.answer()));
    }
    assert_eq!((lone.engine.state(), lone.engine.stats().direct), (JobState::Ready, 1));
    lone.take(&probes[1].answer());
    assert_eq!(lone.engine.stats().direct, 0, "it came after all");
}

#[test]
fn tampered_results_are_refused_by_reason() {
    let own: [(&str, Change, Reason); 16] = [
        ("a question", |h| h.flags |= flag::QUERY, Reason::BadType),
        ("an exponent round", |h| h.flags |= flag::EXPONENT, Reason::BadType),
        ("a slot's second version", |h| h.flags |= flag::POOL_VERSION, Reason::BadType),
        ("floats that nobody sent", |h| h.flags |= flag::RAW_FLOAT, Reason::OutOfTurn),
        ("another lane", |h| h.lane = 1, Reason::WrongPlace),
        ("the last lane that a header can name", |h| h.lane = u16::MAX, Reason::WrongPlace),
        ("a chunk that was not sent", |h| h.seq = 17, Reason::OutOfTurn),
        ("a chunk far ahead", |h| h.seq = 1 << 30, Reason::OutOfTurn),
        ("the chunk before", |h| h.seq = u32::MAX, Reason::Duplicate),
        ("a chunk far behind", |h| h.seq = 1 << 31 | 4, Reason::Stale),
        ("another tensor", |h| h.tensor = 78, Reason::WrongPlace),
        ("another chunk's offset", |h| h.offset = 16, Reason::WrongPlace),
        (
            "a collision with a slot that is none",
            |h| (h.flags, h.bitmap_0) = (flag::COLLISION, 64),
            Reason::WrongSlot,
        ),
        ("a refusal with elements", |h| (h.flags, h.tensor) = (flag::MISMATCH, 3), Reason::WrongElements),
        ("a chunk of another length", |h| h.seq = 3, Reason::WrongPlace),
        ("another job's lane", |h| (h.job, h.lane) = (4, 9), Reason::UnknownJob),
    ];
    let table = [&TAMPERED[..], &own].concat();
    let (mut lone, sent) = start(with(|_| ()));
    lone.refuses(&sent[1], &table);
    assert_eq!(lone.engine.stats().frames.dropped(), table.len() as u64, "each counts once");
    lone.take(&sent[1].answer());
    lone.take(&sent[1].answer());
    assert_eq!(lone.engine.stats().frames.get(Reason::Duplicate), 2, "the chunk before, and a duplicate");
    assert_eq!(lone.engine.stats().results, 1);
}

/// Two values of 1.5 * 2^30 and one of the negative: an aggregator that clamps without a mark would sum them
/// to another number.
#[test]
fn values_without_headroom_say_so_where_clamped_sums_are_not_marked() {
    let flags = |headroom, value: f32| {
        let mut lone = Lone::ready(with(|dynamic| dynamic.headroom = headroom), RTT);
        lone.submit_floats(&[value; 8]);
        lone.send_all()[0].header.flags
    };
    let (fits, exceeds) = (1073.7, 1610.0);
    assert_eq!((flags(false, fits), flags(false, exceeds)), (0, 0), "scaled by 10^6, both fit 32 bits");
    assert_eq!((flags(true, fits), flags(true, exceeds)), (0, flag::OVERFLOW));
}

#[test]
fn short_answers_are_refused_by_reason() {
    let table: [(&str, Change, Reason); 6] = [
        ("nothing", |h| h.flags = 0, Reason::WrongElements),
        ("floats of another operation", |h| h.tensor = 78, Reason::WrongPlace),
        ("floats from elsewhere", |h| h.offset = 8, Reason::WrongPlace),
        ("one contributor", |h| h.contributors = 1, Reason::WrongWorker),
        ("another operation that is ours", |h| h.flags = flag::MISMATCH, Reason::WrongPlace),
        (
            "another operation elsewhere",
            |h| (h.flags, h.tensor, h.offset) = (flag::MISMATCH, 78, 8),
            Reason::WrongPlace,
        ),
    ];
    let (mut lone, sent) = start(with(|_| ()));
    let short = |change: Change| {
        let mut frame = sent[0].answer_with(|header| {
            (header.flags, header.elements) = (flag::RAW_FLOAT, 0);
            change(header);
        });
        frame.truncate(HEADER_LEN);
        frame
    };
    for (what, change, reason) in table {
        let before = lone.engine.stats().frames.get(reason);
        lone.take(&short(change));
        assert_eq!(lone.engine.stats().frames.get(reason), before + 1, "{what}");
    }
    let ask = short(|_| ());
    lone.take(&ask);
    lone.take(&ask);
    assert_eq!(lone.engine.stats().frames.get(Reason::Duplicate), 1, "once is enough");
    let floats = lone.send().expect("the floats");
    assert_eq!(floats.header.flags, flag::RAW_FLOAT | flag::RESEND);
    assert_eq!(floats.payload[HEADER_LEN..HEADER_LEN + 4], 2.0f32.to_be_bytes());
    lone.take(&sent[0].answer());
    assert_eq!(lone.engine.stats().frames.get(Reason::OutOfTurn), 1, "integers are not what was asked for");
    lone.take(&floats.answer());
    assert_eq!(lone.engine.stats().results, 1);
    lone.take(&short(|header| (header.flags, header.tensor) = (flag::MISMATCH, 78)));
    assert_eq!(lone.engine.stats().frames.get(Reason::Duplicate), 2, "chunk 0 is done");
    let mut refusal = sent[1].answer_with(|header| {
        (header.flags, header.tensor, header.elements) = (flag::MISMATCH, 78, 0);
    });
    refusal.truncate(HEADER_LEN);
    lone.take(&refusal);
    assert!(matches!(lone.engine.state(), JobState::Failed(JobError::Mismatch { theirs: 78, .. })));
}

proptest::proptest! {
    #[test]
    fn any_bytes_are_survived(
        flips in proptest::collection::vec((0..16usize, 0..60usize, proptest::prelude::any::<u8>()), 1..60),
        lengths in proptest::collection::vec(0..120usize, 1..60),
        is_block in proptest::prelude::any::<bool>(),
    ) {
        let scaling = if is_block { Scale::Block } else { Scale::Fixed(1e6) };
        Lone::ready(JobParams { scaling, ..with(|_| ()) }, RTT).survives(DType::Float32, 160, &flips, &lengths);
    }
}
