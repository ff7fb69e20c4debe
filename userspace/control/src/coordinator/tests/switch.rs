//! Jobs whose aggregators are P4 switches: the terms leave out what a switch cannot do.

use sumac_job::Mode;

use super::{
    dynamic::{SHARING, below, dynamic, host, plain, present, rack},
    *,
};

fn switch() -> PlaneInfo {
    PlaneInfo {
        kind: PlaneKind::P4,
        max_elements: 256,
        verifies_checksums: false,
        marks_overflow: false,
        bounds_loss: false,
        ..SHARING
    }
}

fn open(mode: Mode, job: &str, rank: u16, world: u16) -> Join {
    wanting(job, rank, world, |asked| {
        (asked.spec.mode, asked.spec.elements, asked.spec.slots) = (Some(mode), None, None);
    })
}

#[test]
fn a_static_job_has_all_blocks_of_a_switch_without_checksums() {
    // A worker's frames may hold fewer elements, or the file of the switch.
    for (most, host, elements) in [(256, 352, 256), (256, 200, 200), (32, 352, 32)] {
        let mut world = World::with(PlaneInfo { max_elements: most, ..switch() });
        let members = world.all((0..2).map(|rank| {
            let mut request = open(Mode::Static, "a", rank, 2);
            request.asked.host.max_elements = host;
            request
        }));
        let terms = world.terms(members[0]);
        assert_eq!((terms.elements, terms.checksum, terms.headroom), (elements, false, false));
        assert!(terms.whole, "every sum holds all workers");
    }
}

/// A program with budgets bounds loss where it is the job's only aggregator.
#[test]
fn a_switch_with_budgets_bounds_loss_at_one_level() {
    let bounding = PlaneInfo { bounds_loss: true, ..switch() };
    let mut world = World::with(bounding.clone());
    let members = world.all((0..2).map(|rank| open(Mode::Static, "a", rank, 2)));
    assert!(!world.terms(members[0]).whole, "the only aggregator");
    let kernel = PlaneInfo { kind: PlaneKind::Ebpf, max_elements: 300, bounds_loss: true, ..switch() };
    for (root, of_rack, whole) in [
        (bounding.clone(), kernel.clone(), true),
        (kernel.clone(), bounding.clone(), true),
        (bounding.clone(), bounding, true),
        (kernel.clone(), kernel, false),
    ] {
        let mut world = World::with(root.clone());
        world.enter(RackEntry { plane: of_rack.clone(), ..rack(0) });
        let members = world.all((0..2).map(|rank| below(1, open(Mode::Static, "a", rank, 2))));
        assert_eq!(world.terms(members[0]).whole, whole, "{:?} above {:?}", root.kind, of_rack.kind);
    }
}

#[test]
fn a_static_job_at_two_levels_has_one_block_of_a_switch() {
    let kernel = |max_elements| PlaneInfo { kind: PlaneKind::Ebpf, max_elements, ..switch() };
    for (root, of_rack, elements) in
        [(switch(), kernel(300), 64), (kernel(300), switch(), 64), (kernel(300), kernel(200), 200)]
    {
        let mut world = World::with(root);
        world.enter(RackEntry { plane: of_rack, ..rack(0) });
        let members = world.all((0..2).map(|rank| below(1, open(Mode::Static, "a", rank, 2))));
        assert_eq!(world.terms(members[0]).elements, elements);
    }
}

#[test]
fn a_dynamic_job_has_one_block_of_a_switch() {
    for (most, elements) in [(256, 64), (32, 32)] {
        let mut world = World::with(PlaneInfo { max_elements: most, ..switch() });
        world.enter(host(0));
        let members = world.all((0..2).map(|rank| plain("a", rank, 2)));
        assert_eq!(world.terms(members[0]).elements, elements);
        let refused = world.join(&dynamic("b", 0, 1, |spec| spec.elements = Some(65))).unwrap_err();
        assert_eq!(refused.kind, RefusalKind::TooManyElements);
        assert!(refused.message.contains(&format!("at most {elements}")), "{}", refused.message);
    }
}

#[test]
fn refusals_name_what_can_be_done_about_a_switch_too() {
    let mut world = World::with(PlaneInfo { slots: 16, dynamic_slots: 0, shards: 2, ..switch() });
    world.enter(host(0));
    let asking = |shards| {
        wanting("b", 0, 1, |asked| {
            (asked.spec.elements, asked.spec.slots, asked.spec.shards) = (None, Some(8), Some(shards));
        })
    };
    let mut refusal = |request: &Join| match world.join(request) {
        Ok(member) => world.refusal(member),
        Err(refusal) => refusal,
    };
    let compiled_in = "(those of a switch are compiled into its program)";
    let table = [
        (
            wanting("b", 0, 1, |asked| asked.spec.elements = Some(257)),
            RefusalKind::TooManyElements,
            "chunks of 257 elements are too large: the aggregator takes at most 256, which its slots hold; \
            ask for fewer, or give it larger --elements",
        ),
        (
            asking(3),
            RefusalKind::Invalid,
            "3 shards: the aggregator has 2; ask for fewer, or give it more --shards",
        ),
        (
            asking(2),
            RefusalKind::PoolFull,
            "32 slots are not free: 16 of 16 are, at most 16 together; ask for fewer, wait for a job to end, \
            or give the aggregator more --slots",
        ),
        (
            dynamic("b", 0, 1, |spec| spec.shards = None),
            RefusalKind::Invalid,
            "an aggregator of this job has no slots for dynamic jobs: give it --dynamic-slots N",
        ),
    ];
    for (request, kind, message) in table {
        let refused = refusal(&request);
        assert_eq!((refused.kind, refused.message), (kind, format!("{message} {compiled_in}")));
    }
}

#[test]
fn a_dynamic_job_keeps_headroom() {
    let mut world = World::with(switch());
    world.enter(host(0));
    let members = world.all((0..2).map(|rank| plain("a", rank, 2)));
    let terms = world.terms(members[1]);
    assert_eq!((terms.elements, terms.checksum, terms.headroom), (64, false, true));
    assert!(!terms.whole, "parameter hosts leave workers out");
    let mut world = World::sharing(&[0]);
    let members = world.all((0..2).map(|rank| plain("a", rank, 2)));
    let terms = world.terms(members[1]);
    assert!(terms.checksum && !terms.headroom, "another aggregator marks sums that it clamps");
}

#[test]
fn a_switch_among_the_planes_limits_job_numbers() {
    let few = PlaneInfo { jobs: 2, ..INFO };
    let mut world = World::with(few.clone());
    for job in ["a", "b"] {
        world.start(job, 1);
    }
    let refusal = world.join(&request("c", 0, 1)).unwrap_err();
    assert_eq!(refusal.kind, RefusalKind::TooManyJobs);
    assert!(refusal.message.contains("runs 2 jobs already"), "{refusal}");
    world.coordinator.on_plane(world.now, Ok((0xa, INFO)));
    let members = world.start("c", 1);
    assert_eq!(world.terms(members[0]).job, 3);
}

#[test]
fn one_switch_among_the_racks_counts_for_all() {
    let mut world = World::sharing(&[0]);
    world.enter(rack(0));
    world.enter(RackEntry { plane: switch(), ..rack(1) });
    let members = world.all((0..2).map(|rank| below(2, plain("plain", rank, 2))));
    assert!(!world.terms(members[0]).headroom, "below the rack that is no switch");
    let members = world.all((0..2).map(|rank| below(2 + u64::from(rank), plain("mixed", rank, 2))));
    let terms = world.terms(members[0]);
    assert_eq!((terms.elements, terms.checksum, terms.headroom), (64, false, true));
    let open = |name: &str, racks: [u64; 2]| {
        let sparing = |rank| {
            let mut request = open(Mode::Static, name, rank, 2);
            request.asked.spec.slots = Some(8);
            request
        };
        (0..).zip(racks).map(|(rank, at)| below(at, sparing(rank))).collect::<Vec<_>>()
    };
    let members = world.all(open("alike", [2, 2]));
    assert!(!world.terms(members[0]).whole, "below the rack that is no switch");
    let members = world.all(open("both", [2, 3]));
    assert!(world.terms(members[0]).whole, "one of the racks is a switch");
}

#[test]
fn a_direct_job_passes_a_switch_as_any_packets() {
    let mut world = World::with(switch());
    for rank in 0..2 {
        world.coordinator.join(world.now, &open(Mode::Direct, "a", rank, 2)).unwrap();
    }
    let Some(Action::Install(_, JobOrder { terms, .. })) = world.coordinator.poll_action() else {
        panic!("no order")
    };
    assert_eq!((terms.elements, terms.checksum, terms.headroom, terms.whole), (352, true, false, false));
}

#[test]
fn a_job_with_other_terms_does_not_come_to_a_switch() {
    // Each lacks one of the three things.
    let unmarked = PlaneInfo { verifies_checksums: true, ..switch() };
    let unverified = PlaneInfo { marks_overflow: true, ..switch() };
    let in_one_pass = PlaneInfo { verifies_checksums: true, marks_overflow: true, ..switch() };
    for (plane, checksum, elements) in
        [(unmarked, false, 64), (unverified, true, 64), (in_one_pass, true, 65)]
    {
        let mut world = World::sharing(&[0]);
        world.coordinator.rejoin_grace = seconds(9);
        let short = |rank| {
            let mut request = plain("a", rank, 2);
            (request.asked.spec.elements, request.asked.host.checksum) = (Some(elements), checksum);
            request
        };
        let members = world.all((0..2).map(short));
        let others = PlaneInfo { max_elements: elements, ..SHARING };
        for (instance, plane, restored) in [(0xb, others.clone(), 1), (0xc, plane, 1), (0xd, others, 2)] {
            world.plane.clear();
            world.coordinator.on_plane(world.now, Ok((instance, plane)));
            world.pass_with(seconds(2), &members, &present());
            assert_eq!(
                world.restored.len(),
                restored,
                "instance {instance:x}, checksum {checksum}, {elements} elements"
            );
        }
        world.plane.clear();
        world.info = switch();
        world.coordinator.on_plane(world.now, Ok((0xe, switch())));
        world.pass_with(seconds(3), &members[..1], &present());
        let mut again = short(1);
        again.asked.spec.elements = None;
        world.coordinator.join(world.now, &again).unwrap();
        let Some(Action::Renew(_, order)) = world.coordinator.poll_action() else { panic!("no renewal") };
        assert_eq!(order.unfit, [None], "a new worker does not bring it back either");
    }
}
