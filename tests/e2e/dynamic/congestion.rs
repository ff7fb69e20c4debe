//! Two dynamic jobs share slow cables, and one shares them with TCP. The cables mark congestion.

use std::time::Instant;

use sumac_lab::LabSpec;
use sumac_lab::deployment::{Deployment, DynamicOptions};
use sumac_lab::units::Rate;
use sumac_tests::site::with_sumac;
use sumac_tests::traffic::Traffic;
use sumac_tests::wait::eventually;
use sumac_tests::{Crew, exact, stats};

use super::{lab, sumac};

/// 8 MB: 0.7 s alone at the cables' rate.
const COUNT: usize = 2_000_000;

fn in_marking_lab(body: impl FnOnce(&mut Deployment<'_>)) {
    let spec = LabSpec { rate: Some(Rate(100_000_000)), ecn_threshold_kb: Some(64), ..lab(2) };
    with_sumac(spec, &sumac(DynamicOptions::default()), body);
}

/// Results of the first worker.
fn results(crew: &Crew) -> u64 {
    stats::counter(&crew.trainers[0], "results")
}

#[test]
fn two_jobs_share_slow_cables() {
    in_marking_lab(|sumac| {
        let crews = ["one", "two"].map(|name| Crew::join_dynamic(sumac, name));
        let pending = crews.each_ref().map(|crew| crew.submit(1, 2 * COUNT));
        let start = crews.each_ref().map(results);
        // What both had when the first of them has half of its tensor.
        let half = (COUNT / usize::from(crews[0].trainers[0].job.opened().elements)) as u64;
        let had = eventually("half a tensor", || {
            let now = crews.each_ref().map(results);
            let had = [now[0] - start[0], now[1] - start[1]];
            (had[0].max(had[1]) > half).then_some(had)
        });
        for (crew, pending) in crews.iter().zip(pending) {
            exact::assert_sums("beside each other", 1, &crew.results(pending));
        }
        let halvings = crews.each_ref().map(|crew| crew.counter("halvings"));
        let marked = crews.each_ref().map(|crew| crew.counter("marked"));
        println!("results at half time {had:?}; {halvings:?} halvings, {marked:?} marked results");
        let injected = sumac.lab().injected().unwrap();
        println!("{} marked up, {} down", injected.up.marked, injected.down.marked);
        assert!(injected.up.marked + injected.down.marked > 0, "the cables marked nothing");
        assert!(halvings.iter().all(|halvings| *halvings > 0), "somebody did not yield: {halvings:?}");
        let (less, more) = (had[0].min(had[1]), had[0].max(had[1]));
        assert!(less * 4 > more, "one job has {less} results and the other {more}");
        crews.into_iter().for_each(Crew::leave);
    });
}

#[test]
fn a_job_beside_tcp_leaves_it_a_share_and_keeps_one() {
    in_marking_lab(|sumac| {
        let crew = Crew::join_dynamic(sumac, "beside");
        let mut traffic = Traffic::start_greedy(sumac.lab(), 0, 1);
        let (begun, before) = (Instant::now(), traffic.bytes());
        exact::assert_sums("beside TCP", 1, &crew.allreduce(1, COUNT));
        let took = begun.elapsed();
        traffic.assert_flows("after the sum");
        let job = (COUNT * 4) as f64 * 8.0 / took.as_secs_f64() / 1e6;
        let tcp = (traffic.bytes() - before) * 8.0 / begun.elapsed().as_secs_f64() / 1e6;
        println!("{took:.2?}: the job had {job:.0} Mbit/s, TCP {tcp:.0}");
        // Both yield to the same marks: nobody has less than a twentieth of the link.
        assert!(job > 5.0 && tcp > 5.0, "the job {job:.1} Mbit/s, TCP {tcp:.1}");
        crew.leave();
        traffic.end();
    });
}
