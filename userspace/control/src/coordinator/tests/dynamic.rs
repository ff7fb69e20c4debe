//! The grants and refusals of dynamic jobs; [`super::hosts`] and [`super::outlived`] are about their peers.

use std::net::SocketAddrV4;

use sumac_job::Mode;

use super::*;

pub(super) const SHARING: PlaneInfo = sharing(512, 832);

const fn sharing(dynamic_slots: u32, max_elements: u16) -> PlaneInfo {
    PlaneInfo {
        kind: PlaneKind::Host,
        slots: 256,
        max_elements,
        narrowest: None,
        base_port: 48700,
        shards: 8,
        dynamic_slots,
        verifies_checksums: true,
        marks_overflow: true,
        bounds_loss: true,
        socket_bytes: None,
        address: None,
        kept: Vec::new(),
        jobs: sumac_wire::MAX_JOBS as u16 - 1,
    }
}

pub(super) fn host(number: u8) -> RackEntry {
    let plane = PlaneInfo { kind: PlaneKind::Parameter, base_port: 48800, ..plane(1, 832) };
    let ip = Ipv4Addr::new(10, 77, 200, number);
    RackEntry {
        name: format!("p{number}"),
        ip,
        above: None,
        plane: PlaneInfo { shards: 4, ..plane },
        instance: 1,
        jobs: TakenOver::default(),
    }
}

pub(super) fn rack(number: u8) -> RackEntry {
    let ip = Ipv4Addr::new(10, 77, 100, number);
    RackEntry {
        name: format!("r{number}"),
        ip,
        above: None,
        plane: sharing(384, 832),
        instance: 1,
        jobs: TakenOver::default(),
    }
}

pub(super) fn dynamic(job: &str, rank: u16, world: u16, change: impl FnOnce(&mut JobSpec)) -> Join {
    wanting(job, rank, world, |asked| {
        let spec = &mut asked.spec;
        (spec.mode, spec.elements, spec.slots, spec.shards) = (Some(Mode::Dynamic), None, None, None);
        asked.host.max_shards = 4;
        change(&mut asked.spec);
    })
}

pub(super) fn plain(job: &str, rank: u16, world: u16) -> Join {
    dynamic(job, rank, world, |_| {})
}

/// The first parameter host, in service, where it entered first.
pub(super) fn present() -> [(u64, PlaneInfo); 1] {
    [(1, host(0).plane)]
}

pub(super) fn below(rack: u64, request: Join) -> Join {
    Join { rack: Some(RackId(rack)), ..request }
}

impl World {
    /// An aggregator with slots to share, and parameter hosts with these numbers.
    pub(super) fn sharing(hosts: &[u8]) -> World {
        let mut world = World::with(SHARING);
        for number in hosts {
            world.enter(host(*number));
        }
        world
    }

    /// Racks and parameter hosts have the numbers 1, 2, ... in the order of their first entries.
    pub(super) fn enter(&mut self, entry: RackEntry) -> u64 {
        let id = self.coordinator.rack_enters(self.now, entry).unwrap();
        self.work();
        id.0
    }

    pub(super) fn all(&mut self, requests: impl IntoIterator<Item = Join>) -> Vec<MemberId> {
        requests.into_iter().map(|request| self.join(&request).unwrap()).collect()
    }

    /// Time passes; members are alive, and these racks and hosts are in service with these planes.
    pub(super) fn pass_with(&mut self, time: Time, members: &[MemberId], present: &[(u64, PlaneInfo)]) {
        let end = self.now + time;
        while self.now < end {
            for (id, plane) in present {
                self.coordinator.rack_reports(self.now, RackId(*id), Ok((1, plane.clone())));
            }
            self.pass(millis(100), members);
        }
    }

    fn order(&mut self) -> JobOrder {
        loop {
            match self.coordinator.poll_action() {
                Some(Action::Install(_, order)) => return order,
                Some(_) => {}
                None => panic!("no order"),
            }
        }
    }
}

#[test]
fn a_job_gets_shared_slots_and_the_hosts_with_the_fewest_jobs() {
    let mut world = World::sharing(&[0, 1, 2]);
    let asked = |spec: &mut JobSpec| (spec.parameter_hosts, spec.window) = (Some(2), Some(64));
    let first = world.all([dynamic("a", 0, 2, asked), plain("a", 1, 2)]);
    let (terms, placement) = (world.terms(first[1]), world.placement(first[1]));
    let address = |number| SocketAddrV4::new(Ipv4Addr::new(10, 77, 200, number), 48800);
    assert_eq!(terms.parameter_hosts, [address(0), address(1)], "one rank asked for two");
    assert_eq!((terms.slots, terms.window, terms.fan_in_1, placement.bitmap_1), (512, 64, 0, 0));
    assert!(terms.congestion_control && !placement.beside_root && terms.resume.is_empty());
    assert_eq!((terms.shards, terms.elements, terms.is_measured), (4, 352, true));
    assert!(terms.slots_reason.contains("up to 512 of each shard"), "{}", terms.slots_reason);

    let second = world.all([dynamic("b", 0, 1, |spec| spec.parameter_hosts = Some(1))]);
    assert_eq!(world.terms(second[0]).parameter_hosts, [address(2)], "which had none");
    let third = world.all([plain("c", 0, 1)]);
    let terms = world.terms(third[0]);
    assert_eq!((terms.parameter_hosts.len(), terms.window), (3, DEFAULT_WINDOW), "all that there are");
    let narrow = wanting("d", 0, 1, |asked| {
        (asked.spec.mode, asked.spec.dynamic_slots) = (Some(Mode::Dynamic), Some(100));
    });
    let fourth = world.all([narrow]);
    let terms = world.terms(fourth[0]);
    assert_eq!((terms.parameter_hosts.len(), terms.slots), (1, 100), "as many as shards");
    assert_eq!(world.coordinator.pool.free(u32::MAX), 256, "no slots of their own");
    let halves = world.all([dynamic("g", 0, 1, |spec| spec.wire = Some(WireFormat::Int16))]);
    let terms = world.terms(halves[0]);
    assert_eq!((terms.wire, terms.scale), (WireFormat::Int16, Scale::Block), "1e8 would leave no range");
    world.leave(halves[0], Outcome::Done);
    let beside = world.start("e", 1);
    let terms = world.terms(beside[0]);
    assert!(!terms.is_dynamic() && !terms.congestion_control, "static ones run beside them");
    let yielding = wanting("f", 0, 1, |asked| asked.spec.congestion_control = Some(true));
    let sixth = world.all([yielding]);
    assert!(world.terms(sixth[0]).congestion_control, "a static one that asks for it");
    for member in [first, second, third, fourth, beside, sixth].concat() {
        world.leave(member, Outcome::Done);
    }
    assert!(world.plane.is_empty());
}

#[test]
fn what_no_dynamic_job_can_have() {
    let with = |change: fn(&mut JobSpec)| dynamic("a", 0, 1, change);
    let wide = |elements: u16| {
        let mut request = dynamic("a", 0, 1, |spec| spec.elements = Some(elements));
        request.asked.host.max_elements = 2000;
        request
    };
    let table = [
        (wide(833), "too large: the aggregator takes at most 832"),
        (with(|s| s.window = Some(100)), "a window of 100 chunks: give a power of two"),
        (with(|s| s.window = Some(8192)), "a window of 8192 chunks: give a power of two from 8 to 4096"),
        (with(|s| s.window = Some(4)), "a window of 4 chunks"),
        (with(|s| s.dynamic_slots = Some(0)), "0 slots of each shard"),
        (with(|s| s.parameter_hosts = Some(5)), "5 parameter hosts: a job has 1 to 4"),
        (with(|s| s.parameter_hosts = Some(0)), "0 parameter hosts"),
    ];
    let mut world = World::sharing(&[0, 1]);
    for (request, words) in table {
        let refusal = world.join(&request).unwrap_err().to_string();
        assert!(refusal.contains(words), "{refusal}");
    }
    let at_start = [
        (with(|s| s.dynamic_slots = Some(513)), "513 slots of each shard: the aggregators share out 512"),
        (with(|s| (s.shards, s.parameter_hosts) = (Some(1), Some(2))), "2 parameter hosts for 1 shards"),
    ];
    for (request, words) in at_start {
        let member = world.join(&request).unwrap();
        let refusal = world.refusal(member).to_string();
        assert!(refusal.contains(words), "{refusal}");
        world.leave(member, Outcome::Done);
    }
    let mut world = World::with(sharing(512, 2000));
    let refusal = world.join(&wide(900)).unwrap_err();
    assert!(refusal.to_string().contains("900 elements in a dynamic job: it takes at most 832"), "{refusal}");
    world.enter(host(0));
    let mut any = wide(832);
    any.asked.spec.elements = None;
    let any = world.all([any]);
    assert_eq!(world.terms(any[0]).elements, 832);

    let mut world = World::new();
    world.enter(host(0));
    let member = world.join(&plain("a", 0, 1)).unwrap();
    assert!(world.refusal(member).to_string().contains("--dynamic-slots"), "an aggregator that shares none");
}

#[test]
fn ranks_that_differ_in_mode_are_named() {
    let other = |rank, change: fn(&mut JobSpec)| {
        dynamic("a", rank, 2, |spec| {
            (spec.window, spec.parameter_hosts, spec.dynamic_slots) = (Some(64), Some(1), Some(9));
            change(spec);
        })
    };
    let table = [
        (request("a", 1, 2), "rank 0 wants mode dynamic, rank 1 wants static"),
        (other(1, |s| s.window = Some(128)), "rank 0 wants window 64, rank 1 wants 128"),
        (other(1, |s| s.parameter_hosts = Some(2)), "rank 0 wants parameter hosts 1, rank 1 wants 2"),
        (other(1, |s| s.dynamic_slots = Some(8)), "rank 0 wants shared slots 9, rank 1 wants 8"),
        (
            other(1, |s| s.congestion_control = Some(false)),
            "rank 0 wants congestion control true, rank 1 wants false",
        ),
    ];
    let mut world = World::sharing(&[0]);
    let yields = wanting("b", 1, 2, |asked| asked.spec.congestion_control = Some(true));
    world.join(&request("b", 0, 2)).unwrap();
    let refusal = world.join(&yields).unwrap_err().to_string();
    assert!(refusal.contains("congestion control false, rank 1 wants true"), "{refusal}");
    for (second, words) in table {
        let mut world = World::sharing(&[0]);
        let zero = world.join(&other(0, |_| {})).unwrap();
        let refusal = world.join(&second).unwrap_err();
        assert!(refusal.to_string().contains(words), "{refusal}");
        assert_eq!(world.refusal(zero), refusal);
    }
}

#[test]
fn places_in_two_levels() {
    let mut world = World::sharing(&[0]);
    world.enter(rack(1));
    world.enter(rack(2));
    for rank in 0..5 {
        let request = plain("a", rank, 5);
        let request = match rank {
            0 | 3 => below(3, request),
            1 => request,
            _ => below(2, request),
        };
        world.coordinator.join(world.now, &request).unwrap();
    }
    let order = world.order();
    assert_eq!(order.hosts, [RackId(1)]);
    assert_eq!((order.terms.slots, order.terms.fan_in_1), (384, 3), "the least of all");
    let children: Vec<_> = order.layout.children().iter().map(|child| child.ranks.clone()).collect();
    assert_eq!(children, [vec![0, 3], vec![1], vec![2, 4]]);

    let mut world = World::sharing(&[0]);
    world.enter(rack(1));
    let members = world.all([below(2, plain("a", 0, 3)), below(2, plain("a", 1, 3)), plain("a", 2, 3)]);
    let of: Vec<_> = members.iter().map(|member| world.placement(*member)).collect();
    assert_eq!(world.terms(members[0]).fan_in_1, 2);
    assert_eq!(of.iter().map(|of| of.bitmap_1).collect::<Vec<_>>(), [1, 1, 2]);
    assert_eq!(of.iter().map(|of| of.beside_root).collect::<Vec<_>>(), [false, false, true]);
}

#[test]
fn too_many_below_one_aggregator() {
    let mut world = World::sharing(&[0]);
    let members: Vec<_> = (0..33).map(|rank| world.join(&plain("a", rank, 33)).unwrap()).collect();
    let refusal = world.refusal(members[0]).to_string();
    assert!(refusal.contains("33 workers") && refusal.contains("it takes 32"), "{refusal}");
    let mut world = World::sharing(&[0]);
    world.enter(rack(1));
    let join = |rank| if rank == 0 { below(2, plain("a", rank, 33)) } else { plain("a", rank, 33) };
    let members: Vec<_> = (0..33).map(|rank| world.join(&join(rank)).unwrap()).collect();
    let refusal = world.refusal(members[0]).to_string();
    assert!(refusal.contains("1 racks and 32 workers beside them below one root: it takes 32"), "{refusal}");
}

#[test]
fn a_control_plane_without_an_aggregator() {
    let none = PlaneInfo { kind: PlaneKind::None, slots: 0, shards: 16, ..plane(0, 832) };
    let mut world = World::with(none);
    let refusal = world.join(&request("a", 0, 1)).unwrap_err();
    assert_eq!(refusal, Refusal::no_aggregator());
    assert!(refusal.to_string().contains("open the job with mode dynamic"), "{refusal}");
    world.enter(host(0));
    let members: Vec<_> = (0..40).map(|rank| world.join(&plain("a", rank, 40)).unwrap()).collect();
    let (terms, of) = (world.terms(members[33]), world.placement(members[33]));
    assert_eq!((terms.slots, terms.fan_in_1, of.bitmap_1, of.beside_root), (0, 2, 2, false));
    let reason = world.terms(members[0]).slots_reason;
    assert_eq!(reason, "there is no aggregator");
    world.enter(rack(1));
    let member = world.join(&below(2, plain("b", 0, 1))).unwrap();
    let refusal = world.refusal(member).to_string();
    assert!(refusal.contains("the root has no aggregator to add up racks' sums"), "{refusal}");
}

#[test]
fn people_see_who_has_what() {
    let mut world = World::sharing(&[0]);
    world.coordinator.rejoin_grace = seconds(9);
    world.enter(rack(1));
    let members = world.all([below(2, plain("a", 0, 2)), plain("a", 1, 2)]);
    world.join(&request("b", 1, 2)).unwrap();
    let overview = world.coordinator.overview();
    let below = overview.racks.iter().chain(&overview.parameter_hosts);
    let below: Vec<_> = below.map(|b| (b.name.as_str(), b.sums_at, b.jobs.clone())).collect();
    let sums_at = SocketAddrV4::new(Ipv4Addr::new(10, 77, 200, 0), 48800);
    assert_eq!(below, [("r1", None, vec![1]), ("p0", Some(sums_at), vec![1])]);
    let [a, b] = &overview.jobs[..] else { panic!("{overview:?}") };
    assert_eq!((a.name.as_str(), a.mode.as_str(), a.state.as_str(), a.epoch), ("a", "dynamic", "running", 1));
    assert_eq!((&a.parameter_hosts[..], a.without.len()), (&["p0".to_owned()][..], 0));
    assert_eq!(
        (b.name.as_str(), b.mode.as_str(), b.state.as_str(), &b.missing[..]),
        ("b", "static", "waiting", &[0][..])
    );

    world.pass_with(seconds(4), &members[..1], &present());
    world.coordinator.rack_reports(world.now, RackId(1), Err("no way".into()));
    world.coordinator.on_plane(world.now, Ok((0xb, SHARING)));
    let overview = world.coordinator.overview();
    assert_eq!(overview.parameter_hosts[0].away.as_deref(), Some("no way"));
    let a = &overview.jobs[0];
    assert_eq!((&a.vacant[..], &a.without[..]), (&[1][..], &["root".to_owned(), "r1".into()][..]));
}
