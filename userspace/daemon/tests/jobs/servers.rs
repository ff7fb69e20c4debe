//! Direct jobs whose first ranks are parameter servers. See `lab.rs` for the topology.

use sumac_client::{
    Client, ClientError, Code, Job, JobOptions, Mode, OpOptions, RecvOptions, Reduction, SendOptions,
    Topology,
};

use crate::kinds::{WORLD, ended, failure, tensor};
use crate::lab::Lab;

/// Blocks of one server and of two, and partial last packets.
const COUNT: usize = 5002;

fn direct(options: JobOptions) -> JobOptions {
    options.mode(Mode::Direct).elements(64)
}

/// Quarters: sums and means of two are exact.
fn value(rank: u16, index: usize) -> f32 {
    (index % 101) as f32 / 4.0 + f32::from(rank) * 8.0
}

/// Runs all kinds of operations, whose results are those of the workers alone.
fn every_kind(client: &Client, job: &Job, rank: u16) {
    let servers = job.opened().servers;
    let (is_server, own) = (rank < servers, job.block(COUNT));
    let sum = |index| (servers..WORLD).map(|rank| value(rank, index)).sum::<f32>();
    let mean = |index| sum(index) / f32::from(WORLD - servers);
    let filled = || tensor(client, COUNT, |index| value(rank, index));
    let (plain, mean_of) =
        (OpOptions::default(), OpOptions { reduction: Reduction::Mean, ..OpOptions::default() });
    let expect = |what: &str, found: &[f32], expected: &dyn Fn(usize) -> f32| {
        for (index, found) in found.iter().enumerate() {
            assert_eq!(*found, expected(index), "{what} of rank {rank}, {servers} servers, element {index}");
        }
    };
    assert_eq!(own.is_empty(), !is_server);

    let pushed = ended(job.reduce_scatter(filled(), mean_of));
    let of_own = |index| if own.contains(&index) { mean(index) } else { value(rank, index) };
    expect("reduce_scatter", &pushed, &of_own);

    let pulled = ended(job.allgather(filled(), plain));
    let owner = |index| (index / (COUNT / usize::from(servers))) as u16;
    expect("allgather", &pulled, &|index| value(if is_server { rank } else { owner(index) }, index));

    for urgent in [0, 7] {
        let reduced = ended(job.allreduce_with(filled(), OpOptions { priority: urgent, ..mean_of }));
        if !is_server {
            expect("allreduce", &reduced, &mean);
        }
    }
    let least = ended(job.allreduce_with(filled(), OpOptions { reduction: Reduction::Min, ..plain }));
    if !is_server {
        expect("min", &least, &|index| value(servers, index));
    }
    for root in [0, WORLD - 1] {
        let reduced = ended(job.reduce(root, filled(), plain));
        expect("reduce", &reduced, &|index| if rank == root { sum(index) } else { value(rank, index) });
        let sent = ended(job.broadcast(root, filled(), plain));
        expect("broadcast", &sent, &|index| value(root, index));
    }
    ended(job.allreduce(client.tensor::<f32>(0).unwrap()));

    let uneven = client.tensor::<f32>(usize::from(servers) * 10 + 1).unwrap();
    if servers > 1 {
        let refused = failure(job.reduce_scatter(uneven, plain));
        assert_eq!(refused.code, Code::BadField);
        assert!(refused.message.contains("do not divide into blocks for 2 servers"), "{refused}");
    }
}

#[test]
fn workers_push_to_servers_and_pull_from_them() {
    let lab = Lab::with(3, "shards = 2");
    lab.train("one", |o| direct(o).servers(1), every_kind);
    lab.train("two", |o| direct(o).servers(2), every_kind);
    lab.train("one shard", |o| direct(o).servers(1).shards(1), every_kind);
}

/// A training: the servers have the weights and apply the workers' mean gradient.
#[test]
fn servers_train_with_the_workers_gradients() {
    let lab = Lab::new(3);
    let weights = lab.train(
        "training",
        |o| direct(o).servers(1),
        |client, job, rank| {
            let (mut weights, mut gradients) =
                (client.tensor::<f32>(1000).unwrap(), client.tensor::<f32>(1000).unwrap());
            let options = OpOptions { reduction: Reduction::Mean, loss_bound: 0.0, ..OpOptions::default() };
            for _ in 0..20 {
                // Of half the squared distance to the rank.
                gradients.iter_mut().zip(weights.iter()).for_each(|(gradient, weight)| {
                    *gradient = weight - f32::from(rank);
                });
                gradients = job.reduce_scatter(gradients, options).unwrap().wait().unwrap();
                let own = job.block(1000);
                weights[own.clone()].iter_mut().zip(&gradients[own]).for_each(|(weight, gradient)| {
                    *weight -= 0.5 * gradient;
                });
                weights = job.allgather(weights, OpOptions::default()).unwrap().wait().unwrap();
            }
            weights.to_vec()
        },
    );
    // The mean of the workers' ranks 1 and 2.
    assert!(weights.iter().flatten().all(|weight| (weight - 1.5).abs() < 1e-4), "{:?}", weights[0]);
    assert!(weights[0] == weights[1] && weights[1] == weights[2]);
}

#[test]
fn a_bound_of_servers_counts_workers() {
    let lab = Lab::new(3);
    lab.train(
        "bounded",
        |o| direct(o).servers(1),
        |client, job, rank| {
            let options = OpOptions { loss_bound: 0.2, ..OpOptions::default() };
            let mut pending = job.allreduce_with(tensor(client, 20_000, |_| 1.0f32), options).unwrap();
            assert!(pending.wait_timeout(crate::wait::LIMIT).unwrap());
            let loss = pending.loss().cloned().unwrap();
            assert_eq!(loss.by_worker.len(), 3);
            assert!(loss.by_worker.iter().all(|lost| *lost <= loss.budget), "{loss:?}");
            let result = pending.wait().unwrap();
            let ones = result.iter().all(|value| [1.0, 2.0].contains(value));
            assert!(rank == 0 || ones, "what is missing is one worker's value, or twice the own");
        },
    );
}

#[test]
fn ranks_and_servers_send_to_each_other() {
    let lab = Lab::new(2);
    lab.train(
        "transfers",
        |o| direct(o).servers(1),
        |client, job, rank| {
            let sent =
                job.post_send(tensor(client, 1000, |_| f32::from(rank)), 1 - rank, SendOptions::default());
            let received =
                job.post_recv(client.tensor::<f32>(1000).unwrap(), 1 - rank, RecvOptions::default());
            assert_eq!(received.unwrap().wait().unwrap()[999], f32::from(1 - rank));
            sent.unwrap().wait().unwrap();
        },
    );
}

fn refused(client: &Client, options: &JobOptions) -> (Code, String) {
    match client.open(options).unwrap_err() {
        ClientError::Daemon(failure) => (failure.code, failure.message.to_string()),
        other => panic!("{other}"),
    }
}

#[test]
fn servers_that_cannot_be_are_refused() {
    let lab = Lab::new(2);
    let open = || JobOptions::new("refused", 0, 2);
    for (options, problem) in [
        (direct(open()).servers(2), "2 servers in a world of 2"),
        (direct(open()).servers(0), "0 servers in a world of 2"),
        (direct(open()).servers(1).owners(1), "leave `owners` out"),
        (direct(open()).servers(1).topology(Topology::Ring), "a ring has no owners"),
        (direct(open()).servers(1).local_world(2), "`local_world`"),
        (open().servers(1), "servers is only for jobs in mode \"direct\""),
        (open().mode(Mode::Dynamic).servers(1), "servers is only for jobs in mode \"direct\""),
    ] {
        let (code, message) = refused(&lab.client(0), &options);
        assert_eq!(code, Code::BadField, "{message}");
        assert!(message.contains(problem), "{message}");
    }
}

#[test]
fn ranks_that_disagree_on_servers_are_named() {
    let lab = Lab::new(2);
    let (first, second) = (lab.client(0), lab.client(1));
    let other =
        std::thread::spawn(move || refused(&first, &direct(JobOptions::new("disagree", 0, 2)).servers(1)));
    let (_, message) = refused(&second, &direct(JobOptions::new("disagree", 1, 2)));
    let (_, others) = other.join().unwrap();
    for message in [message, others] {
        // The first to join comes first.
        let either = ["rank 0 wants servers 1, rank 1 wants 0", "rank 1 wants servers 0, rank 0 wants 1"];
        assert!(either.iter().any(|both| message.contains(both)), "{message}");
    }
}
