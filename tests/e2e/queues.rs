//! Shards: each on its queue and CPU, from the worker's thread to the aggregator's slot and back.
//!
//! ```text
//! w0 net0 ==(2 queues)== port0 +-----+
//! w1 net0 ==(2 queues)== port1 | agg |
//!                              +-----+
//! ```

use sumac_lab::LabSpec;
use sumac_lab::deployment::SumacOptions;
use sumac_lab::spec::Napi;
use sumac_tests::site::with_sumac;
use sumac_tests::{Crew, Trainer, exact, stats};

const SEED: u64 = 51;
const QUEUES: u16 = 2;

/// A veth's frames stay on the CPU of the thread that sent them, and with that on its queue, where the
/// sender's system call carries them on. Threads of the kernel's own may run on any CPU.
const NAPI: Napi = Napi::Softirq;

#[test]
fn two_shards_use_two_queues_and_nobody_else_sees_their_frames() {
    with_sumac(
        LabSpec { queues: QUEUES, napi: NAPI, ..LabSpec::new(2) },
        &SumacOptions::default(),
        |sumac| {
            let crew = Crew::join(sumac, "sharded");
            assert_eq!(crew.trainers[0].job.opened().shards, QUEUES);
            for count in [100_003, 1, 353, 0, 700] {
                exact::assert_sums(&format!("{count} elements"), SEED, &crew.allreduce(SEED, count));
            }
            crew.trainers.iter().for_each(assert_steered);
            let counters = stats::at_aggregator(sumac);
            let dropped = counters.get("wrong_shard").copied().unwrap_or(0);
            assert_eq!(dropped, 0, "slots of one shard were named at another's port: {counters:?}");
            crew.leave();
        },
    );
}

/// Asserts that each shard's packets came through its own queue to its own thread.
fn assert_steered(trainer: &Trainer) {
    let stats = trainer.client.stats_json().unwrap();
    let rank = trainer.rank;
    let lanes = stats["jobs"][0]["lanes"].as_array().unwrap();
    let busy: Vec<_> = lanes.iter().filter(|lane| lane["engine"]["results"].as_u64() > Some(0)).collect();
    assert_eq!(busy.len(), usize::from(QUEUES), "rank {rank}: {lanes:?}");
    let threads = stats["threads"].as_array().unwrap();
    assert_eq!(threads.len(), usize::from(QUEUES), "rank {rank}: {threads:?}");
    for thread in threads {
        let undelivered = thread["undelivered"].as_object().unwrap();
        assert!(
            undelivered.values().all(|count| *count == 0),
            "rank {rank}: a frame came to another shard's thread: {thread}"
        );
    }
    let no_socket = stats["host_program"]["no_socket"].as_u64().unwrap_or(0);
    assert_eq!(no_socket, 0, "rank {rank}: frames came to a queue without a socket");
}
