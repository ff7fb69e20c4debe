//! A worker's interface that gets another address, as by DHCP, or another name, while the daemon runs.
//!
//! ```text
//! w0 net0 --[c0]-- port0 +-----+
//! w1 net0 --[c1]-- port1 | agg |      w1's interface changes
//!                        +-----+
//! ```

use std::net::Ipv4Addr;

use sumac_lab::deployment::{Deployment, SumacOptions};
use sumac_lab::units::Rate;
use sumac_lab::{LabSpec, Topology};
use sumac_tests::crew::assert_job_failed;
use sumac_tests::site::with_sumac;
use sumac_tests::wait::eventually;
use sumac_tests::{Crew, exact, stats};

const SEED: u64 = 5;
/// The rank whose interface changes.
const RANK: u16 = 1;

/// A lab with slow cables, so that a sum is half way when something happens.
fn in_lab(body: impl FnOnce(&mut Deployment<'_>)) {
    let spec = LabSpec { rate: Some(Rate(50_000_000)), topology: Topology::PerPort, ..LabSpec::new(2) };
    with_sumac(spec, &SumacOptions::default(), body);
}

fn assert_next_job(sumac: &Deployment<'_>, name: &str) {
    let crew = Crew::join(sumac, name);
    exact::assert_sums(name, SEED, &crew.allreduce(SEED, 10_000));
    assert_eq!(crew.trainers[usize::from(RANK)].job.opened().backend, "xdp");
    crew.leave();
}

fn ports(sumac: &Deployment<'_>) -> String {
    serde_json::to_string(&sumac.client(RANK).unwrap().stats().unwrap().ports).unwrap()
}

#[test]
fn a_daemon_follows_its_interfaces_address() {
    in_lab(|sumac| {
        let (former, gateway) = (sumac.lab().spec().worker_ip(RANK), sumac.lab().spec().aggregator_ip(RANK));
        let present = Ipv4Addr::from_bits(former.to_bits() + 100);
        let crew = Crew::join(sumac, "readdressed");
        let pending = crew.submit(SEED, 4_000_000);
        stats::wait_for_results(&crew.trainers[0], 200);
        let (worker, interface) = (sumac.lab().worker(RANK), sumac.lab().worker_interface());
        worker
            .ip(&[
                format!("addr del {former}/24 dev {interface}"),
                format!("addr add {present}/24 dev {interface}"),
                format!("route replace default via {gateway}"),
            ])
            .unwrap();
        assert_job_failed(pending, &former.to_string());
        assert_next_job(sumac, "with the present address");
        assert!(ports(sumac).contains(&present.to_string()), "{}", ports(sumac));
    });
}

#[test]
fn a_daemon_follows_its_interfaces_name() {
    in_lab(|sumac| {
        let crew = Crew::join(sumac, "renamed");
        let pending = crew.submit(SEED, 1_000_000);
        stats::wait_for_results(&crew.trainers[0], 200);
        let (worker, interface) = (sumac.lab().worker(RANK), sumac.lab().worker_interface());
        // A kernel before 6.2 renames no interface that is up.
        worker.ip(&[format!("link set dev {interface} name uplink")]).unwrap();
        exact::assert_sums("under another name", SEED, &crew.results(pending));
        eventually("the present name", || ports(sumac).contains("uplink").then_some(()));
        crew.leave();
        assert_next_job(sumac, "with the present name");
        let status = sumac.sumac(RANK, &["status"]).unwrap();
        assert!(status.contains("uplink"), "{status}");
        worker.ip(&[format!("link set dev uplink name {interface}")]).unwrap();
        eventually("the former name", || ports(sumac).contains(interface).then_some(()));
        assert_next_job(sumac, "with the former name again");
    });
}
