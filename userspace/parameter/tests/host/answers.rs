//! The parameter host's answers, case by case.

use std::net::{Ipv4Addr, SocketAddrV4};

use sumac_parameter::{HostError, HostJob, ParameterHost, Worker};
use sumac_wire::{
    Header, Kind, Reason, Time, dynamic,
    header::{NO_SLOT, flag},
};

use crate::support::*;

fn host(racks: &[u32]) -> (ParameterHost, HostJob) {
    let mut host = ParameterHost::new();
    let job = job(racks);
    host.install(job.clone()).unwrap();
    (host, job)
}

fn destinations(sent: &[Sent]) -> Vec<SocketAddrV4> {
    sent.iter().map(|sent| sent.sending.to).collect()
}

#[test]
fn a_full_sum_is_answered_once_through_the_aggregator() {
    let (mut host, _) = host(&[3]);
    let full = Header { bitmap_0: 0b111, ..passed(header(&[3], 0, 2, 0)) };
    assert_eq!(give(&mut host, aggregator(), &full, &[1, -2, 3, 4]), Reason::Completed);
    let sent = sent(&mut host);
    assert_eq!(destinations(&sent), [aggregator()]);
    let Sent { sending, header, values } = &sent[0];
    assert_eq!(values, &[1, -2, 3, 4]);
    assert_eq!((header.kind, header.flags, header.contributors), (Kind::Result as u8, 0, 3));
    assert_eq!((header.slot, header.timestamp, header.lane), (0, 0, 1), "echoed");
    assert_eq!((sending.dscp_ecn, sending.checksum), (0b10, true));
    let stats = host.stats();
    let job = stats.job(JOB).unwrap();
    assert_eq!((job.full_sums, job.completed, job.sent, job.bytes_in), (1, 1, 1, 80));
    assert_eq!(stats.counter(Reason::Completed), 1);
}

#[test]
fn direct_workers_get_results_of_their_own() {
    let (mut host, job) = host(&[4]);
    let part = Header { bitmap_0: 0b0101, ..passed(header(&[4], 0, 2, 0)) };
    assert_eq!(give(&mut host, aggregator(), &part, &[5; 4]), Reason::Added);
    for rank in [1, 3] {
        let own = direct(header(&[4], 0, rank, 0));
        let expected = if rank == 3 { Reason::Completed } else { Reason::Added };
        assert_eq!(give(&mut host, address(&job, rank as usize), &own, &[1; 4]), expected);
    }
    let answers = sent(&mut host);
    assert_eq!(destinations(&answers), [aggregator(), address(&job, 1), address(&job, 3)]);
    assert!(answers.iter().all(|sent| sent.values == [7; 4]));
    let past_slots = |answers: &[Sent]| answers.iter().all(|sent| sent.header.has(flag::RESEND));
    assert!(past_slots(&answers), "no slot will ever have all four");
    assert_eq!(host.stats().job(JOB).unwrap().direct, 2);
    // The aggregator answers again: all of them are behind it.
    let full = Header { bitmap_0: 0b1111, ..passed(header(&[4], 0, 2, 1)) };
    assert_eq!(give(&mut host, aggregator(), &full, &[1; 4]), Reason::Completed);
    let answers = sent(&mut host);
    assert_eq!((destinations(&answers), past_slots(&answers)), (vec![aggregator()], false));
    // One of them does not hear it, and asks by itself: whoever asks is told what the others were told.
    assert_eq!(give(&mut host, address(&job, 1), &direct(header(&[4], 0, 1, 1)), &[1; 4]), Reason::Replied);
    let answers = sent(&mut host);
    assert_eq!((destinations(&answers), past_slots(&answers)), (vec![address(&job, 1)], false));
    assert_eq!(host.stats().job(JOB).unwrap().direct, 1);
}

#[test]
fn results_name_the_next_chunks_of_which_a_part_is_there() {
    let begun = |slots: u32| -> Vec<u32> {
        let (mut host, job) = (ParameterHost::new(), HostJob { slots, ..job(&[3]) });
        host.install(job.clone()).unwrap();
        // Worker 1 is ahead, and chunk 1 has come as a whole.
        for seq in [2, 3, 6] {
            give(&mut host, address(&job, 1), &direct(header(&[3], 0, 1, seq)), &[1; 4]);
        }
        for (seq, bitmap_0) in [(1, 0b111), (0, 0b111), (2, 0b101), (3, 0b101), (4, 0b111)] {
            let sum = Header { bitmap_0, received: 0, ..passed(header(&[3], 0, 0, seq)) };
            give(&mut host, aggregator(), &sum, &[1; 4]);
        }
        let results = sent(&mut host).into_iter().filter(|sent| sent.sending.to == aggregator());
        results.map(|sent| sent.header.bitmap_1).collect()
    };
    assert_eq!(begun(SLOTS), [0b1_0011, 0b10_0110, 0b1001, 0b100, 0b10]);
    assert_eq!(begun(0), [0; 5], "nobody sends to slots");
}

#[test]
fn who_misses_a_result_gets_it_again_the_way_it_asked() {
    let (mut host, job) = host(&[2]);
    let full = Header { bitmap_0: 0b11, ..passed(header(&[2], 0, 1, 0)) };
    give(&mut host, aggregator(), &full, &[9; 4]);
    sent(&mut host);
    let again = Header { flags: flag::RESEND, timestamp: 55, ..header(&[2], 0, 1, 0) };
    assert_eq!(give(&mut host, aggregator(), &passed(again), &[1; 4]), Reason::Replied);
    assert_eq!(give(&mut host, address(&job, 1), &direct(again), &[1; 4]), Reason::Replied);
    let answers = sent(&mut host);
    assert_eq!(destinations(&answers), [aggregator(), address(&job, 1)]);
    assert!(answers.iter().all(|sent| sent.values == [9; 4] && sent.header.timestamp == 55));
    let late = passed(header(&[2], 0, 1, 0));
    assert_eq!(give(&mut host, aggregator(), &late, &[1; 4]), Reason::Duplicate);
    assert!(sent(&mut host).is_empty());
}

/// An aggregator's answer is everybody's below it: a thousand workers who miss it are not a thousand answers
/// to a thousand.
#[test]
fn who_asks_at_the_same_time_is_answered_at_once() {
    let (mut host, _) = host(&[4]);
    let again = |bit| passed(Header { flags: flag::RESEND, ..header(&[4], 0, bit, 0) });
    let full = Header { bitmap_0: 0b1111, ..passed(header(&[4], 0, 1, 0)) };
    give(&mut host, aggregator(), &full, &[9; 4]);
    let mut asked = |bits: &[u32]| -> Vec<bool> {
        let ask = |bit: &u32| give(&mut host, aggregator(), &again(*bit), &[1; 4]) == Reason::Replied;
        bits.iter().map(ask).collect()
    };
    assert_eq!(asked(&[0, 1, 2, 3]), [true, false, false, false]);
    assert_eq!(asked(&[2, 0, 2]), [true, false, true], "who asks again has missed that one too");
    // Sent again by all because it stalled. The one that completes the chunk asks for nothing: one that comes
    // later has missed the result, or sent before it came.
    let parts = [0b0011, 0b0100, 0b1000].map(|bitmap_0| Header { bitmap_0, seq: 1, ..again(0) });
    let late = Header { seq: 1, ..again(1) };
    let reasons: Vec<Reason> =
        parts.iter().chain([&late, &late]).map(|part| give(&mut host, aggregator(), part, &[1; 4])).collect();
    let expected = [Reason::Added, Reason::Added, Reason::Completed, Reason::Replied, Reason::Replied];
    assert_eq!(reasons, expected);
}

#[test]
fn probes_are_answered_in_their_length() {
    let (mut host, job) = host(&[2]);
    for elements in [0, ELEMENTS] {
        let probe = Header { kind: Kind::Probe as u8, elements, tensor: 1, ..header(&[2], 0, 1, 0) };
        let values = vec![-1; elements.into()];
        assert_eq!(give(&mut host, address(&job, 1), &probe, &values), Reason::Probed);
        let answers = sent(&mut host);
        let expected =
            Header { kind: Kind::Report as u8, token: sumac_job::result_token(probe.token), ..probe };
        assert_eq!((destinations(&answers), answers[0].header), (vec![address(&job, 1)], expected));
        assert_eq!(answers[0].values, vec![0; elements.into()]);
    }
    let long = Header { kind: Kind::Probe as u8, elements: 5, ..header(&[2], 0, 1, 0) };
    assert_eq!(give(&mut host, address(&job, 1), &long, &[0; 5]), Reason::WrongElements);
}

#[test]
fn sources_are_checked_and_ports_only_tell_apart() {
    let (mut host, job) = host(&[2]);
    let own = direct(header(&[2], 0, 1, 0));
    let other = address(&job, 0);
    let entropy = SocketAddrV4::new(*job.workers[1].address.ip(), 50_000);
    assert_eq!(give(&mut host, STRANGER, &own, &[1; 4]), Reason::WrongSource);
    assert_eq!(give(&mut host, other, &own, &[1; 4]), Reason::WrongSource, "another worker's");
    let both = Header { bitmap_0: 0b11, ..own };
    assert_eq!(give(&mut host, other, &both, &[1; 4]), Reason::WrongSource, "a worker is no aggregator");
    assert_eq!(give(&mut host, entropy, &own, &[1; 4]), Reason::Added);
    assert_eq!(give(&mut host, other, &direct(header(&[2], 0, 0, 0)), &[1; 4]), Reason::Completed);
    assert_eq!(destinations(&sent(&mut host)), [address(&job, 0), address(&job, 1)], "the port of its shard");
}

#[test]
fn all_of_them_may_share_an_address() {
    let mut host = ParameterHost::new();
    let local = |port| SocketAddrV4::new(Ipv4Addr::LOCALHOST, port);
    let worker = |bit: u8| Worker { address: local(1000 + 10 * u16::from(bit)), rack: 0, bit };
    let workers = vec![worker(0), worker(1)];
    let upstream = vec![local(2000), local(3000)];
    host.install(HostJob { workers, upstream, ..job(&[2]) }).unwrap();
    give(&mut host, local(3001), &passed(header(&[2], 0, 0, 0)), &[1; 4]);
    give(&mut host, local(1011), &direct(header(&[2], 0, 1, 0)), &[1; 4]);
    assert_eq!(destinations(&sent(&mut host)), [local(3001), local(1011)]);
}

/// A worker on an aggregator's host, whose port varies: its own packets lack the mark of those that were
/// passed on.
#[test]
fn a_worker_at_an_aggregators_address_is_told_by_the_mark() {
    let mut host = ParameterHost::new();
    let ip = *aggregator().ip();
    let at = |port| SocketAddrV4::new(ip, port);
    let workers =
        vec![Worker { address: at(1000), rack: 0, bit: 0 }, Worker { address: at(1010), rack: 0, bit: 1 }];
    host.install(HostJob { workers, ..job(&[2]) }).unwrap();
    give(&mut host, at(50_000), &direct(header(&[2], 0, 0, 0)), &[1; 4]);
    give(&mut host, aggregator(), &passed(header(&[2], 0, 1, 0)), &[1; 4]);
    let expected = [aggregator(), at(1001)];
    assert_eq!(destinations(&sent(&mut host)), expected, "each the way it came, by its shard's port");
}

#[test]
fn marks_of_congestion_come_back() {
    let (mut host, _) = host(&[2]);
    let one = packet(&passed(header(&[2], 0, 0, 0)), &[1; 4]);
    let two = packet(&passed(header(&[2], 0, 1, 0)), &[1; 4]);
    assert_eq!(host.on_packet(Time(0), aggregator(), 1, &one, true), Reason::Added);
    assert_eq!(host.on_packet(Time(0), aggregator(), 1, &two, false), Reason::Completed);
    let by_flag = Header { flags: flag::ECN_ECHO, bitmap_0: 0b11, ..header(&[2], 0, 0, 1) };
    assert_eq!(give(&mut host, aggregator(), &passed(by_flag), &[1; 4]), Reason::Completed);
    let none = Header { bitmap_0: 0b11, ..header(&[2], 0, 0, 2) };
    assert_eq!(give(&mut host, aggregator(), &passed(none), &[1; 4]), Reason::Completed);
    let flags: Vec<u16> = sent(&mut host).iter().map(|sent| sent.header.flags).collect();
    assert_eq!(flags, [flag::ECN_ECHO, flag::ECN_ECHO, 0]);
    assert_eq!(host.stats().job(JOB).unwrap().marked, 2);
}

#[test]
fn a_stalled_lane_names_the_workers_that_it_waits_for() {
    const SECOND: u64 = 1_000_000_000;
    let (mut host, _) = host(&[3]);
    let contribute = |host: &mut ParameterHost, now, bit| {
        give_at(host, now, aggregator(), &passed(header(&[3], 0, bit, 0)), &[1; 4])
    };
    let waiting = |host: &ParameterHost| {
        let stats = host.stats();
        let job = stats.job(JOB).unwrap();
        (job.stalls, job.waiting_for.clone())
    };
    assert_eq!(host.poll_timeout(), None);
    assert_eq!(contribute(&mut host, Time(5), 1), Reason::Added);
    assert_eq!(host.poll_timeout(), Some(Time(5 + SECOND)));
    host.on_timeout(Time(4 + SECOND));
    assert_eq!(waiting(&host), (0, vec![]));
    host.on_timeout(Time(5 + SECOND));
    assert_eq!((waiting(&host), host.poll_timeout()), ((1, vec![0, 2]), None));
    assert_eq!(contribute(&mut host, Time(9 * SECOND), 0), Reason::Added);
    assert_eq!(waiting(&host), (1, vec![]), "it goes on");
    host.on_timeout(Time(10 * SECOND));
    assert_eq!(waiting(&host), (2, vec![2]));
    assert_eq!(contribute(&mut host, Time(11 * SECOND), 2), Reason::Completed);
    host.on_timeout(Time(12 * SECOND));
    assert_eq!((waiting(&host), host.poll_timeout()), ((2, vec![]), None), "it waits for nothing");
}

#[test]
fn busy_slots_are_left_but_in_linear_order() {
    for (linear, slots, named, expected) in [
        (false, SLOTS, 5, Some(dynamic::rehash(5, JOB, 5, SLOTS))),
        (true, SLOTS, 5, None),
        (false, 0, 5, None),
        (false, SLOTS, NO_SLOT, None),
    ] {
        let mut host = ParameterHost::new();
        host.install(HostJob { slots, ..job(&[2]) }).unwrap();
        if linear {
            host.place_linearly(JOB);
        }
        let own = Header { slot: named, ..header(&[2], 0, 0, 5) };
        let busy = dynamic::collided(&own);
        give(&mut host, aggregator(), &busy, &[1; 4]);
        let last = Header { bitmap_0: 0b10, flags: flag::LEVEL | flag::RESEND, ..own };
        assert_eq!(give(&mut host, aggregator(), &last, &[1; 4]), Reason::Completed);
        let answer = sent(&mut host)[0].header;
        let moved = answer.has(flag::COLLISION).then_some(answer.bitmap_0);
        assert_eq!((moved, answer.slot), (expected, named));
        assert_eq!(host.stats().job(JOB).unwrap().collisions, 1);
    }
}

#[test]
fn workers_that_disagree_hear_what_is_here() {
    let (mut host, job) = host(&[2]);
    give(&mut host, aggregator(), &passed(header(&[2], 0, 0, 0)), &[1; 4]);
    let other = Header { tensor: 78, ..header(&[2], 0, 1, 0) };
    assert_eq!(give(&mut host, address(&job, 1), &direct(other), &[1; 4]), Reason::Mismatch);
    let maximum = Header { flags: flag::MAXIMUM, ..header(&[2], 0, 1, 0) };
    assert_eq!(give(&mut host, aggregator(), &passed(maximum), &[1; 4]), Reason::Mismatch);
    let answers = sent(&mut host);
    assert_eq!(destinations(&answers), [address(&job, 1), aggregator()]);
    for Sent { header, .. } in answers {
        assert_eq!((header.flags, header.tensor, header.bitmap_0), (flag::MISMATCH, 77, 0b10));
        assert_eq!(header.elements, 0);
    }
    assert_eq!(
        give(&mut host, aggregator(), &passed(self::header(&[2], 0, 1, 0)), &[1; 4]),
        Reason::Completed
    );
}

#[test]
fn maxima_are_taken() {
    let (mut host, _) = host(&[2]);
    for (bit, values) in [(0, [i32::MIN, 1, -5, 7]), (1, [i32::MAX, 2, -9, 7])] {
        let header = Header { flags: flag::MAXIMUM | flag::LEVEL, ..header(&[2], 0, bit, 0) };
        give(&mut host, aggregator(), &header, &values);
    }
    let answer = &sent(&mut host)[0];
    assert_eq!((&answer.values[..], answer.header.flags), (&[i32::MAX, 2, -5, 7][..], flag::MAXIMUM));
}

fn floats(values: [f32; 4]) -> [i32; 4] {
    values.map(|value| value.to_bits() as i32)
}

#[test]
fn what_does_not_fit_is_asked_for_and_summed_as_floats() {
    let (mut host, job) = host(&[3]);
    let part = Header { bitmap_0: 0b11, ..passed(header(&[3], 0, 1, 0)) };
    assert_eq!(give(&mut host, aggregator(), &part, &[i32::MAX, 0, 0, 0]), Reason::Added);
    let last = direct(header(&[3], 0, 2, 0));
    assert_eq!(give(&mut host, address(&job, 2), &last, &[1, 0, 0, 0]), Reason::AskedRaw);
    let asks = sent(&mut host);
    assert_eq!(destinations(&asks), [aggregator(), address(&job, 2)]);
    assert!(asks.iter().all(|ask| (ask.header.flags, ask.header.elements) == (flag::RAW_FLOAT, 0)));

    let raw = |bit| Header { flags: flag::LEVEL | flag::RESEND | flag::RAW_FLOAT, ..header(&[3], 0, bit, 0) };
    let terms = [[1e8f32, 0.1, 0.0, 1.0], [1.0, 0.2, 0.0, 1.0], [-1e8, 0.3, 0.0, 1.0]];
    let unaware = Header { flags: flag::LEVEL | flag::RESEND, ..header(&[3], 0, 0, 0) };
    for (bit, expected) in [(2, Reason::Added), (2, Reason::Duplicate), (0, Reason::Added)] {
        let got = give(&mut host, aggregator(), &raw(bit), &floats(terms[bit as usize]));
        assert_eq!(got, expected, "{bit}");
    }
    assert_eq!(give(&mut host, aggregator(), &unaware, &[0; 4]), Reason::AskedRaw, "has not heard");
    assert_eq!(sent(&mut host).len(), 1);
    let two = Header { bitmap_0: 0b11, ..raw(0) };
    assert_eq!(give(&mut host, aggregator(), &two, &[0; 4]), Reason::BadType, "of two at once");
    assert_eq!(give(&mut host, aggregator(), &raw(1), &floats(terms[1])), Reason::Completed);
    let answer = &sent(&mut host)[0];
    let sum = |index: usize| terms.iter().map(|term| f64::from(term[index])).sum::<f64>() as f32;
    assert_eq!(answer.values, floats([sum(0), sum(1), sum(2), sum(3)]));
    assert_eq!((answer.header.flags, answer.header.elements), (flag::RAW_FLOAT, ELEMENTS));
    let stats = host.stats();
    let job = stats.job(JOB).unwrap();
    assert_eq!((job.raw, job.asked_raw, job.completed), (1, 2, 1));
}

#[test]
fn floats_have_room_for_some_chunks_and_the_others_wait() {
    // One chunk of 1,024 workers takes 3.4 MB: there is room for four.
    let mut host = ParameterHost::with_memory(1 << 36);
    let racks = [32; 32];
    let job = HostJob { elements: 832, ..job(&racks) };
    host.install(job.clone()).unwrap();
    let raw = |rank: u32, seq| Header {
        elements: 832,
        ..direct(Header { flags: flag::RAW_FLOAT, ..header(&racks, rank as usize / 32, rank % 32, seq) })
    };
    let mut send = |rank, seq| give(&mut host, address(&job, rank as usize), &raw(rank, seq), &[0; 832]);
    let first: Vec<Reason> = (0..8).map(|seq| send(0, seq)).collect();
    let (taken, waiting) = first.split_at(4);
    assert!(taken.iter().all(|reason| *reason == Reason::Added), "{first:?}");
    assert!(waiting.iter().all(|reason| *reason == Reason::Busy), "{first:?}");
    for rank in 1..1024 {
        assert_eq!(send(rank, 2), if rank == 1023 { Reason::Completed } else { Reason::Added });
    }
    assert_eq!((send(7, 6), send(7, 7)), (Reason::Added, Reason::Busy), "2 has left its room to 6");
    // 0, 1, 3 and 6 have room. 4 takes that of 6, which begins anew when another is complete.
    assert_eq!((send(0, 4), send(8, 6)), (Reason::Added, Reason::Busy));
    for rank in 1..1024 {
        assert_eq!(send(rank, 0), if rank == 1023 { Reason::Completed } else { Reason::Added });
    }
    assert_eq!(
        (send(7, 6), send(7, 6)),
        (Reason::Added, Reason::Duplicate),
        "its first floats were forgotten"
    );
    assert_eq!(sent(&mut host).len(), 2 * 1024);
}

#[test]
fn a_replaced_worker_goes_on_from_the_first_chunk_that_is_not_summed() {
    let (mut host, job) = host(&[2]);
    for seq in [0, 1, 3] {
        let full = Header { bitmap_0: 0b11, ..passed(header(&[2], 0, 1, seq)) };
        give(&mut host, aggregator(), &full, &[seq as i32; 4]);
    }
    give(&mut host, aggregator(), &passed(header(&[2], 0, 0, 2)), &[100; 4]);
    let raw = Header { flags: flag::RAW_FLOAT, ..header(&[2], 0, 0, 4) };
    give(&mut host, address(&job, 0), &direct(raw), &[0; 4]);
    let mut workers = job.workers.clone();
    workers[1].address = SocketAddrV4::new(Ipv4Addr::new(10, 5, 5, 5), 48900);
    let moved = vec![Worker { bit: 2, ..workers[0] }, workers[1]];
    assert_eq!(host.renew(JOB, 8, moved), Err(HostError::Places { job: JOB }));
    assert_eq!(host.renew(JOB, 8, workers), Ok(vec![0, 2, 0, 0]));
    assert_eq!(host.renew(9, 8, Vec::new()), Err(HostError::Unknown(9)));
    assert!(sent(&mut host).is_empty(), "answers of the old incarnation");

    let new = |header: Header| Header { epoch: 8, ..direct(header) };
    let newcomer = SocketAddrV4::new(Ipv4Addr::new(10, 5, 5, 5), 48901);
    assert_eq!(
        give(&mut host, address(&job, 0), &direct(header(&[2], 0, 0, 2)), &[1; 4]),
        Reason::WrongEpoch
    );
    assert_eq!(give(&mut host, address(&job, 0), &new(header(&[2], 0, 0, 2)), &[1; 4]), Reason::Added);
    assert_eq!(give(&mut host, address(&job, 1), &new(header(&[2], 0, 1, 2)), &[5; 4]), Reason::WrongSource);
    assert_eq!(give(&mut host, newcomer, &new(header(&[2], 0, 1, 2)), &[5; 4]), Reason::Completed);
    let answers = sent(&mut host);
    assert_eq!(destinations(&answers), [address(&job, 0), newcomer]);
    assert!(answers.iter().all(|sent| sent.values == [6; 4] && sent.header.epoch == 8));
    assert_eq!(give(&mut host, newcomer, &new(header(&[2], 0, 1, 3)), &[5; 4]), Reason::Replied);
    assert_eq!(sent(&mut host)[0].values, [3; 4], "complete chunks stay");
    let unaware = new(header(&[2], 0, 1, 4));
    assert_eq!(give(&mut host, newcomer, &unaware, &[0; 4]), Reason::AskedRaw, "4 was begun with floats");
}

#[test]
fn jobs_come_and_go() {
    let (mut host, job) = host(&[2]);
    assert!(host.knows(JOB) && !host.knows(4));
    assert_eq!(host.install(job.clone()), Err(HostError::Taken(JOB)));
    give(&mut host, aggregator(), &Header { bitmap_0: 3, ..passed(header(&[2], 0, 0, 0)) }, &[1; 4]);
    assert!(host.remove(JOB) && !host.remove(JOB) && !host.remove(1000));
    assert!(sent(&mut host).is_empty());
    assert_eq!(host.stats().memory, 0);
    let reason = give(&mut host, aggregator(), &passed(header(&[2], 0, 0, 0)), &[1; 4]);
    assert_eq!(reason, Reason::UnknownJob);
    host.install(HostJob { epoch: 8, ..job }).unwrap();
    let reason = give(&mut host, aggregator(), &passed(header(&[2], 0, 0, 0)), &[1; 4]);
    assert_eq!(reason, Reason::WrongEpoch);
}

#[test]
fn lanes_of_other_threads_take_no_memory_and_no_packets() {
    let mut host = ParameterHost::new();
    host.install(job(&[2])).unwrap();
    let all = host.stats().memory;
    host.remove(JOB);
    host.install_lanes(job(&[2]), |lane| lane % 2 == 0).unwrap();
    assert_eq!(host.stats().memory, all / 2);
    let of_lane_1 = passed(header(&[2], 0, 0, 0));
    assert_eq!(give(&mut host, aggregator(), &of_lane_1, &[1; 4]), Reason::WrongSlot);
    let of_lane_0 = packet(&Header { lane: 0, ..of_lane_1 }, &[1; 4]);
    assert_eq!(host.on_packet(Time(0), aggregator(), 0, &of_lane_0, false), Reason::Added);
    assert_eq!(host.renew(JOB, 8, job(&[2]).workers), Ok(vec![0; 4]));
}

#[test]
fn impossible_jobs_are_refused() {
    let good = job(&[2]);
    type Case = (HostJob, fn(&HostError) -> bool);
    let place = |rack, bit| vec![good.workers[0], Worker { rack, bit, ..good.workers[0] }];
    let table: [Case; 14] = [
        (HostJob { job: 0, ..good.clone() }, |e| matches!(e, HostError::Number(0))),
        (HostJob { job: 1024, ..good.clone() }, |e| matches!(e, HostError::Number(1024))),
        (HostJob { elements: 0, ..good.clone() }, |e| matches!(e, HostError::Elements { .. })),
        (HostJob { elements: 3000, ..good.clone() }, |e| matches!(e, HostError::Elements { .. })),
        (HostJob { window: 0, ..good.clone() }, |e| matches!(e, HostError::Window { .. })),
        (HostJob { window: 3, ..good.clone() }, |e| matches!(e, HostError::Window { .. })),
        (HostJob { lanes: 0, ..good.clone() }, |e| matches!(e, HostError::Lanes { .. })),
        (HostJob { shards: 3, ..good.clone() }, |e| matches!(e, HostError::Lanes { .. })),
        (HostJob { upstream: vec![AGGREGATOR; 33], ..good.clone() }, |e| {
            matches!(e, HostError::Upstream { .. })
        }),
        (HostJob { workers: Vec::new(), ..good.clone() }, |e| matches!(e, HostError::World { given: 0, .. })),
        (HostJob { workers: vec![good.workers[0]; 1025], ..good.clone() }, |e| {
            matches!(e, HostError::World { given: 1025, .. })
        }),
        (HostJob { workers: place(0, 0), ..good.clone() }, |e| matches!(e, HostError::Place { rank: 1, .. })),
        (HostJob { workers: place(0, 32), ..good.clone() }, |e| matches!(e, HostError::Place { .. })),
        (HostJob { workers: place(32, 0), ..good.clone() }, |e| matches!(e, HostError::Place { .. })),
    ];
    let mut host = ParameterHost::new();
    for (job, is_expected) in table {
        let error = host.install(job).unwrap_err();
        assert!(is_expected(&error), "{error}");
    }
    let large = HostJob { window: 1 << 16, elements: 832, ..good.clone() };
    let HostError::Memory { needed, free, .. } = host.install(large.clone()).unwrap_err() else { panic!() };
    assert!(needed > 4 * 2 * (1 << 16) * 832 * 4 && free == 1 << 30, "{needed} of {free}");
    let mut host = ParameterHost::with_memory(needed);
    host.install(large).unwrap();
    assert!(matches!(host.install(HostJob { job: 4, ..good }), Err(HostError::Memory { free: 0, .. })));
}
