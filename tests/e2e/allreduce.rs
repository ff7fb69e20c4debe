//! Sums over every path, exact to the bit.
//!
//! ```text
//! per port                             one arm
//!
//! w0 net0 ------ port0 +-----+         w0 net0 ------ +--------+
//! w1 net0 ------ port1 | agg |         w1 net0 ------ | switch | ------ port0 agg
//! w2 net0 ------ port2 +-----+         w2 net0 ------ +--------+
//! ```
//!
//! On `net0` the host program and an AF_XDP socket of the daemon, on each `port` the aggregator's program; or
//! UDP sockets on both sides.

use sumac_client::Reduction;
use sumac_lab::deployment::{Backend, SumacOptions};
use sumac_lab::{LabSpec, Topology};
use sumac_tests::site::{with_crew, with_sumac};
use sumac_tests::{Crew, exact, stats};

const SEED: u64 = 7;

/// Neither a multiple of a chunk nor of a vector.
const COUNT: usize = 100_003;

/// Words per packet at an MTU of 1500.
const WORDS: u64 = 352;

/// The path of one deployment.
#[derive(Clone, Copy, Debug)]
struct Path {
    workers: u16,
    topology: Topology,
    backend: Backend,
}

/// Sums the same values over a path, in two runs that differ in nothing, and returns one worker's bits.
fn sums_over(path: Path) -> Option<Vec<f32>> {
    let Path { workers, topology, backend } = path;
    let options = SumacOptions { backend, ..SumacOptions::default() };
    let spec = LabSpec { topology, ..LabSpec::new(workers) };
    let mut result = None;
    with_sumac(spec, &options, |sumac| {
        let (mut runs, mut rounds) = (Vec::new(), 0);
        for run in 0..2 {
            let crew = Crew::join(sumac, &format!("run{run}"));
            let sums = crew.allreduce(SEED, COUNT);
            exact::assert_sums(&format!("{path:?}, run {run}"), SEED, &sums);
            let exponents = ["exponent_rounds", "exponent_chunks"];
            rounds += exponents.map(|name| stats::counter(&crew.trainers[0], name)).iter().sum::<u64>();
            for trainer in &crew.trainers {
                stats::assert_bound(&trainer.client, backend);
                assert_eq!(trainer.job.opened().backend, backend.name());
                let plane = if backend == Backend::Xdp { "ebpf" } else { "host" };
                assert_eq!(trainer.job.opened().plane, plane);
            }
            crew.leave();
            runs.push(sums.by_rank);
        }
        assert_eq!(runs[0], runs[1], "{path:?}: two runs differ");
        if backend == Backend::Xdp {
            assert_summed_in_the_kernel(&sumac.aggregator_status().unwrap(), path, rounds);
        }
        result = runs.pop().and_then(|mut sums| sums.pop());
    });
    result
}

/// Asserts that it was the XDP programs, in driver mode, that added, and every chunk, also those of
/// exponents, or round for an exponent, once for each worker.
fn assert_summed_in_the_kernel(status: &serde_json::Value, path: Path, rounds: u64) {
    let ports = status["ports"].as_array().unwrap();
    let expected = if path.topology == Topology::OneArm { 1 } else { usize::from(path.workers) };
    assert_eq!(ports.len(), expected, "{status}");
    assert!(ports.iter().all(|port| port["mode"] == "driver"), "{path:?}: {status}");
    let counter = |name: &str| status["counters"][name].as_u64().unwrap_or(0);
    let chunks = 2 * (COUNT as u64).div_ceil(WORDS) + rounds;
    assert_eq!(counter("completed"), chunks, "{path:?}: {status}");
    assert_eq!(
        counter("added") + counter("completed"),
        chunks * u64::from(path.workers),
        "{path:?}: {status}"
    );
}

fn assert_exact_over(topology: Topology, backend: Backend) {
    for workers in [2, 4] {
        sums_over(Path { workers, topology, backend });
    }
}

#[test]
fn over_xdp_each_worker_on_its_own_port() {
    assert_exact_over(Topology::PerPort, Backend::Xdp);
}

#[test]
fn over_xdp_all_workers_behind_one_port() {
    assert_exact_over(Topology::OneArm, Backend::Xdp);
}

#[test]
fn over_udp_through_a_process() {
    assert_exact_over(Topology::PerPort, Backend::Udp);
    assert_exact_over(Topology::OneArm, Backend::Udp);
}

/// Workers behind one port receive results by a multicast group. Those that did not would get each by asking
/// for it.
#[test]
fn over_udp_to_the_programs_with_results_by_multicast() {
    for topology in [Topology::PerPort, Topology::OneArm] {
        let options = SumacOptions { backend: Backend::Mixed, ..SumacOptions::default() };
        // Two shards: each thread has a socket.
        let spec = LabSpec { topology, queues: 2, ..LabSpec::new(3) };
        with_sumac(spec, &options, |sumac| {
            let crews = ["one", "two"].map(|name| Crew::join(sumac, name));
            let opened = crews[0].trainers[0].job.opened();
            assert_eq!((&*opened.backend, &*opened.plane), ("udp", "ebpf"));
            for (seed, crew) in (0..).zip(&crews) {
                exact::assert_sums(&format!("{topology:?}, job {seed}"), seed, &crew.allreduce(seed, COUNT));
                let asked = stats::counter(&crew.trainers[0], "questions");
                assert!(asked < (COUNT as u64).div_ceil(WORDS) / 2, "{topology:?}: {asked} asked for");
            }
            let former = sumac.upgrade_daemon(0).unwrap();
            exact::assert_sums("after an upgrade", 5, &crews[0].allreduce(5, COUNT));
            drop(former);
            crews.into_iter().for_each(Crew::leave);
        });
    }
}

#[test]
fn kernel_and_process_agree_to_the_bit() {
    let path = Path { workers: 3, topology: Topology::PerPort, backend: Backend::Xdp };
    let kernel = sums_over(path);
    let process = sums_over(Path { backend: Backend::Udp, ..path });
    let bits =
        |sums: Option<Vec<f32>>| sums.map(|sums| sums.into_iter().map(f32::to_bits).collect::<Vec<_>>());
    assert_eq!(bits(kernel), bits(process));
}

#[test]
fn chunks_of_every_size_and_tensors_of_every_length() {
    use Topology::{OneArm, PerPort};
    // By default a packet is as large as the MTU allows. Above 832 words it comes to XDP programs in several
    // pieces, which the kernel cannot copy to several ports: where there are several, 832 are the most.
    let cases = [
        (Some(32), 32, 1500, PerPort),
        (None, 352, 1500, PerPort),
        (Some(360), 360, 1532, PerPort),
        (None, 832, 3506, PerPort),
        (None, 832, 9000, PerPort),
        (None, 2224, 9000, OneArm),
    ];
    for (asked, chunk, mtu, topology) in cases {
        let options = SumacOptions { chunk: asked, ..SumacOptions::default() };
        let spec = LabSpec { mtu, topology, ..LabSpec::new(2) };
        with_crew(spec, &options, |_, crew| {
            assert_eq!(usize::from(crew.trainers[0].job.opened().elements), chunk, "MTU {mtu}");
            for (seed, count) in (0..).zip([0, 1, chunk - 1, chunk, chunk + 1, 20_001]) {
                let what = format!("{count} elements in chunks of {chunk}");
                exact::assert_sums(&what, seed, &crew.allreduce(seed, count));
            }
        });
    }
}

#[test]
fn integers_are_summed_as_they_are() {
    with_crew(LabSpec::new(3), &SumacOptions::default(), |_, crew| {
        exact::assert_sums("integers", SEED, &crew.reduce::<i32>(SEED, 5_000, Reduction::Sum));
    });
}

#[test]
fn sixteen_workers_are_the_most_that_a_lab_has() {
    for topology in [Topology::PerPort, Topology::OneArm] {
        with_crew(LabSpec { topology, ..LabSpec::new(16) }, &SumacOptions::default(), |_, crew| {
            exact::assert_sums(&format!("sixteen, {topology:?}"), SEED, &crew.allreduce(SEED, 10_000));
        });
    }
}

#[test]
fn operations_of_one_job_are_outstanding_together() {
    with_crew(LabSpec::new(2), &SumacOptions::default(), |_, crew| {
        let counts = (0..24).map(|number: usize| number * number * 40 + number % 3);
        let pending: Vec<_> =
            (0..).zip(counts).map(|(seed, count)| (seed, crew.submit(seed, count))).collect();
        // The last first: an operation's end waits for whoever asks for it.
        for (seed, pending) in pending.into_iter().rev() {
            exact::assert_sums(&format!("operation {seed}"), seed, &crew.results(pending));
        }
    });
}

#[test]
fn jobs_beside_each_other_do_not_mix() {
    let options = SumacOptions { slots: Some(32), ..SumacOptions::default() };
    with_sumac(LabSpec::new(3), &options, |sumac| {
        let crews: Vec<_> = ["one", "two", "three"].map(|name| Crew::join(sumac, name)).into_iter().collect();
        let pending: Vec<_> =
            (0..).zip(&crews).map(|(seed, crew)| (seed, crew.submit(seed, COUNT))).collect();
        for ((seed, pending), crew) in pending.into_iter().zip(&crews) {
            exact::assert_sums(&format!("job {seed}"), seed, &crew.results(pending));
        }
        for crew in crews {
            crew.leave();
        }
    });
}
