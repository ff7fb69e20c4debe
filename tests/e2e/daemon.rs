//! A daemon that dies leaves its host's program and everybody else's traffic as they were; the next one goes
//! on.
//!
//! ```text
//! w0 net0 ------ port0 +-----+
//! w1 net0 ------ port1 | agg |
//!                      +-----+
//! ```

use nix::sys::signal::Signal;
use sumac_lab::LabSpec;
use sumac_lab::deployment::SumacOptions;
use sumac_tests::site::with_sumac;
use sumac_tests::traffic::{Kind, Traffic};
use sumac_tests::{Crew, exact, stats};

const COUNT: usize = 50_000;

#[test]
fn a_restarted_daemon_serves_over_the_same_program() {
    with_sumac(LabSpec::new(2), &SumacOptions::default(), |sumac| {
        let programs = [0, 1].map(|rank| stats::program_id(sumac, rank));
        let mut traffic = Traffic::start(sumac.lab(), Kind::Tcp, 0, 1);
        for round in 0..3 {
            let crew = Crew::join(sumac, &format!("round{round}"));
            exact::assert_sums(&format!("round {round}"), round, &crew.allreduce(round, COUNT));
            // The job is open when the daemon dies.
            sumac.daemon(0).unwrap().signal(Signal::SIGKILL);
            drop(crew);
            sumac.stop_daemon(0);
            traffic.assert_flows("while the daemon is dead");
            assert_eq!(stats::program_id(sumac, 0), programs[0], "the program outlives the daemon");
            sumac.start_daemon(0).unwrap();
        }
        let crew = Crew::join(sumac, "last");
        exact::assert_sums("with the last daemon", 9, &crew.allreduce(9, COUNT));
        for trainer in &crew.trainers {
            stats::assert_bound(&trainer.client, sumac.options().backend);
        }
        crew.leave();
        traffic.assert_flows("at last");
        traffic.end();
        assert_eq!([0, 1].map(|rank| stats::program_id(sumac, rank)), programs);
    });
}

#[test]
fn auto_uses_af_xdp_where_it_copies_and_says_why() {
    let options = SumacOptions { is_auto: true, ..SumacOptions::default() };
    with_sumac(LabSpec::new(2), &options, |sumac| {
        let crew = Crew::join(sumac, "auto");
        exact::assert_sums("auto", 1, &crew.allreduce(1, COUNT));
        for trainer in &crew.trainers {
            stats::assert_bound(&trainer.client, sumac.options().backend);
            let reason = trainer.client.stats().unwrap().backend_reason;
            assert!(reason.contains("no zero-copy"), "{reason}");
        }
        let socket = sumac.socket(0);
        let status = sumac.sumac(0, &["status", "--socket", socket.to_str().unwrap()]).unwrap();
        assert!(status.contains("backend auto: xdp is used since AF_XDP has no zero-copy here"), "{status}");
        crew.leave();
    });
}
