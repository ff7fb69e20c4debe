//! Parameter hosts: which a job gets, and what their coming and going means.

use super::{
    dynamic::{below, dynamic, host, plain, rack},
    *,
};

#[test]
fn a_small_host_holds_nobody_back_unless_it_is_needed() {
    let mut world = World::sharing(&[1, 2]);
    let small = PlaneInfo { shards: 1, ..host(0).plane };
    world.enter(RackEntry { plane: small, ..host(0) });
    let asking = |job: &str, hosts: Option<u16>| dynamic(job, 0, 1, |spec| spec.parameter_hosts = hosts);
    let members = world.all([asking("a", None), asking("b", Some(2))]);
    for member in members {
        let terms = world.terms(member);
        assert_eq!((terms.shards, terms.parameter_hosts.len()), (4, 2));
    }
    let all = world.join(&asking("c", Some(3))).unwrap();
    assert!(world.refusal(all).to_string().contains("3 parameter hosts for 1 shards"));
    world.coordinator.rack_reports(world.now, RackId(1), Err("away".into()));
    world.coordinator.rack_reports(world.now, RackId(2), Err("away".into()));
    let alone = world.join(&asking("d", None)).unwrap();
    assert_eq!(world.terms(alone).shards, 1, "as it has");
}

#[test]
fn a_job_waits_a_moment_for_its_hosts() {
    let mut world = World::sharing(&[]);
    let members = world.all([plain("a", 0, 2), plain("a", 1, 2)]);
    world.pass(seconds(2), &members);
    assert_eq!(world.status(members[0]), Status::Waiting(vec![]));
    world.enter(host(0));
    world.pass(millis(100), &members);
    assert_eq!(world.terms(members[0]).parameter_hosts.len(), 1);

    let mut world = World::sharing(&[3]);
    let asked = |spec: &mut JobSpec| spec.parameter_hosts = Some(2);
    let members = world.all([dynamic("a", 0, 1, asked)]);
    world.pass_with(seconds(4), &members, &[(1, host(3).plane)]);
    let refusal = world.refusal(members[0]);
    assert_eq!(refusal.kind, RefusalKind::Hosts);
    assert!(
        refusal.to_string().contains("needs 2 parameter hosts, and 1 that can sum for it are registered"),
        "{refusal}"
    );
    let hasty = within(1.0, dynamic("b", 0, 1, asked));
    let members = world.all([hasty]);
    world.pass_with(seconds(2), &members, &[(1, host(3).plane)]);
    assert_eq!(world.refusal(members[0]).kind, RefusalKind::Hosts, "at its own deadline");
    let through = world.join(&below(1, plain("c", 0, 1))).unwrap_err();
    assert!(through.to_string().contains("do not join through parameter hosts"), "{through}");
}

#[test]
fn a_worker_below_a_rack_is_no_host_of_its_job() {
    let mut world = World::sharing(&[]);
    world.enter(rack(1));
    let worker = plain("a", 0, 2).worker;
    world.enter(RackEntry { ip: worker.ip, ..host(5) });
    let apart = world.all([plain("b", 0, 2), below(1, plain("b", 1, 2))]);
    assert_eq!(world.terms(apart[0]).parameter_hosts.len(), 1, "one beside the racks is");
    let members = world.all([below(1, plain("a", 0, 2)), plain("a", 1, 2)]);
    let present = [(1, rack(1).plane), (2, host(5).plane)];
    world.pass_with(seconds(4), &[apart, members.clone()].concat(), &present);
    let refusal = world.refusal(members[0]).to_string();
    assert!(refusal.contains("0 that can sum for it") && refusal.contains("below racks"), "{refusal}");
}

#[test]
fn the_loss_of_a_host_ends_its_jobs_by_name() {
    let lost = |world: &mut World, how: &str| -> JobFailure {
        let members = world.all([plain("a", 0, 1)]);
        let untouched = world.start("b", 1);
        match how {
            "silent" => world.pass(seconds(3), &[members.clone(), untouched.clone()].concat()),
            "instance" => {
                world.coordinator.rack_reports(world.now, RackId(1), Ok((2, host(0).plane)));
                world.work();
            }
            "anew" => drop(world.enter(host(0))),
            _ => {
                for _ in 0..120 {
                    world.coordinator.rack_reports(world.now, RackId(1), Err("its port is gone".into()));
                    world.pass(millis(100), &[members.clone(), untouched.clone()].concat());
                }
            }
        }
        assert!(!world.terms(untouched[0]).is_dynamic(), "another job goes on");
        let failure = world.failure(members[0]);
        world.leave(members[0], Outcome::Done);
        assert_eq!(world.plane.len(), 1);
        failure
    };
    for (how, words) in [
        ("silent", "the parameter host `p0` (10.77.200.0) stopped answering"),
        ("instance", "lost its state (instance 1 -> 2)"),
        ("anew", "was started anew"),
        ("away", "its port is gone"),
    ] {
        let failure = lost(&mut World::sharing(&[0]), how);
        assert_eq!(failure.kind, FailureKind::ParameterHost);
        assert!(failure.message.contains(words), "{how}: {failure}");
    }
}

#[test]
fn a_number_that_a_host_keeps_is_not_given_away() {
    let keeps = |kept: &[u16]| PlaneInfo { kept: kept.to_vec(), ..host(0).plane };
    let mut world = World::sharing(&[]);
    world.enter(RackEntry { plane: keeps(&[1, 2]), ..host(0) });
    let members = world.all([plain("a", 0, 1)]);
    assert_eq!(world.terms(members[0]).job, 3);
    world.leave(members[0], Outcome::Done);
    world.coordinator.rack_reports(world.now, RackId(1), Ok((1, keeps(&[3]))));
    let members = world.all([plain("a", 0, 1)]);
    assert_eq!(world.terms(members[0]).job, 1, "not its own from before either");
    world.leave(members[0], Outcome::Done);

    // A name that was given its number before the host entered is given another.
    let mut world = World::sharing(&[]);
    let members = world.all([plain("a", 0, 1)]);
    world.enter(RackEntry { plane: keeps(&[1]), ..host(0) });
    world.pass_with(seconds(1), &members, &[(1, keeps(&[1]))]);
    assert_eq!(world.terms(members[0]).job, 2);
}

#[test]
fn racks_and_hosts_have_names_of_their_own() {
    let mut world = World::sharing(&[0]);
    let namesake = RackEntry { name: "p0".into(), ..rack(0) };
    world.enter(namesake);
    assert_eq!(world.coordinator.poll_lost_rack(), None);
    let other = RackEntry { ip: Ipv4Addr::LOCALHOST, ..host(0) };
    let refused = world.coordinator.rack_enters(world.now, other).unwrap_err();
    assert!(refused.contains("a parameter host `p0` is there already, at 10.77.200.0"), "{refused}");
    for number in 1..=32 {
        world.enter(host(number));
    }
    assert!(world.coordinator.rack_enters(world.now, rack(1)).is_ok(), "hosts do not count as racks");
}
