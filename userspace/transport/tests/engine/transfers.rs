//! Transfers between two workers of the direct mode, over a network that loses, duplicates, delays and
//! reorders packets.

use proptest::prelude::*;
use sumac_transport::{
    Arithmetic, Completion, DType, Engine, Exchange, JobState, OpError, OpId, Operation, Pattern, PeerId,
};
use sumac_wire::Kind;

use crate::{
    direct::{blocks, collective, sum, values},
    direct_network::{Network, bytes, floats},
};

fn transfer(number: u32, pattern: Pattern, count: usize, values: &[f32]) -> Operation {
    let buffer = Box::new(bytes(values));
    let exchange = Some(Box::new(Exchange { number, pattern }));
    Operation { exchange, ..Operation::allreduce(5, DType::Float32, Arithmetic::Bits, count, buffer) }
}

/// The `number`-th transfer of a worker to another one.
fn send(number: u32, to: u16, values: &[f32]) -> Operation {
    Operation { takes: 0..0, ..transfer(number, Pattern::Send { to }, values.len(), values) }
}

/// The `number`-th transfer of a worker from another one, into memory that holds `last`.
fn receive(number: u32, pattern: Pattern, count: usize, (last, bound): (f32, f32)) -> Operation {
    let operation = transfer(number, pattern, count, &vec![last; count]);
    Operation { gives: 0..0, loss_bound: bound, ..operation }
}

fn of_kind(payload: &[u8], kind: Kind) -> bool {
    payload.first().is_some_and(|byte| byte & 0xf == kind as u8)
}

/// Checks a received tensor of which all elements were `sent`, against what its completion says was lost.
fn check(completion: &mut Completion, count: usize, (sent, missing): (f32, f32), bound: f32) {
    assert_eq!(completion.result, Ok(()));
    let loss = completion.loss.clone();
    assert_eq!(loss.is_some(), bound > 0.0);
    let ranges = loss.map(|loss| loss.missing).unwrap_or_default();
    let lost: usize = ranges.iter().map(ExactSizeIterator::len).sum();
    assert!(lost as f64 <= count as f64 * f64::from(bound), "{lost} of {count}, bound {bound}");
    for (index, value) in floats(completion, count).into_iter().enumerate() {
        let is_missing = ranges.iter().any(|range| range.contains(&index));
        assert_eq!(value, if is_missing { missing } else { sent }, "element {index} of {count}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Many tensors in both directions at once, beside a collective of the same number.
    #[test]
    fn completions_have_all_that_was_lost_and_it_is_within_the_bound(
        seed in any::<u64>(),
        loss in 0.0..0.35f64,
        tensors in proptest::collection::vec((1..4000usize, 0.0..0.9f32, any::<bool>(), 0..8u8), 1..5),
    ) {
        let mut network = Network::new(2, seed, loss);
        for (rank, peer) in [(0u16, 1u16), (1, 0)] {
            for (number, (count, bound, keeps, priority)) in (0..).zip(&tensors) {
                let sent = vec![f32::from(rank) + 1.0; *count];
                network.submit(rank.into(), Operation { priority: *priority, ..send(number, peer, &sent) });
                let pattern = Pattern::Receive { from: peer, keeps: *keeps };
                // A bound of zero is one of the cases.
                let bound = if *bound < 0.2 { 0.0 } else { *bound };
                network.submit(rank.into(), receive(number, pattern, *count, (-5.0, bound)));
            }
            let mine = values(rank.into(), 700);
            network.submit(rank.into(), collective(0, 700, [true, true, false], &blocks(700, 2, 2), &mine));
        }
        network.run(2 * tensors.len() + 1);
        for (rank, ended) in network.completions.iter_mut().enumerate() {
            ended.sort_by_key(|completion| completion.id);
            prop_assert!(floats(&mut ended[2 * tensors.len()], 700) == sum(2, 700));
            for (index, (count, bound, keeps, _)) in tensors.iter().enumerate() {
                prop_assert_eq!(&ended[2 * index].result, &Ok(()));
                let bound = if *bound < 0.2 { 0.0 } else { *bound };
                let missing = if *keeps { -5.0 } else { 0.0 };
                check(&mut ended[2 * index + 1], *count, ((2 - rank) as f32, missing), bound);
            }
        }
    }
}

#[test]
fn transfers_end_in_any_order_and_an_unposted_one_holds_up_no_other() {
    let mut network = Network::new(2, 3, 0.05);
    let from = |from| Pattern::Receive { from, keeps: false };
    network.submit(0, receive(0, from(1), 500, (0.0, 0.0)));
    network.submit(0, send(0, 1, &[3.0; 900]));
    network.submit(1, receive(0, from(0), 900, (0.0, 0.0)));
    while network.completions.iter().any(Vec::is_empty) {
        network.advance();
    }
    assert_eq!((network.completions[0][0].id, network.engines[0].unposted()), (OpId(1), vec![OpId(0)]));
    network.submit(1, send(0, 0, &[4.0; 500]));
    network.run(2);
    assert!(floats(&mut network.completions[0][1], 500) == [4.0; 500]);
    assert!(network.engines.iter().all(|engine| engine.unposted().is_empty()));
}

#[test]
fn a_sender_whose_data_does_not_come_through_has_posted() {
    let mut network = Network::new(2, 3, 0.0);
    network.submit(1, receive(0, Pattern::Receive { from: 0, keeps: false }, 900, (0.0, 0.0)));
    for _ in 0..100 {
        network.advance();
    }
    assert_eq!(network.engines[1].unposted(), [OpId(0)]);
    network.submit(0, send(0, 1, &[3.0; 900]));
    while !network.engines[1].unposted().is_empty() {
        network.send();
        network.packets.retain(|_, (from, _, payload)| *from == 1 || !of_kind(payload, Kind::Contribution));
        network.step();
    }
    assert!(network.completions.iter().all(Vec::is_empty));
    network.run(1);
    assert!(floats(&mut network.completions[1][0], 900) == [3.0; 900]);
}

/// A worker leaves after it has ended its operations: what it has sent last may be lost.
#[test]
fn a_peer_that_has_left_has_what_it_agreed_on() {
    let mut network = Network::new(2, 3, 0.0);
    network.submit(0, send(0, 1, &[3.0; 900]));
    network.submit(0, send(1, 1, &[3.0; 900]));
    network.submit(1, receive(0, Pattern::Receive { from: 0, keeps: false }, 900, (0.0, 0.0)));
    while network.completions[1].is_empty() {
        network.send();
        network.packets.retain(|_, (_, _, payload)| !of_kind(payload, Kind::Stop));
        network.step();
    }
    network.send();
    network.packets.clear();
    assert!(network.completions[0].is_empty());
    let now = network.now;
    network.engines[0].peer_left(now, PeerId(1));
    let ended: Vec<_> = std::iter::from_fn(|| network.engines[0].poll_completion()).collect();
    assert_eq!(
        ended.iter().map(|ended| (ended.id, ended.result.clone())).collect::<Vec<_>>(),
        [(OpId(0), Ok(()))]
    );
    assert_eq!(network.engines[0].unposted(), [OpId(1)], "it was never received");
}

//= mlt#4.2.1 missing values are zero or kept
#[test]
fn transfers_go_both_ways_and_missing_values_are_zero_or_kept() {
    let count = 10_000;
    for keeps in [false, true] {
        let mut network = Network::new(2, 11, 0.3);
        for (rank, to) in [(0, 1), (1, 0)] {
            let gives = transfer(rank, Pattern::Send { to }, count, &vec![rank as f32 + 1.0; count]);
            network.submit(rank as usize, Operation { takes: 0..0, ..gives });
            let takes =
                transfer(u32::from(to), Pattern::Receive { from: to, keeps }, count, &vec![-5.0; count]);
            network.submit(rank as usize, Operation { gives: 0..0, loss_bound: 0.2, ..takes });
        }
        network.run(2);
        for (rank, ended) in network.completions.iter_mut().enumerate() {
            ended.sort_by_key(|completion| completion.id);
            assert!(ended.iter().all(|completion| completion.result == Ok(())));
            let missing = ended[1].loss.clone().expect("a bound").missing;
            let lost: usize = missing.iter().map(ExactSizeIterator::len).sum();
            assert!(lost > 0 && lost <= count / 5, "{lost}");
            let other = (2 - rank) as f32;
            for (index, value) in floats(&mut ended[1], count).into_iter().enumerate() {
                let is_missing = missing.iter().any(|range| range.contains(&index));
                let expected = if !is_missing {
                    other
                } else if keeps {
                    -5.0
                } else {
                    0.0
                };
                assert_eq!(value, expected, "element {index}");
            }
        }
    }
}

#[test]
fn ends_that_disagree_name_each_other() {
    let mut network = Network::new(2, 1, 0.1);
    network.submit(0, transfer(3, Pattern::Send { to: 1 }, 1000, &[0.0; 1000]));
    network.submit(1, transfer(3, Pattern::Receive { from: 0, keeps: false }, 999, &[0.0; 999]));
    network.run(1);
    let [ours, theirs] =
        ["1000 values of float32 with loss bound 0", "999 values of float32 with loss bound 0"];
    let expected = |rank, ours: &str, theirs: &str| OpError::Disagrees {
        rank,
        ours: ours.to_owned(),
        theirs: theirs.to_owned(),
    };
    assert_eq!(network.completions[0][0].result, Err(expected(1, ours, theirs)));
    assert_eq!(network.completions[1][0].result, Err(expected(0, theirs, ours)));
    let is_failed = |engine: &Engine| matches!(engine.state(), JobState::Failed(_));
    assert!(!network.engines.iter().any(is_failed), "the job goes on");
}
