//! Checks the slot's decision and the workers' rule exhaustively, with exponent rounds, work stealing and two
//! levels of aggregators, on a network that loses, delays, reorders and duplicates.
//!
//! A packet that was sent once may arrive at any later time, any number of times, or never: that is every
//! behaviour of such a network at once, and retransmission too. `algorithm3.rs` checks the plain case, and
//! that the paper's listing does not withstand it.

mod aggregator;
mod model;
mod packet;

use model::{KEPT, System};
use stateright::{Checker, HasDiscoveries, Model};

fn hold(what: &str, system: System) {
    let checker = system.checker().finish_when(HasDiscoveries::AnyFailures).threads(2).spawn_bfs().join();
    println!("{what}: {} states", checker.unique_state_count());
    assert!(checker.is_done());
    checker.assert_properties();
}

/// Searches the nearest 1,000,000 steps of a system that takes minutes, or gigabytes, as a whole: with
/// `SUMAC_WHOLE_MODELS=1` all of it.
fn search(what: &str, system: System) {
    if std::env::var_os("SUMAC_WHOLE_MODELS").is_some() {
        return hold(what, system);
    }
    let checker = system.checker().target_state_count(1_000_000).threads(2).spawn_bfs().join();
    println!("{what}: {} states, not all", checker.unique_state_count());
    assert!(checker.discoveries().is_empty(), "{:?}", checker.discoveries().keys());
}

const PLAIN: System = System {
    racks: 0,
    middles: 0,
    workers: 2,
    slots_log2: 0,
    chunks: 4,
    stealing: false,
    rounds: false,
    questions: false,
    limit: 0,
    hostile: false,
    infers: false,
    whole: false,
    lane_budget: false,
    empties: false,
};

const FLUSHES: System = System { limit: 1, ..PLAIN };

#[test]
fn exponent_rounds() {
    hold("2 workers, 1 slot, exponent rounds", System { rounds: true, chunks: 3, ..PLAIN });
}

#[test]
fn work_stealing() {
    hold("2 workers, 2 slots, work stealing", System { slots_log2: 1, chunks: 6, stealing: true, ..PLAIN });
}

#[test]
fn three_workers_steal() {
    hold("3 workers, 1 slot, work stealing", System { workers: 3, chunks: 4, stealing: true, ..PLAIN });
}

//= switchml#7 racks below a root
#[test]
fn two_levels() {
    hold("2 racks of 2 workers, 1 slot", System { racks: 2, chunks: 3, ..PLAIN });
}

#[test]
fn two_levels_of_one_worker_each() {
    hold("2 racks of 1 worker, 1 slot", System { racks: 2, workers: 1, chunks: 4, ..PLAIN });
}

#[test]
fn two_levels_with_exponent_rounds() {
    search(
        "2 racks of 1 worker, 1 slot, exponent rounds",
        System { racks: 2, workers: 1, chunks: 2, rounds: true, ..PLAIN },
    );
}

//= switchml#7 racks below a root
#[test]
fn three_levels() {
    const TREE: System = System { racks: 2, middles: 1, workers: 1, chunks: 2, ..PLAIN };
    hold("1 middle of 2 racks of 1 worker, 1 slot", TREE);
    hold("2 middles of 1 rack of 1 worker, 1 slot", System { middles: 2, chunks: 4, ..TREE });
    search("1 middle of 2 racks, questions", System { questions: true, ..TREE });
    search("1 middle of 2 racks, exponent rounds", System { rounds: true, ..TREE });
}

#[test]
fn questions() {
    hold("2 workers, 1 slot, questions", System { questions: true, ..PLAIN });
}

#[test]
fn questions_and_exponent_rounds() {
    hold(
        "2 workers, 1 slot, questions, exponent rounds",
        System { questions: true, rounds: true, chunks: 2, ..PLAIN },
    );
}

#[test]
fn questions_and_stealing() {
    hold(
        "2 workers, 2 slots, questions, work stealing",
        System { questions: true, slots_log2: 1, chunks: 4, stealing: true, ..PLAIN },
    );
}

#[test]
fn questions_over_two_levels() {
    hold(
        "2 racks of 1 worker, 1 slot, questions",
        System { questions: true, racks: 2, workers: 1, chunks: 2, ..PLAIN },
    );
}

#[test]
fn two_workers_with_partial_sums() {
    hold("2 workers, 1 slot, flushes", FLUSHES);
    hold("2 workers, 1 slot, flushes of all chunks", System { limit: 2, chunks: 3, ..FLUSHES });
}

/// Whatever limits and operations one worker sends, no worker is left out of more chunks than all have agreed
/// on: of none in a job without a bound.
#[test]
fn a_worker_does_not_choose_the_limit() {
    for limit in [0, 1] {
        hold("2 workers, 1 slot, hostile flushes", System { hostile: true, limit, ..PLAIN });
        let system = System { workers: 3, chunks: 3, hostile: true, limit, ..PLAIN };
        search("3 workers, 1 slot, hostile flushes", system);
    }
}

#[test]
fn three_workers_with_partial_sums() {
    search("3 workers, 1 slot, flushes", System { workers: 3, chunks: 3, ..FLUSHES });
}

#[test]
fn partial_sums_in_two_slots() {
    search(
        "2 workers, 2 slots, flushes, work stealing",
        System { slots_log2: 1, chunks: 4, stealing: true, ..FLUSHES },
    );
}

#[test]
fn partial_sums_and_questions() {
    hold("2 workers, 1 slot, flushes, questions", System { questions: true, chunks: 3, ..FLUSHES });
}

#[test]
fn partial_sums_and_exponent_rounds() {
    hold("2 workers, 1 slot, flushes, exponent rounds", System { rounds: true, chunks: 3, ..FLUSHES });
}

/// A worker alone below its aggregator is left out of nothing.
#[test]
fn flushes_of_racks_of_one() {
    hold("2 racks of 1 worker, 1 slot, flushes", System { racks: 2, workers: 1, chunks: 2, ..FLUSHES });
}

/// A rack completes its part without some of its workers, and the racks above name whom the sum leaves out.
#[test]
fn flushes_of_racks() {
    const RACKS: System = System { racks: 2, chunks: 2, ..FLUSHES };
    hold("1 rack of 2 workers, 1 slot, flushes", System { racks: 1, chunks: 3, ..RACKS });
    search("2 racks of 2 workers, 1 slot, flushes", RACKS);
    search("2 racks of 2 workers, 1 slot, flushes, questions", System { questions: true, ..RACKS });
    search("1 rack of 2 workers, hostile flushes", System { racks: 1, chunks: 3, hostile: true, ..RACKS });
    search("1 middle of 1 rack of 2 workers, flushes", System { racks: 1, middles: 1, ..RACKS });
}

/// Contributions without values: no sum is one of what its slot held before, and nobody waits for good.
#[test]
fn contributions_without_values() {
    const EMPTIES: System = System { empties: true, ..PLAIN };
    hold("2 workers, 1 slot, without values", EMPTIES);
    hold("3 workers, 1 slot, without values", System { workers: 3, chunks: 3, ..EMPTIES });
    search(
        "2 workers, 2 slots, without values, work stealing",
        System { slots_log2: 1, chunks: 4, stealing: true, ..EMPTIES },
    );
    search("2 racks of 2 workers, without values", System { racks: 2, chunks: 2, ..EMPTIES });
    search(
        "2 workers, 1 slot, without values, exponent rounds",
        System { rounds: true, chunks: 2, ..EMPTIES },
    );
}

#[test]
fn partial_sums_and_contributions_without_values() {
    // The last chunk's version has held another one.
    const EMPTIES: System = System { empties: true, chunks: 4, ..FLUSHES };
    hold("2 workers, 1 slot, flushes, without values", EMPTIES);
    search("3 workers, 1 slot, flushes, without values", System { workers: 3, chunks: 3, ..EMPTIES });
}

/// The model finds what `received` prevents: with partial sums, a complete chunk does not show that all have
/// the result of the one before.
#[test]
fn without_received_a_result_is_given_up_too_early() {
    let system = System { infers: true, ..FLUSHES };
    let checker = system.checker().finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    assert!(checker.discovery(KEPT).is_some(), "{system:?}");
}

/// As long as every sum holds every worker, `received` shows nothing that a complete chunk does not.
#[test]
fn without_partial_sums_inference_is_enough() {
    hold("2 workers, 1 slot, inferring", System { infers: true, ..PLAIN });
}

/// The profile of a switch: flushes are contributions like others, and `received` is neither kept nor asked
/// for.
#[test]
fn whole_sums_need_no_received() {
    const WHOLE: System = System { whole: true, ..FLUSHES };
    hold("2 workers, 1 slot, whole sums", WHOLE);
    hold(
        "3 workers, 1 slot, whole sums, work stealing",
        System { workers: 3, chunks: 3, stealing: true, limit: 0, ..WHOLE },
    );
    hold("2 racks of 1 worker, 1 slot, whole sums", System { racks: 2, workers: 1, chunks: 2, ..WHOLE });
}

/// A switch's budget: one count of flushed chunks for a lane, and terms of its latest operation.
#[test]
fn flushes_with_one_budget_for_a_lane() {
    const LANE: System = System { lane_budget: true, ..FLUSHES };
    hold("2 workers, 1 slot, lane's budget", LANE);
    hold("2 workers, 1 slot, lane's budget, questions", System { questions: true, chunks: 3, ..LANE });
    hold("2 workers, 1 slot, lane's budget, rounds", System { rounds: true, chunks: 3, ..LANE });
    hold("2 workers, 1 slot, lane's budget, hostile flushes", System { hostile: true, ..LANE });
    search("3 workers, 1 slot, lane's budget", System { workers: 3, chunks: 3, ..LANE });
    search(
        "2 workers, 2 slots, lane's budget, work stealing",
        System { slots_log2: 1, chunks: 4, stealing: true, ..LANE },
    );
}

/// The model finds a switch's early drops as well.
#[test]
fn a_lanes_budget_without_received_gives_up_too_early() {
    let system = System { lane_budget: true, infers: true, ..FLUSHES };
    let checker = system.checker().finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    assert!(checker.discovery(KEPT).is_some(), "{system:?}");
}
