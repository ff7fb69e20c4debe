//! Transfers between two workers of direct jobs: `post_send`, `post_recv` and `poll_cq`. See `lab.rs` for the
//! topology.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::json;
use sumac_client::{
    Client, Code, Element, Failure, Importance, Job, JobOptions, Loss, MissingValues, Mode, OpOptions,
    Pending, RecvOptions, SendOptions, Topology, TransferCompletion,
};

use crate::common::{Raw, code};
use crate::kinds::{Number, failure, sum, tensor};
use crate::lab::Lab;
use crate::wait::LIMIT;

//= mlt#5.1 sends and receives matched in order
fn direct(options: JobOptions) -> JobOptions {
    options.mode(Mode::Direct).elements(64)
}

fn send(priority: u8) -> SendOptions {
    SendOptions { priority, importance: Importance::None }
}

fn receive(loss_bound: f32) -> RecvOptions {
    RecvOptions { loss_bound, ..RecvOptions::default() }
}

/// Takes so many ends from the completion queue; the eventfd signals them.
fn poll(job: &Job, count: usize) -> BTreeMap<u64, TransferCompletion> {
    let (mut ended, deadline) = (BTreeMap::new(), Instant::now() + LIMIT);
    while ended.len() < count {
        assert!(Instant::now() < deadline, "{} of {count} transfers have ended", ended.len());
        let event = job.completion_event();
        let mut poll = [rustix::event::PollFd::new(&event, rustix::event::PollFlags::IN)];
        let second = rustix::event::Timespec { tv_sec: 1, tv_nsec: 0 };
        rustix::event::poll(&mut poll, Some(&second)).unwrap();
        let _ = rustix::io::read(event, &mut [0; 8]);
        ended.extend(job.poll_cq().unwrap().into_iter().map(|completion| (completion.op, completion)));
    }
    ended
}

/// The value at a place of the `number`-th tensor from one rank to another.
fn value(from: u16, to: u16, number: usize, index: usize) -> i32 {
    (index % 100) as i32 + i32::from(from) * 3 + i32::from(to) * 5 + number as i32
}

fn posted<T: Number>(
    client: &Client,
    job: &Job,
    (rank, peer): (u16, u16),
    (number, count): (usize, usize),
) -> [Pending<T>; 2] {
    let values = tensor(client, count, |index| T::of(value(rank, peer, number, index)));
    let sent = job.post_send(values, peer, send(number as u8)).unwrap();
    [sent, job.post_recv(client.tensor::<T>(count).unwrap(), peer, receive(0.0)).unwrap()]
}

fn arrived<T: Number>((rank, peer): (u16, u16), number: usize, [sent, received]: [Pending<T>; 2]) {
    let received = received.wait().unwrap();
    for (index, found) in received.iter().enumerate() {
        assert_eq!(*found, T::of(value(peer, rank, number, index)), "{peer} to {rank}, #{number}, {index}");
    }
    sent.wait().unwrap();
}

#[test]
fn tensors_go_between_all_workers_at_once_and_their_ends_are_polled() {
    let lab = Lab::with(3, "shards = 2");
    lab.train("both ways", direct, |client, job, rank| {
        let peers: Vec<(u16, u16)> = (0..3).filter(|peer| *peer != rank).map(|peer| (rank, peer)).collect();
        let sizes = [1, 64, 65, 10_000, 30_001];
        let mut floats = Vec::new();
        let mut halves = Vec::new();
        for (number, count) in sizes.into_iter().enumerate() {
            for peer in &peers {
                floats.push((*peer, number, posted::<f32>(client, job, *peer, (number, count))));
                halves.push((
                    *peer,
                    number,
                    posted::<sumac_client::bf16>(client, job, *peer, (number, count)),
                ));
            }
            // Collectives have numbers of their own, on all workers.
            assert_eq!(sum(client, job, 500, |i| i as f32)[499], 3.0 * 499.0);
        }
        let ended = poll(job, sizes.len() * 2 * 2 * 2);
        assert!(ended.values().all(|completion| completion.error.is_none() && completion.loss.is_none()));
        assert!(job.poll_cq().unwrap().is_empty(), "each is taken once");
        floats.into_iter().for_each(|(peer, number, pending)| arrived(peer, number, pending));
        halves.into_iter().for_each(|(peer, number, pending)| arrived(peer, number, pending));
    });
}

/// Two jobs on the same hosts, with one transfer each way in both.
#[test]
fn missing_values_are_zero_or_the_last_ones_and_no_more_than_the_bound() {
    const COUNT: usize = 20_000;
    let lab = Lab::new(2);
    let run = |name: &str, missing: MissingValues, bound: f32| {
        lab.train(name, direct, move |client, job, rank| {
            let sent = job.post_send(tensor(client, COUNT, |_| 1.0f32), 1 - rank, send(0)).unwrap();
            let options = RecvOptions { loss_bound: bound, missing };
            let mut received = job.post_recv(tensor(client, COUNT, |_| 7.0f32), 1 - rank, options).unwrap();
            assert!(received.wait_timeout(LIMIT).unwrap());
            let polled = poll(job, 2).remove(&received.op()).unwrap();
            let loss = received.loss().cloned().unwrap();
            assert_eq!(polled.loss.as_ref(), Some(&loss));
            let values = received.wait().unwrap();
            check_loss(&values, &loss, bound, if missing == MissingValues::Keep { 7.0 } else { 0.0 });
            sent.wait().unwrap();
        });
    };
    std::thread::scope(|scope| {
        scope.spawn(|| run("zero", MissingValues::Zero, 0.25));
        run("keep", MissingValues::Keep, 0.1);
    });
}

fn check_loss(values: &[f32], loss: &Loss, bound: f32, missing: f32) {
    let lost: u64 = loss.missing.iter().map(|(first, end)| end - first).sum();
    // A transfer is stopped as soon as its bound allows.
    assert!(lost > 0 && lost as f64 <= values.len() as f64 * f64::from(bound), "{lost} of {}", values.len());
    assert_eq!((loss.elements, &loss.by_worker[..]), (values.len() as u64, &[lost][..]));
    assert!(loss.budget >= lost && (loss.fraction() - lost as f64 / values.len() as f64).abs() < 1e-9);
    for (index, value) in (0..).zip(values) {
        let is_missing = loss.missing.iter().any(|(first, end)| (*first..*end).contains(&index));
        assert_eq!(*value, if is_missing { missing } else { 1.0 }, "element {index}");
    }
}

fn end<T: Element + std::fmt::Debug>(pending: Pending<T>) -> Failure {
    failure(Ok(pending))
}

#[test]
fn ends_that_differ_fail_on_both_workers_and_nothing_else_does() {
    let lab = Lab::with(2, "shards = 2");
    let failures = lab.train("differ", direct, |client, job, rank| {
        let f32s = |count| client.tensor::<f32>(count).unwrap();
        let failures = if rank == 0 {
            let sizes = job.post_send(f32s(1000), 1, send(0)).unwrap();
            let types = job.post_send(client.tensor::<i32>(500).unwrap(), 1, send(7)).unwrap();
            [end(sizes), end(types)]
        } else {
            let sizes = job.post_recv(f32s(999), 0, receive(0.5)).unwrap();
            let types = job.post_recv(f32s(500), 0, receive(0.0)).unwrap();
            [end(sizes), end(types)]
        };
        // The next pair, and the job.
        let peer = (rank, 1 - rank);
        arrived(peer, 2, posted::<f32>(client, job, peer, (2, 3000)));
        assert_eq!(sum(client, job, 10, |_| 1.0f32), [2.0; 10]);
        failures
    });
    for [sizes, types] in &failures {
        println!("{sizes}\n{types}");
        assert_eq!((sizes.code, &sizes.ranks[..]), (Code::Mismatch, &[0, 1][..]));
        assert_eq!((types.code, &types.ranks[..]), (Code::Mismatch, &[0, 1][..]));
        assert!(sizes.message.contains("1000 values of float32"), "{sizes}");
        assert!(sizes.message.contains("999 values of float32 with loss bound 0.5"), "{sizes}");
        assert!(types.message.contains("500 values of int32"), "{types}");
        assert!(types.message.contains("500 values of float32"), "{types}");
    }
    assert!(failures[0][0].message.starts_with("post_send float32[1000] to rank 1: rank 1 has"));
    assert!(failures[1][0].message.starts_with("post_recv float32[999] from rank 0: rank 0 has"));
}

#[test]
fn bad_requests_are_refused_and_nothing_is_lost() {
    let lab = Lab::new(2);
    lab.train("refused", direct, |client, job, rank| {
        if rank == 0 {
            let floats = || client.tensor::<f32>(100).unwrap();
            let to = |rank, options| failure(job.post_send(floats(), rank, options));
            let from = |rank, bound| failure(job.post_recv(floats(), rank, receive(bound)));
            let integers = client.tensor::<i32>(100).unwrap();
            let cases = [
                ("not a rank", to(2, send(0)), Code::BadField, "destination 2 is not below world 2"),
                ("not a rank", from(9, 0.0), Code::BadField, "source 9 is not below world 2"),
                ("itself", to(0, send(0)), Code::BadField, "destination 0 is this worker itself"),
                ("itself", from(0, 0.0), Code::BadField, "source 0 is this worker itself"),
                ("priority", to(1, send(8)), Code::BadField, "priority 8 is not between 0 and 7"),
                ("negative", from(1, -0.1), Code::BadField, "loss_bound -0.1 is not between 0 and 1"),
                ("too much", from(1, 1.5), Code::BadField, "loss_bound 1.5 is not between 0 and 1"),
                ("all", from(1, 1.0), Code::Unsupported, "loss_bound 1: something must arrive"),
                (
                    "integers",
                    failure(job.post_recv(integers, 1, receive(0.1))),
                    Code::Unsupported,
                    "loss_bound 0.1: a tensor of int32 may lack nothing",
                ),
                (
                    "empty",
                    failure(job.post_send(client.tensor::<f32>(0).unwrap(), 1, send(0))),
                    Code::BadField,
                    "at least one element",
                ),
            ];
            for (name, failure, code, words) in cases {
                assert_eq!(failure.code, code, "{name}: {failure}");
                assert!(failure.message.contains(words), "{name}: {failure}");
            }
        }
        let peer = (rank, 1 - rank);
        arrived(peer, 1, posted::<f32>(client, job, peer, (1, 1000)));
    });
}

#[test]
fn memory_of_a_transfer_is_checked() {
    let lab = Lab::new(1);
    let mut raw = Raw::greeted(&lab.hosts[0].1);
    let open = json!({"cmd": "open", "job": "memory", "rank": 0, "world": 1, "mode": "direct"});
    let job = raw.ask(open)["ok"]["job"].clone();
    let region = raw.region(4096);
    let post = |region: &serde_json::Value, offset: u64| {
        json!({"cmd": "post_recv", "job": job, "region": region, "dtype": "float32", "offset": offset,
               "count": 1000, "source": 0})
    };
    assert_eq!(code(&raw.ask(post(&region, 0))), "bad_field", "there is no other worker");
    assert_eq!(code(&raw.ask(json!({"cmd": "poll_cq", "job": 77}))), "unknown_job");
    assert_eq!(raw.ask(json!({"cmd": "poll_cq", "job": job}))["ok"], json!({"completions": []}));
}

/// The others go on meanwhile, and one leaves: neither concerns the transfer.
#[test]
fn a_worker_that_does_not_post_is_named_and_holds_nobody_up() {
    let lab = Lab::new(3);
    lab.train("late", direct, |client, job, rank| {
        let first =
            (rank == 0).then(|| job.post_recv(client.tensor::<f32>(1000).unwrap(), 1, receive(0.0)).unwrap());
        for _ in 0..5 {
            assert_eq!(sum(client, job, 1000, |_| 1.0f32), [3.0; 1000]);
        }
        if let Some(mut pending) = first {
            let deadline = Instant::now() + LIMIT;
            while job.waiting().is_none() {
                assert!(Instant::now() < deadline, "nobody is named");
                assert!(!pending.wait_timeout(Duration::from_millis(100)).unwrap());
            }
            let waiting = job.waiting().unwrap();
            assert!(waiting.contains("post_recv float32[1000] from rank 1 has waited for"), "{waiting}");
            assert!(waiting.contains("for the post_send of rank 1"), "{waiting}");
            // Longer than a job waits for a worker that has left.
            assert!(!pending.wait_timeout(Duration::from_secs(2)).unwrap());
            let go = job.post_send(client.tensor::<f32>(1).unwrap(), 1, send(0)).unwrap();
            assert_eq!(pending.wait().unwrap()[999], 5.0);
            go.wait().unwrap();
        }
        if rank == 1 {
            job.post_recv(client.tensor::<f32>(1).unwrap(), 0, receive(0.0)).unwrap().wait().unwrap();
            job.post_send(tensor(client, 1000, |_| 5.0f32), 0, send(0)).unwrap().wait().unwrap();
        }
    });
}

#[test]
fn a_dead_peer_is_named() {
    let lab = Lab::new(2);
    let mut jobs = lab.open("dies", direct);
    let (other, others_job) = jobs.remove(1);
    let (client, job) = jobs.remove(0);
    let pending = job.post_recv(client.tensor::<f32>(1000).unwrap(), 1, receive(0.3)).unwrap();
    drop((others_job, other));
    let failure = end(pending);
    assert_eq!((failure.code, &failure.ranks[..]), (Code::JobFailed, &[1][..]), "{failure}");
    let polled = job.poll_cq().unwrap();
    assert_eq!(polled.len(), 1);
    assert_eq!(polled[0].error.as_ref().map(|error| error.ranks.clone()), Some(vec![1]));
}

#[test]
fn a_peer_that_has_left_without_posting_is_named() {
    let lab = Lab::new(2);
    let mut jobs = lab.open("leaves", direct);
    let (_other, others_job) = jobs.remove(1);
    let (client, job) = jobs.remove(0);
    let pending = job.post_send(client.tensor::<f32>(1000).unwrap(), 1, send(0)).unwrap();
    others_job.close().unwrap();
    let failure = end(pending);
    assert_eq!((failure.code, &failure.ranks[..]), (Code::JobFailed, &[1][..]), "{failure}");
    assert!(failure.message.contains("has left"), "{failure}");
}

#[test]
fn collectives_of_direct_jobs_have_barriers_and_blocks() {
    let lab = Lab::with(3, "shards = 2");
    lab.train("blocks", |o| direct(o).owners(2), every_collective);
    lab.train("ring", |o| direct(o).topology(Topology::Ring), every_collective);
}

fn every_collective(client: &Client, job: &Job, rank: u16) {
    crate::kinds::every_kind::<f32>(client, job, rank);
    crate::kinds::every_kind::<i32>(client, job, rank);
    let barrier = job.allreduce_with(client.tensor::<f32>(0).unwrap(), OpOptions::default()).unwrap();
    barrier.wait().unwrap();
}
