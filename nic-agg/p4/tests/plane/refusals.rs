//! Jobs that the switch cannot have: they are refused, and leave nothing.

use std::net::Ipv4Addr;

use sumac_control::plane::{DataPlane as _, JobInstall, Level, PlaneError, WorkerInstall};
use sumac_job::JobTerms;

use super::{dynamic, job, plane, rack, table, worker};

#[test]
fn what_the_switch_cannot_do_is_refused() {
    let (_, plane) = plane();
    let stranger = WorkerInstall { ip: Ipv4Addr::new(10, 77, 9, 9), ..worker(1) };
    let error = plane.install(&JobInstall { workers: vec![worker(1), stranger], ..job(1, 1) }).unwrap_err();
    assert!(
        matches!(&error, PlaneError::NoWay { rank: 1, what, .. } if what.contains("in switch.toml")),
        "{error}"
    );
    let refuse = |job: JobInstall| plane.install(&job).unwrap_err().to_string();
    for (job, elements, words) in [(job(1, 1), 257, "takes 1 to 256"), (dynamic(1, 1), 65, "takes 1 to 64")] {
        let terms = JobTerms { elements, ..job.terms.clone() };
        assert!(refuse(JobInstall { terms, ..job }).contains(words), "{elements}");
    }
    assert!(refuse(JobInstall { first_slot: 2042, ..job(1, 1) }).contains("not all in the pool of 2048"));
    plane.install(&job(1, 1)).unwrap();
    assert!(refuse(JobInstall { first_slot: 40, ..job(2, 1) }).contains("belong to job 1"));
}

/// Its program takes all packets that are marked `level` for its parent's.
#[test]
fn a_switch_between_racks_and_their_root_is_refused() {
    let (memory, plane) = plane();
    for install in [rack(job(1, 1)), rack(dynamic(1, 1))] {
        let Level::Rack { rack, racks, contributors, parent, .. } = install.level else { panic!("a rack") };
        let level = Level::Rack { rack, racks, contributors, parent, has_racks: true };
        let refused = plane.install(&JobInstall { level, ..install }).unwrap_err().to_string();
        assert!(refused.contains("a P4 switch is the only aggregator"), "{refused}");
    }
    assert!(table(&memory, "jobs").is_empty() && plane.jobs().is_empty());
}
