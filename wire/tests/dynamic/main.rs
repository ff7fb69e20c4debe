//! Checks the dynamic mode's decisions exhaustively: slots that other chunks and jobs take, also those whose
//! sum has left, and that are lost at any time, two levels, and the parameter host, on a network that loses,
//! delays, reorders and duplicates.
//!
//! A packet that was sent once may arrive at any later time, any number of times, or never: that
//! is every behaviour of such a network at once.
//!
//! All states of each system are checked, and the systems are small: two or three workers, one or two slots,
//! as many chunks as a window needs to move on, one renewal. Several workers with several chunks and several
//! slots at once, and overflow or renewal at two levels with another job's slots and mixed paths, have too
//! many states for a test of seconds; `tools/sim` runs such by random seeds. Marks of collisions and
//! congestion, exponents, and disagreeing operations are left out.

mod model;
mod recovery;
mod system;

use model::KEPT;
use stateright::{Checker, HasDiscoveries, Model};
use system::{Overflow, System};

fn hold(what: &str, system: System) {
    let checker = system.checker().finish_when(HasDiscoveries::AnyFailures).threads(2).spawn_bfs().join();
    println!("{what}: {} states", checker.unique_state_count());
    assert!(checker.is_done());
    checker.assert_properties();
}

const ONE_LEVEL: System = System {
    racks: &[2],
    direct: 0,
    two_levels: false,
    chunks: 1,
    window: 1,
    slots: 1,
    bypasses: false,
    overflow: Overflow::None,
    renews: false,
    shared: true,
    limit: 0,
    stated: false,
    hostile: false,
    infers: false,
};

/// Workers that send to the host themselves; the stream is longer than what it keeps.
const FLUSHES: System = System { racks: &[], direct: 2, chunks: 4, limit: 2, ..ONE_LEVEL };

#[test]
fn one_chunk_of_two_workers() {
    hold("2 workers, 1 chunk", ONE_LEVEL);
}

#[test]
fn one_chunk_of_three_workers() {
    hold("3 workers, 1 chunk", System { racks: &[3], ..ONE_LEVEL });
}

#[test]
fn two_workers_meet_in_one_slot_with_all_their_chunks() {
    hold("2 workers, 2 chunks, window 1", System { chunks: 2, ..ONE_LEVEL });
}

/// Workers learn of another slot after a collision at different times: any packet may name any slot.
#[test]
fn two_workers_with_two_slots() {
    hold("2 workers, 1 chunk, 2 slots", System { slots: 2, ..ONE_LEVEL });
}

#[test]
fn three_workers_with_two_slots() {
    let racks = &[3];
    hold("3 workers, 1 chunk, 2 slots", System { racks, slots: 2, shared: false, ..ONE_LEVEL });
}

#[test]
fn two_chunks_with_two_slots() {
    hold(
        "2 workers, 2 chunks, window 1, 2 slots",
        System { chunks: 2, slots: 2, shared: false, ..ONE_LEVEL },
    );
}

/// Each packet that is sent again goes through the aggregators or past them, as a worker's does that takes
/// the aggregator for dead and then not.
#[test]
fn mixed_paths() {
    hold("2 workers, 1 chunk, mixed paths", System { bypasses: true, ..ONE_LEVEL });
    hold(
        "2 workers, 2 chunks, window 1, mixed paths",
        System { chunks: 2, bypasses: true, shared: false, ..ONE_LEVEL },
    );
    hold(
        "3 workers, 1 chunk, mixed paths",
        System { racks: &[3], bypasses: true, shared: false, ..ONE_LEVEL },
    );
}

#[test]
fn mixed_paths_at_two_levels() {
    let system = System { two_levels: true, bypasses: true, ..ONE_LEVEL };
    hold("2 racks of 1 worker, mixed paths", System { racks: &[1, 1], ..system });
    hold("a rack of 2 workers, mixed paths", system);
}

#[test]
fn a_value_that_overflows() {
    let system = System { overflow: Overflow::Value, ..ONE_LEVEL };
    hold("2 workers, 1 chunk, a value overflows", system);
    hold("2 workers, 2 chunks, a value overflows", System { chunks: 2, ..system });
}

#[test]
fn sums_that_overflow() {
    let system = System { overflow: Overflow::Sum, ..ONE_LEVEL };
    hold("2 workers, 1 chunk, sums overflow", system);
    hold("3 workers, 1 chunk, sums overflow", System { racks: &[3], shared: false, ..system });
    hold("2 racks of 1 worker, sums overflow", System { racks: &[1, 1], two_levels: true, ..system });
}

#[test]
fn sums_that_overflow_on_mixed_paths() {
    let system = System { overflow: Overflow::Sum, bypasses: true, ..ONE_LEVEL };
    hold("2 workers, 1 chunk, sums overflow, mixed paths", system);
}

//= atp#A.3 replacement of a worker
#[test]
fn a_worker_is_replaced() {
    let system = System { renews: true, ..ONE_LEVEL };
    hold("2 workers, 1 chunk, renewal", system);
    hold("2 workers, 2 chunks, renewal", System { chunks: 2, shared: false, ..system });
    hold("2 workers, 4 chunks, renewal, no aggregator", System { renews: true, limit: 0, ..FLUSHES });
}

#[test]
fn a_worker_is_replaced_below_two_levels() {
    hold(
        "2 racks of 1 worker, renewal",
        System { racks: &[1, 1], two_levels: true, renews: true, ..ONE_LEVEL },
    );
}

#[test]
fn a_worker_is_replaced_while_sums_overflow() {
    let system = System { renews: true, overflow: Overflow::Sum, ..ONE_LEVEL };
    hold("2 workers, 1 chunk, renewal, sums overflow", system);
}

//= atp#3.4 two levels of aggregation
#[test]
fn two_levels() {
    hold("2 racks of 1 worker", System { racks: &[1, 1], two_levels: true, ..ONE_LEVEL });
}

#[test]
fn a_rack_beside_the_host() {
    hold("a rack of 2 workers", System { racks: &[2], two_levels: true, ..ONE_LEVEL });
}

/// Partial sums of the rack and a worker's own packets meet at the second level.
#[test]
fn a_rack_and_a_worker_beside_the_host() {
    hold(
        "a rack of 2 workers, and 1 direct",
        System { racks: &[2], direct: 1, two_levels: true, ..ONE_LEVEL },
    );
}

#[test]
fn chunks_give_way_two_windows_later() {
    hold("2 workers, 4 chunks, window 1", System { limit: 0, ..FLUSHES });
}

#[test]
fn two_workers_with_partial_sums() {
    hold("2 workers, 4 chunks, window 1, flushes", FLUSHES);
}

/// Whatever limits one worker sends, no worker is left out of more chunks than all have agreed on.
#[test]
fn a_worker_does_not_choose_the_limit() {
    hold("2 workers, 4 chunks, hostile flushes", System { hostile: true, limit: 1, ..FLUSHES });
}

#[test]
fn two_workers_with_partial_sums_and_a_window() {
    hold("2 workers, 5 chunks, window 2, flushes", System { chunks: 5, window: 2, ..FLUSHES });
}

#[test]
fn three_workers_with_partial_sums() {
    hold("3 workers, 3 chunks, window 1, flushes", System { direct: 3, chunks: 3, ..FLUSHES });
}

#[test]
fn flushes_take_what_slots_have() {
    let system = System { racks: &[2], chunks: 1, limit: 1, stated: true, ..ONE_LEVEL };
    hold("2 workers, 1 chunk, flushes", system);
    hold("2 racks of 1 worker, flushes", System { racks: &[1, 1], two_levels: true, ..system });
}

#[test]
fn flushes_of_sums_that_overflow() {
    for overflow in [Overflow::Value, Overflow::Sum] {
        hold(
            "2 workers, flushes, overflow",
            System { racks: &[2], direct: 0, chunks: 1, limit: 1, stated: true, overflow, ..ONE_LEVEL },
        );
    }
}

/// The model finds what `received` prevents: with partial sums, a complete chunk does not show that all have
/// the results of those a window older.
#[test]
fn without_received_a_result_is_given_up_too_early() {
    let checker = System { infers: true, ..FLUSHES }.checker();
    let checker = checker.finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    assert!(checker.discovery(KEPT).is_some());
}
