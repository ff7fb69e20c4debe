//! Checks the dynamic mode's decisions exhaustively: slots that other jobs take and that are lost at any time, two
//! levels, and the parameter host, on a network that loses, delays, reorders and duplicates.
//!
//! A packet that was sent once may arrive at any later time, any number of times, or never: that
//! is every behaviour of such a network at once.

mod model;

use model::{KEPT, System};
use stateright::{Checker, HasDiscoveries, Model};

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
    shared: true,
    flushes: false,
    infers: false,
};

/// Workers that send to the host themselves; the stream is longer than what it keeps.
const FLUSHES: System = System { racks: &[], direct: 2, chunks: 4, flushes: true, ..ONE_LEVEL };

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

#[test]
fn two_levels() {
    hold("2 racks of 1 worker", System { racks: &[1, 1], two_levels: true, ..ONE_LEVEL });
}

#[test]
fn a_rack_beside_the_host() {
    hold("a rack of 2 workers", System { racks: &[2], two_levels: true, ..ONE_LEVEL });
}

#[test]
fn a_rack_and_a_worker_beside_the_host() {
    hold(
        "a rack of 2 workers, and 1 direct",
        System { racks: &[2], direct: 1, two_levels: true, ..ONE_LEVEL },
    );
}

#[test]
fn chunks_give_way_two_windows_later() {
    hold("2 workers, 4 chunks, window 1", System { flushes: false, ..FLUSHES });
}

#[test]
fn two_workers_with_partial_sums() {
    hold("2 workers, 4 chunks, window 1, flushes", FLUSHES);
}

#[test]
fn two_workers_with_partial_sums_and_a_window() {
    hold("2 workers, 5 chunks, window 2, flushes", System { chunks: 5, window: 2, ..FLUSHES });
}

#[test]
fn three_workers_with_partial_sums() {
    hold("3 workers, 3 chunks, window 1, flushes", System { direct: 3, chunks: 3, ..FLUSHES });
}

/// The model finds what `received` prevents: with partial sums, a complete chunk does not show that all have the results
/// of those a window older.
#[test]
fn without_received_a_result_is_given_up_too_early() {
    let checker = System { infers: true, ..FLUSHES }.checker();
    let checker = checker.finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    assert!(checker.discovery(KEPT).is_some());
}
