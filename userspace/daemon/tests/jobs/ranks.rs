//! Jobs with several ranks on each of several hosts: a host is one worker. See `lab.rs` for the topology.

use std::time::Duration;

use serde_json::json;
use sumac_client::{
    Client, Code, Job, JobOptions, Mode, NonFinitePolicy, OpOptions, OperationOrder, RecvOptions, Reduction,
    SendOptions,
};

use crate::common::{Raw, code};
use crate::kinds::{every_kind, every_type, failure, sum, sums_by_name, tensor};
use crate::lab::{Kind, Lab};
use crate::local::refused;

const OTHERS: Duration = Duration::from_secs(20);

#[test]
fn every_kind_with_every_type_in_every_mode() {
    Lab::with_ranks(2, 3).train("static", |o| o, every_type);
    Lab::with_ranks(2, 2).train("direct", |o| o.mode(Mode::Direct), every_type);
    let dynamic = Lab { ranks_per_host: 2, ..Lab::dynamic(Kind::Host { shared: 256 }, 2, 1, "") };
    dynamic.train("dynamic", |o| o.mode(Mode::Dynamic), every_type);
}

#[test]
fn the_reply_is_that_of_all_ranks() {
    Lab::with_ranks(2, 2).train(
        "reply",
        |o| o,
        |_, job, rank| {
            let opened = job.opened();
            assert_eq!((opened.rank, opened.world, opened.max_int), (rank, 4, i32::MAX / 4));
        },
    );
}

/// Integers are divided once, by the number of all ranks.
#[test]
fn a_mean_is_that_of_all_ranks() {
    for mode in [Mode::Static, Mode::Direct] {
        Lab::with_ranks(2, 3).train(
            "mean",
            move |o| o.mode(mode),
            |client, job, rank| {
                let mean = OpOptions { reduction: Reduction::Mean, ..OpOptions::default() };
                let values = tensor(client, 100, |at| (at as i32 + 10) * i32::from(rank));
                let means = job.allreduce_with(values, mean).unwrap().wait().unwrap();
                for (at, found) in means.iter().enumerate() {
                    let exact = f64::from((at as i32 + 10) * 15) / 6.0;
                    assert!((f64::from(*found) - exact).abs() <= 0.5, "{at}: {found} of {exact}");
                }
                let values = tensor(client, 100, |at| at as f32 * f32::from(rank));
                let means = job.allreduce_with(values, mean).unwrap().wait().unwrap();
                assert!((0..).zip(means.iter()).all(|(at, found)| (found - at as f32 * 2.5).abs() < 1e-3));
            },
        );
    }
}

#[test]
fn operations_are_matched_by_name_where_the_job_says_so() {
    Lab::with_ranks(2, 2).train("named", |o| o.order(OperationOrder::Name), sums_by_name);
}

/// Within a host they are copied; between hosts each pair of ranks has an order of its own.
#[test]
fn transfers_reach_their_ranks() {
    Lab::with_ranks(2, 2).train(
        "transfers",
        |o| o.mode(Mode::Direct),
        |client, job, rank| {
            let value =
                |from: u16, to: u16, number: i32| (i32::from(from) * 10 + i32::from(to)) * 100 + number;
            let others = || (0..4).filter(|other| *other != rank);
            let mut posted = Vec::new();
            for number in 0..3 {
                for other in others() {
                    let values = tensor(client, 2000, |_| value(rank, other, number));
                    let sent = job.post_send(values, other, SendOptions::default()).unwrap();
                    let empty = client.tensor::<i32>(2000).unwrap();
                    let received = job.post_recv(empty, other, RecvOptions::default()).unwrap();
                    posted.push((other, number, sent, received));
                }
            }
            for (other, number, sent, received) in posted {
                sent.wait().unwrap();
                let found = received.wait().unwrap();
                assert!(found.iter().all(|found| *found == value(other, rank, number)), "{other} {number}");
            }
            every_kind::<f32>(client, job, rank);
        },
    );
}

#[test]
fn transfers_that_differ_name_their_ranks() {
    Lab::with_ranks(2, 2).train(
        "sizes",
        |o| o.mode(Mode::Direct),
        |client, job, rank| {
            let error = match rank {
                1 => failure(job.post_send(tensor(client, 10, |_| 1.0f32), 3, SendOptions::default())),
                3 => failure(job.post_recv(client.tensor::<f32>(11).unwrap(), 1, RecvOptions::default())),
                _ => return,
            };
            assert_eq!((error.code, &error.ranks[..]), (Code::Mismatch, &[1, 3][..]), "{error}");
        },
    );
}

#[test]
fn a_value_that_is_not_allowed_names_its_rank_on_all_hosts() {
    for mode in [Mode::Static, Mode::Direct] {
        Lab::with_ranks(2, 2).train(
            "strict",
            move |o| o.mode(mode),
            |client, job, rank| {
                let values = tensor(client, 5000, |at| if rank == 3 && at == 4000 { f32::NAN } else { 1.0 });
                let error = failure(job.allreduce(values));
                assert_eq!((error.code, &error.ranks[..]), (Code::Saturated, &[3][..]), "{error}");
                assert!(error.message.starts_with("rank 3: element 4000 is NaN"), "{error}");
                assert_eq!(sum(client, job, 2, |_| 1.0f32), [4.0, 4.0], "the job goes on");
            },
        );
    }
}

/// Each value fits, but the host's sum does not.
#[test]
fn a_sum_of_integers_that_does_not_fit_names_the_hosts_ranks() {
    for mode in [Mode::Static, Mode::Direct] {
        Lab::with_ranks(2, 2).train(
            "large",
            move |o| o.mode(mode),
            |client, job, rank| {
                let large = |at| if rank < 2 && at == 7 { 1_500_000_000i32 } else { 1 };
                let error = failure(job.allreduce(tensor(client, 100, large)));
                assert_eq!((error.code, error.index), (Code::Saturated, Some(7)), "{error}");
                assert!(error.ranks.iter().all(|rank| *rank < 2) && !error.ranks.is_empty(), "{error}");
            },
        );
    }
}

/// The host's sum fits its type, but not the host's part of what the network adds.
#[test]
fn a_sum_that_is_too_large_for_the_network_is_that_of_the_hosts_ranks() {
    Lab::with_ranks(2, 2).train(
        "part",
        |o| o,
        |client, job, rank| {
            let large = |_| if rank < 2 { 1 } else { 600_000_000i32 };
            let error = failure(job.allreduce(tensor(client, 10, large)));
            let message = &error.message;
            assert!(message.contains("the sum of ranks [2, 3]"), "{error}");
            assert!(rank < 2 || error.ranks == [2, 3], "{error}");
        },
    );
}

/// Packets that go as floats are left to all ranks alike.
#[test]
fn packets_that_are_left_are_the_same_on_all_ranks() {
    Lab::with_ranks(2, 2).train(
        "raw",
        |o| o.not_finite(NonFinitePolicy::Raw),
        |client, job, rank| {
            let values = tensor(client, 5000, |at| if rank == 2 && at == 0 { f32::INFINITY } else { 1.0 });
            let mut pending = job.allreduce(values).unwrap();
            assert!(pending.wait_timeout(OTHERS).unwrap());
            let left = pending.left(5000);
            assert!(left.len() == 1 && left[0].0 == 0, "{left:?}");
            let values = pending.wait().unwrap();
            assert_eq!(values[4999], 4.0);
        },
    );
}

#[test]
fn operations_that_differ_name_their_ranks() {
    // Ranks of one host, and of two.
    for (other, counts) in [(1, [10, 11, 10, 10]), (2, [10, 10, 11, 11])] {
        let lab = Lab::with_ranks(2, 2);
        let opened = lab.open("differ", |o| o);
        let submit = |((client, job), count): (&(Client, Job), usize)| {
            job.allreduce(tensor(client, count, |_| 1.0f32))
        };
        let pending: Vec<_> = opened.iter().zip(counts).map(submit).collect();
        for pending in pending {
            let error = failure(pending);
            let expected = format!("rank {other} has");
            assert!(error.message.contains("rank 0 has") && error.message.contains(&expected), "{error}");
        }
    }
}

#[test]
fn the_end_of_one_rank_ends_all_by_name() {
    for dies in [0, 1] {
        let lab = Lab::with_ranks(2, 2);
        let mut opened = lab.open("dies", |o| o);
        let (gone, job) = opened.remove(dies);
        let pending: Vec<_> = opened
            .iter()
            .map(|(client, job)| job.allreduce(tensor(client, 10, |_| 1.0f32)).unwrap())
            .collect();
        drop((job, gone));
        for pending in pending {
            let error = failure(Ok(pending));
            assert_eq!(error.code, Code::JobFailed, "{error}");
            assert!(error.ranks.contains(&(dies as u16)) && !error.ranks.contains(&2), "{error}");
            assert!(error.message.contains(": its trainer") || error.message.contains("left"), "{error}");
        }
        drop(opened);
        (0..2).for_each(|host| lab.await_no_job(host));
        lab.train("dies", |o| o, |client, job, _| assert_eq!(sum(client, job, 1, |_| 1.0f32), [4.0]));
    }
}

#[test]
fn ranks_close_in_any_order() {
    for last in [0, 1] {
        let lab = Lab::with_ranks(2, 2);
        let mut opened = lab.open("closed", |o| o.mode(Mode::Direct));
        let values = |client: &Client| tensor(client, 1000, |at| at as f32);
        let sent: Vec<_> = [last, last + 2]
            .map(|rank| {
                let (client, job) = &opened[rank];
                let peer = (rank as u16 + 2) % 4;
                let sent = job.post_send(values(client), peer, SendOptions::default()).unwrap();
                (sent, client.tensor::<f32>(1000).unwrap())
            })
            .into();
        for rank in [3 - last, 1 - last] {
            opened.remove(rank).1.close().unwrap();
        }
        // The others still send to each other.
        let posted = opened.iter().zip(sent).map(|((_, job), (sent, empty))| {
            let peer = if job.opened().rank < 2 { last as u16 + 2 } else { last as u16 };
            (sent, job.post_recv(empty, peer, RecvOptions::default()).unwrap())
        });
        for (sent, received) in posted.collect::<Vec<_>>() {
            sent.wait().unwrap();
            assert_eq!(received.wait().unwrap()[999], 999.0);
        }
        for (client, job) in opened {
            job.close().unwrap();
            drop(client);
        }
        (0..2).for_each(|host| lab.await_no_job(host));
    }
}

/// The leader's rank has closed the job, and another one's ends with a transfer that nobody answers.
#[test]
fn a_rank_that_dies_after_its_leader_has_closed_ends_the_job() {
    let lab = Lab::with_ranks(2, 2);
    let mut opened = lab.open("deserted", |o| o.mode(Mode::Direct));
    let (client, job) = opened.remove(1);
    let empty = client.tensor::<f32>(1000).unwrap();
    let received = job.post_recv(empty, 2, RecvOptions::default()).unwrap();
    opened.remove(0).1.close().unwrap();
    drop((received, job, client));
    lab.await_no_job(0);
    for (client, job) in opened {
        let error = failure(job.allreduce(tensor(&client, 1, |_| 1.0f32)));
        assert_eq!(error.code, Code::JobFailed, "{error}");
    }
    lab.await_no_job(1);
    lab.train("deserted", |o| o, |client, job, _| assert_eq!(sum(client, job, 1, |_| 1.0f32), [4.0]));
}

#[test]
fn the_end_of_another_host_reaches_ranks_whose_leader_has_closed() {
    let lab = Lab::with_ranks(2, 2);
    let mut opened = lab.open("other", |o| o.mode(Mode::Direct));
    let others = opened.split_off(2);
    let (client, job) = opened.remove(1);
    let empty = client.tensor::<f32>(1000).unwrap();
    let received = job.post_recv(empty, 2, RecvOptions::default()).unwrap();
    opened.remove(0).1.close().unwrap();
    drop(others);
    let error = failure(Ok(received));
    assert_eq!(error.code, Code::JobFailed, "{error}");
    assert!(error.ranks.contains(&2), "{error}");
    drop((job, client));
    (0..2).for_each(|host| lab.await_no_job(host));
}

#[test]
fn a_rank_that_is_late_is_named_on_all_hosts() {
    let lab = Lab::with_ranks(2, 2);
    let open = |rank| json!({"cmd": "open", "job": "late", "rank": rank, "world": 4, "local_world": 2});
    let mut trainers: Vec<_> = (0..4).map(|rank| Raw::greeted(&lab.hosts[rank / 2].1)).collect();
    let asked: Vec<_> =
        (0..).zip(&mut trainers).map(|(rank, trainer): (u16, _)| trainer.send(open(rank), &[])).collect();
    let replies = trainers.iter_mut().zip(asked).map(|(trainer, id)| trainer.reply_to(id).0);
    let jobs: Vec<_> = replies.map(|reply| reply["ok"]["job"].clone()).collect();
    // All but rank 1.
    for rank in [0, 2, 3] {
        let region = trainers[rank].region(4096);
        let submitted = trainers[rank].ask(json!({"cmd": "allreduce", "job": jobs[rank], "region": region,
            "dtype": "float32", "offset": 0, "count": 10}));
        assert_eq!(code(&submitted), "none", "{submitted}");
    }
    let waiting = trainers[0].event();
    assert_eq!((&waiting["event"], &waiting["ranks"]), (&json!("waiting"), &json!([1])), "{waiting}");
    for rank in [2, 3] {
        let waiting = trainers[rank].event();
        assert_eq!((&waiting["event"], &waiting["ranks"]), (&json!("waiting"), &json!([0, 1])), "{waiting}");
    }
}

#[test]
fn ranks_that_do_not_fit_are_refused_by_name() {
    let lab = Lab::with_ranks(2, 2);
    let asked = |rank, world, local| JobOptions::new("j", rank, world).local_world(local).timeout(OTHERS);
    let odd = refused(lab.client(0).open(&asked(0, 5, 2)));
    assert!(odd.code == Code::BadField && odd.message.contains("local_world 2 of world 5"), "{odd}");
    // A rank of another host: that it comes second or first is the same.
    let first = std::thread::spawn({
        let client = lab.client(0);
        move || refused(client.open(&asked(0, 4, 2)))
    });
    crate::wait::eventually("the first rank", || {
        let error = refused(lab.client(0).open(&asked(2, 4, 2).timeout(Duration::from_millis(100))));
        (error.code == Code::Refused).then_some(error)
    });
    let error = first.join().unwrap();
    assert_eq!((error.code, &error.ranks[..]), (Code::Refused, &[0, 2][..]), "{error}");
    assert!(error.message.contains("are on one host, and by local_world 2 on different ones"), "{error}");
    // Hosts with other numbers of ranks.
    let open = |host: usize, rank, local| {
        let (client, asked) = (lab.client(host), asked(rank, 4, local).timeout(Duration::from_secs(8)));
        std::thread::spawn(move || refused(client.open(&asked)))
    };
    for open in [open(0, 0, 2), open(0, 1, 2), open(1, 2, 1)] {
        let mut error = open.join().unwrap();
        error.ranks.sort_unstable();
        assert_eq!((error.code, &error.ranks[..]), (Code::Refused, &[0, 2][..]), "{error}");
        assert!(error.message.contains("local world size"), "{error}");
    }
    // A rank twice: the other one waits for the host's other rank, which never comes.
    let errors = [open(1, 3, 2), open(1, 3, 2)].map(|open| open.join().unwrap());
    let ranks_with = |code| errors.iter().find(|error| error.code == code).map(|error| error.ranks.clone());
    assert_eq!(ranks_with(Code::RankTaken), Some(vec![3]), "{errors:?}");
    assert_eq!(ranks_with(Code::RanksMissing), Some(vec![2]), "{errors:?}");
}

#[test]
fn a_rank_that_never_comes_is_named_on_its_host() {
    let lab = Lab::with_ranks(2, 2);
    let asked = |rank| JobOptions::new("j", rank, 4).local_world(2).timeout(Duration::from_secs(4));
    let opens = [(0, 0), (1, 2), (1, 3)].map(|(host, rank): (usize, u16)| {
        let client = lab.client(host);
        let asked = asked(rank);
        (host, std::thread::spawn(move || refused(client.open(&asked))))
    });
    for (host, open) in opens {
        let error = open.join().unwrap();
        let expected: &[u16] = if host == 0 { &[1] } else { &[0, 1] };
        assert_eq!((error.code, &error.ranks[..]), (Code::RanksMissing, expected), "{error}");
    }
}
