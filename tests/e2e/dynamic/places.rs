//! Placement and number of parameter hosts, and their input with no, one and two levels of aggregators.

use std::collections::BTreeMap;

use sumac_lab::LabSpec;
use sumac_lab::deployment::{Backend, DynamicOptions, SumacOptions};
use sumac_tests::site::with_crew;
use sumac_tests::{Crew, exact, stats};
use sumac_wire::header::HEADER_LEN;

use super::{lab, sumac};

const SEED: u64 = 5;
const COUNT: usize = 200_003;

/// Sums once, so that windows and slots have found their sizes and places, and then again; checks what came
/// in then.
fn sums(what: &str, spec: LabSpec, options: &SumacOptions, check: impl Fn(&[Counts], &Crew)) {
    with_crew(spec, options, |sumac, crew| {
        let hosts = sumac.parameter_host_sockets().len();
        let count = || -> Vec<Counts> {
            let names = ["contributions", "full_sums", "completed", "bytes_in"];
            let of = |host| names.map(|name| (name, stats::at_parameter_host(sumac, host, name))).into();
            (0..hosts).map(of).collect()
        };
        exact::assert_sums(what, SEED, &crew.allreduce(SEED, COUNT));
        let before = count();
        exact::assert_sums(what, SEED + 1, &crew.allreduce(SEED + 1, COUNT));
        let mut counts = count();
        for (now, before) in counts.iter_mut().zip(before) {
            now.iter_mut().for_each(|(name, count)| *count -= before[name]);
        }
        println!("{what}: {counts:?}");
        check(&counts, crew);
    });
}

/// One parameter host's counters.
type Counts = BTreeMap<&'static str, u64>;

/// Bytes of a tensor in packets of one worker.
fn tensor_bytes(crew: &Crew) -> f64 {
    let words = usize::from(crew.trainers[0].job.opened().elements);
    (COUNT.div_ceil(words) * HEADER_LEN + COUNT * 4) as f64
}

#[test]
fn without_an_aggregator_parameter_hosts_do_all() {
    for backend in [Backend::Xdp, Backend::Udp] {
        let dynamic = DynamicOptions { has_aggregator: false, ..DynamicOptions::default() };
        let options = SumacOptions { backend, ..sumac(dynamic) };
        sums("no aggregator", lab(3), &options, |hosts, crew| {
            assert_eq!(hosts[0]["full_sums"], 0);
            assert!(hosts[0]["contributions"] >= 3 * hosts[0]["completed"], "each worker's on its own");
            assert!(crew.counter("direct") >= 3, "every lane of every worker");
        });
    }
}

#[test]
fn several_parameter_hosts_share_the_shards() {
    let spec = LabSpec { queues: 2, parameter_hosts: 2, ..LabSpec::new(3) };
    sums("two hosts", spec, &sumac(DynamicOptions::default()), |hosts, _| {
        assert_eq!(hosts.len(), 2);
        assert!(hosts.iter().all(|host| host["completed"] > 0), "one host has it all");
    });
}

#[test]
fn workers_are_parameter_hosts_too() {
    let spec = LabSpec { queues: 2, ..LabSpec::new(3) };
    let options = sumac(DynamicOptions { co_located: 2, ..DynamicOptions::default() });
    sums("co-located", spec, &options, |hosts, _| {
        assert_eq!(hosts.len(), 2);
        assert!(hosts.iter().all(|host| host["completed"] > 0), "one host has it all");
    });
}

/// The paper's figure 9: two racks of two workers, and two workers at the switch of the parameter host.
#[test]
fn two_levels_send_the_parameter_host_a_tensor_once() {
    let racks = LabSpec { racks: 2, beside_root: 2, ..lab(6) };
    // Many slots, so that no sum is missed for a collision: a tensor this short leaves no time to spread.
    let options = sumac(DynamicOptions { slots: 8192, ..DynamicOptions::default() });
    sums("two levels", racks, &options, |hosts, crew| {
        let times = hosts[0]["bytes_in"] as f64 / tensor_bytes(crew);
        println!("two levels: {times:.2} times the tensor came into the parameter host");
        // What workers that began apart have flushed comes on top: on a busy machine as much again. Without
        // levels it is six.
        assert!(times < 3.0, "{times} tensors");
    });
    let dynamic = DynamicOptions { has_aggregator: false, ..DynamicOptions::default() };
    sums("no level", lab(6), &sumac(dynamic), |hosts, crew| {
        let times = hosts[0]["bytes_in"] as f64 / tensor_bytes(crew);
        println!("no level: {times:.2} times the tensor came into the parameter host");
        assert!(times > 5.5, "{times} tensors");
    });
}
