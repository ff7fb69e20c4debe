//! Jobs share slow cables with each other, and what becomes of them without congestion control. The cables
//! mark congestion.
//!
//! Shares are of what passed between two looks at the counters, while both were well under way: neither how
//! they begin nor how fast this machine is has a part in them.

use sumac_client::Reduction;
use sumac_lab::LabSpec;
use sumac_lab::deployment::{Deployment, DynamicOptions};
use sumac_lab::units::Rate;
use sumac_tests::site::with_sumac;
use sumac_tests::{Crew, exact};

use super::{lab, sumac};
use crate::coexistence::{elements, results, until_all_have};

/// 12 MB: 2 s alone at the cables' rate.
const COUNT: usize = 3_000_000;

/// Cables so slow that a busy machine keeps up with them.
fn in_marking_lab(workers: u16, dynamic: DynamicOptions, body: impl FnOnce(&mut Deployment<'_>)) {
    let spec = LabSpec { rate: Some(Rate(50_000_000)), ecn_threshold_kb: Some(64), ..lab(workers) };
    with_sumac(spec, &sumac(dynamic), body);
}

#[test]
fn two_jobs_share_slow_cables() {
    in_marking_lab(2, DynamicOptions::default(), |sumac| {
        let crews = ["one", "two"].map(|name| Crew::join(sumac, name));
        let tensors = crews.each_ref().map(|crew| crew.prepare::<f32>(1, COUNT));
        let chunks = COUNT as u64 / elements(&crews[0]);
        let both = crews.iter().zip(tensors);
        let pending: Vec<_> = both.map(|(crew, tensors)| crew.hand_in(tensors, Reduction::Sum)).collect();
        // From where both have an eighth until one has three quarters.
        let look = || crews.each_ref().map(results);
        let begin = until_all_have(chunks / 8, 2, look);
        let end = until_all_have(chunks * 3 / 4, 1, || {
            let now = look();
            [now[0].max(now[1]), now[0], now[1]]
        });
        let had = [end[1] - begin[0], end[2] - begin[1]];
        for (crew, pending) in crews.iter().zip(pending) {
            exact::assert_sums("beside each other", 1, &crew.results(pending));
        }
        let halvings = crews.each_ref().map(|crew| crew.counter("halvings"));
        let injected = sumac.lab().injected().unwrap();
        println!("{begin:?} results at first, then {had:?}; {halvings:?} halvings");
        println!("{} marked up, {} down", injected.up.marked, injected.down.marked);
        assert!(injected.up.marked + injected.down.marked > 0, "the cables marked nothing");
        assert!(halvings.iter().all(|halvings| *halvings > 0), "somebody did not yield: {halvings:?}");
        let (less, more) = (had[0].min(had[1]), had[0].max(had[1]));
        assert!(less * 2 > more, "one job has {less} results and the other {more}");
        crews.into_iter().for_each(Crew::leave);
    });
}

/// Returns the retransmissions per hundred chunks of two jobs without an aggregator, whose parameter host has
/// all their packets on its cable.
fn sent_again(congestion_control: bool) -> u64 {
    let mut again = 0;
    let none = DynamicOptions { has_aggregator: false, congestion_control, ..DynamicOptions::default() };
    in_marking_lab(4, none, |sumac| {
        let crews = ["one", "two"].map(|name| Crew::join(sumac, name));
        let tensors = crews.each_ref().map(|crew| crew.prepare::<f32>(1, COUNT / 4));
        let both = crews.iter().zip(tensors);
        let pending: Vec<_> = both.map(|(crew, tensors)| crew.hand_in(tensors, Reduction::Sum)).collect();
        for (crew, pending) in crews.iter().zip(pending) {
            exact::assert_sums("into one host", 1, &crew.results(pending));
        }
        let count = |name| crews.iter().map(|crew| crew.counter(name)).sum::<u64>();
        let (resent, chunks) = (count("resent"), count("chunks_sent"));
        let injected = sumac.lab().injected().unwrap();
        let dropped = injected.up.overflowed + injected.down.overflowed;
        println!(
            "congestion control {congestion_control}: {resent} of {chunks} chunks sent again, {dropped} \
            dropped"
        );
        again = resent * 100 / chunks;
        crews.into_iter().for_each(Crew::leave);
    });
    again
}

#[test]
fn without_congestion_control_jobs_collapse() {
    let [with, without] = [true, false].map(sent_again);
    assert!(without > 4 * with.max(1), "{with} and {without} of a hundred chunks");
}
