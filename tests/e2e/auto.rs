//! Daemons with `backend = "auto"`: one that starts before its network, and jobs that measure both backends.
//!
//! ```text
//! w0 net0 --[c0]-- port0 +-----+
//! w1 net0 --[c1]-- port1 | agg |      w1's interface has no address when its daemon starts
//!                        +-----+
//! ```

use sumac_lab::LabSpec;
use sumac_lab::Topology;
use sumac_lab::deployment::{Backend, SumacOptions};
use sumac_tests::site::with_sumac;
use sumac_tests::wait::eventually;
use sumac_tests::{Crew, exact};

/// The rank whose network comes late.
const LATE: u16 = 1;

/// Jobs with a number of slots, which measure nothing: they use AF_XDP where it is there.
fn unmeasured() -> SumacOptions {
    SumacOptions { is_auto: true, slots: Some(64), ..SumacOptions::default() }
}

/// Restarts a worker's daemon without an address, and brings the address back. Asserts that it is on UDP
/// meanwhile, for the reason that is true.
fn boot_before_the_network(sumac: &mut sumac_lab::deployment::Deployment<'_>) {
    let lab = sumac.lab();
    let (worker, interface) = (lab.worker(LATE), lab.worker_interface());
    let (ip, gateway) = (lab.spec().worker_ip(LATE), lab.spec().aggregator_ip(LATE));
    sumac.stop_daemon(LATE);
    sumac.sumac(LATE, &["detach", interface]).unwrap();
    worker.ip(&[format!("addr flush dev {interface}")]).unwrap();
    sumac.start_daemon(LATE).unwrap();
    let client = sumac.client(LATE).unwrap();
    assert_eq!(client.hello().backend, "udp");
    let fallback = client.stats().unwrap().fallback;
    assert!(fallback.contains("no route to"), "{fallback}");
    worker
        .ip(&[format!("addr add {ip}/24 dev {interface}"), format!("route replace default via {gateway}")])
        .unwrap();
}

#[test]
fn a_daemon_that_starts_before_its_address_is_on_af_xdp_once_it_is_there() {
    let spec = LabSpec { topology: Topology::PerPort, ..LabSpec::new(2) };
    with_sumac(spec, &unmeasured(), |sumac| {
        boot_before_the_network(sumac);
        let status = || sumac.client(LATE).unwrap().stats().unwrap();
        eventually("AF_XDP", || (status().backend == "xdp").then_some(()));
        assert_eq!(status().fallback, "");
        let crew = Crew::join(sumac, "healed");
        exact::assert_sums("after the network has come", 1, &crew.allreduce(1, 100_000));
        assert_eq!(crew.trainers[usize::from(LATE)].job.opened().backend, "xdp");
        crew.leave();
    });
}

#[test]
fn a_job_makes_the_choice_again() {
    let spec = LabSpec { topology: Topology::PerPort, ..LabSpec::new(2) };
    with_sumac(spec, &unmeasured(), |sumac| {
        boot_before_the_network(sumac);
        let crew = Crew::join(sumac, "first");
        exact::assert_sums("the first job", 1, &crew.allreduce(1, 10_000));
        assert_eq!(crew.trainers[usize::from(LATE)].job.opened().backend, "xdp");
        crew.leave();
    });
}

/// The rates of AF_XDP and of UDP in the reason for a job's slots, each on average and the lowest, in Mbit/s.
fn rates(reason: &str) -> [u64; 4] {
    let (rates, _) = reason.split_once(';').unwrap_or_else(|| panic!("{reason}"));
    let numbers = rates.split(|character: char| !character.is_ascii_digit());
    let numbers: Vec<u64> = numbers.filter_map(|digits| digits.parse().ok()).collect();
    numbers.try_into().unwrap_or_else(|_| panic!("{reason}"))
}

/// Opens a job, which measures both backends, asserts that all workers use the faster one, and sums, also
/// after an upgrade of a worker's daemon.
fn use_the_faster_backend(sumac: &mut sumac_lab::deployment::Deployment<'_>) {
    let crew = Crew::join(sumac, "measured");
    let opened: Vec<_> = crew.trainers.iter().map(|trainer| trainer.job.opened().clone()).collect();
    let [own, slowest, udp, slowest_udp] = rates(&opened[0].slots_reason);
    let chosen = if udp * 10 > own * 11 && slowest_udp * 2 >= slowest { "udp" } else { "xdp" };
    println!("{}", opened[0].slots_reason);
    for (rank, reply) in (0..).zip(&opened) {
        assert_eq!(reply.backend, chosen, "{}", reply.slots_reason);
        let stats = sumac.client(rank).unwrap().stats().unwrap();
        assert_eq!((&*stats.backend, &*stats.jobs[0].backend), ("xdp", chosen));
        assert!(stats.host_program["over_udp"].as_u64() > Some(0), "{:?}", stats.host_program);
    }
    exact::assert_sums("over the faster backend", 1, &crew.allreduce(1, 100_000));
    let former = sumac.upgrade_daemon(0).unwrap();
    exact::assert_sums("after an upgrade", 2, &crew.allreduce(2, 100_000));
    let stats = sumac.client(0).unwrap().stats().unwrap();
    assert_eq!(stats.jobs[0].backend, chosen);
    let sent: u64 = stats.ports.iter().filter_map(|port| port["udp"]["sent"].as_u64()).sum();
    assert_eq!(sent > 0, chosen == "udp", "what the new daemon sends: {:?}", stats.ports);
    crew.leave();
    drop(former);
    let crew = Crew::join(sumac, "next");
    assert!(crew.trainers[0].job.opened().slots_reason.contains("UDP "), "the new daemon has both, too");
    exact::assert_sums("the next job", 3, &crew.allreduce(3, 100_000));
    crew.leave();
}

#[test]
fn a_job_over_a_host_aggregator_uses_the_faster_backend() {
    let options = SumacOptions { is_auto: true, backend: Backend::Udp, ..SumacOptions::default() };
    // Two shards: each thread has both sockets.
    with_sumac(LabSpec { queues: 2, ..LabSpec::new(2) }, &options, use_the_faster_backend);
}

#[test]
fn a_job_over_the_programs_uses_the_faster_backend() {
    let options = SumacOptions { is_auto: true, ..SumacOptions::default() };
    with_sumac(LabSpec::new(2), &options, use_the_faster_backend);
}

#[test]
fn a_host_whose_packet_filter_drops_udp_has_all_workers_use_af_xdp() {
    let options = SumacOptions { is_auto: true, backend: Backend::Udp, ..SumacOptions::default() };
    with_sumac(LabSpec::new(2), &options, |sumac| {
        let rules = "table inet filter { chain input { type filter hook input priority 0; \
            meta l4proto udp drop; }; }\n";
        sumac.lab().worker(LATE).nft(rules).unwrap();
        for (name, is_measured) in [("filtered", true), ("later", false)] {
            let crew = Crew::join(sumac, name);
            let opened = crew.trainers[0].job.opened();
            assert_eq!(opened.backend, "xdp", "{}", opened.slots_reason);
            let reason = &opened.slots_reason;
            assert_eq!(reason.contains("(0): AF_XDP"), is_measured, "{reason}");
            exact::assert_sums(name, 1, &crew.allreduce(1, 100_000));
            crew.leave();
        }
    });
}
