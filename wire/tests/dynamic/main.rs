//! Checks the dynamic mode's decisions exhaustively: slots that other jobs take and that are lost at any time, two
//! levels, and the parameter host, on a network that loses, delays, reorders and duplicates.
//!
//! A packet that was sent once may arrive at any later time, any number of times, or never: that
//! is every behaviour of such a network at once.

mod model;
mod packet;

use model::System;
use stateright::{Checker, HasDiscoveries, Model};

fn hold(what: &str, system: System) {
    let checker = system.checker().finish_when(HasDiscoveries::AnyFailures).threads(2).spawn_bfs().join();
    println!("{what}: {} states", checker.unique_state_count());
    assert!(checker.is_done());
    checker.assert_properties();
}

const ONE_LEVEL: System =
    System { racks: &[2], direct: 0, two_levels: false, chunks: 1, window: 1, shared: true };

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
