//! Foreign traffic between two workers' hosts goes on through everything that Sumac does on their interfaces.
//!
//! ```text
//! w0 net0 ------ port0 +-----+
//! w1 net0 ------ port1 | agg |     iperf3, TCP and UDP: w0 -- agg (which forwards) -- w1
//!                      +-----+
//! ```

use nix::sys::signal::Signal;
use sumac_lab::LabSpec;
use sumac_lab::deployment::{Deployment, SumacOptions};
use sumac_tests::traffic::{Kind, Traffic};
use sumac_tests::{Crew, Site, exact, stats};

const COUNT: usize = 200_000;

#[test]
fn tcp_and_udp_go_on_through_attach_sum_kill_and_detach() {
    let Some(site) = Site::up(LabSpec::new(2)) else { return };
    let mut traffic = [Kind::Tcp, Kind::Udp].map(|kind| Traffic::start(&site, kind, 0, 1));
    let mut assert_flow = |when: &str| traffic.iter_mut().for_each(|traffic| traffic.assert_flows(when));

    let mut sumac = Deployment::start(&site, &SumacOptions::default()).unwrap();
    assert_flow("after attach");
    let crew = Crew::join(&sumac, "beside");
    exact::assert_sums("beside foreign traffic", 1, &crew.allreduce(1, COUNT));
    let pending = crew.submit(2, COUNT);
    assert_flow("during a sum");
    exact::assert_sums("beside foreign traffic", 2, &crew.results(pending));
    assert!(stats::at_host(&crew.trainers[1].client)["foreign"] > 0, "the traffic passed the program");
    assert!(stats::at_aggregator(&sumac)["foreign"] > 0, "the traffic passed the aggregator's program");

    sumac.daemon(1).unwrap().signal(Signal::SIGKILL);
    drop(crew);
    sumac.stop_daemon(1);
    assert_flow("with the daemon dead");
    for rank in 0..2 {
        sumac.sumac(rank, &["detach", site.worker_interface()]).unwrap();
    }
    assert_flow("after the workers' detach");
    sumac.sumac_agg(&["detach", "--all"]).unwrap();
    assert_flow("after the aggregator's detach");

    traffic.into_iter().for_each(Traffic::end);
    drop(sumac);
    site.leave_nothing();
}
