//! A daemon with `backend = "auto"` that starts before its network.
//!
//! ```text
//! w0 net0 --[c0]-- port0 +-----+
//! w1 net0 --[c1]-- port1 | agg |      w1's interface has no address when its daemon starts
//!                        +-----+
//! ```

use sumac_lab::LabSpec;
use sumac_lab::Topology;
use sumac_lab::deployment::SumacOptions;
use sumac_tests::site::with_sumac;
use sumac_tests::wait::eventually;
use sumac_tests::{Crew, exact};

/// The rank whose network comes late.
const LATE: u16 = 1;

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
    with_sumac(spec, &SumacOptions { is_auto: true, ..SumacOptions::default() }, |sumac| {
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
    with_sumac(spec, &SumacOptions { is_auto: true, ..SumacOptions::default() }, |sumac| {
        boot_before_the_network(sumac);
        let crew = Crew::join(sumac, "first");
        exact::assert_sums("the first job", 1, &crew.allreduce(1, 10_000));
        assert_eq!(crew.trainers[usize::from(LATE)].job.opened().backend, "xdp");
        crew.leave();
    });
}
