//! The state machine by tables; [`random`] by random sequences.

mod posts;
mod racks;
mod random;

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use super::*;
use sumac_transport::{NotFinite, PathMeasure, Scaling, WireFormat};

use crate::{Order, failure::FailureKind, refusal::RefusalKind};

const fn seconds(seconds: u64) -> Time {
    Time::from_secs(seconds)
}

const fn millis(millis: u64) -> Time {
    Time::from_millis(millis)
}

const INFO: PlaneInfo = PlaneInfo {
    kind: PlaneKind::Host,
    slots: 256,
    max_elements: 360,
    narrowest: None,
    base_port: 48700,
    shards: 2,
};

/// Wants 32 slots in each of two lanes.
fn wishes(world: u16) -> Wishes {
    Wishes {
        world,
        elements: Some(256),
        max_elements: 352,
        slots: Some(32),
        shards: Some(1),
        max_shards: 2,
        scaling: Scaling::Block,
        wire: WireFormat::Int32,
        not_finite: NotFinite::Error,
        order: Order::Submission,
        checksum: true,
    }
}

fn request(job: &str, rank: u16, world: u16) -> JoinRequest {
    JoinRequest {
        job: job.into(),
        rank,
        wishes: wishes(world),
        worker: WorkerInstall {
            ip: Ipv4Addr::new(10, 77, rank as u8, 2),
            port: 48700,
            mac: [2; 6],
            local_ip: Ipv4Addr::new(10, 77, rank as u8, 1),
        },
        rack: None,
        deadline: seconds(30),
    }
}

/// The same with other wishes.
fn wanting(job: &str, rank: u16, world: u16, change: impl FnOnce(&mut Wishes)) -> JoinRequest {
    let mut request = request(job, rank, world);
    change(&mut request.wishes);
    request
}

fn doors(workers: &[WorkerInstall]) -> Vec<Door> {
    let world = workers.len() as u16;
    let door = |(rank, worker): (u16, &WorkerInstall)| Door {
        aggregator_ip: worker.local_ip,
        base_port: 48700,
        plane: PlaneKind::Host,
        result_group: None,
        rack_rank: rank,
        rack_world: world,
    };
    (0..).zip(workers).map(door).collect()
}

/// A coordinator, its clock, and a plane that does as it is told.
struct World {
    coordinator: Coordinator,
    now: Time,
    /// Jobs on the plane, with their first slot and number of slots.
    plane: BTreeMap<u16, (RunId, u32, u32)>,
    used: Vec<(u16, u16)>,
    forgotten: Vec<MemberId>,
    refuse_removal: bool,
}

impl World {
    fn new() -> World {
        let random = Box::new(ChaCha8Rng::seed_from_u64(1));
        World {
            coordinator: Coordinator::new(Time::ZERO, INFO, 0xa, &[], random),
            now: Time::ZERO,
            plane: BTreeMap::new(),
            used: Vec::new(),
            forgotten: Vec::new(),
            refuse_removal: false,
        }
    }

    fn join(&mut self, request: &JoinRequest) -> Result<MemberId, Refusal> {
        let result = self.coordinator.join(self.now, request);
        self.work();
        result
    }

    /// All ranks of a job join.
    fn start(&mut self, job: &str, world: u16) -> Vec<MemberId> {
        (0..world).map(|rank| self.join(&request(job, rank, world)).unwrap()).collect()
    }

    fn leave(&mut self, member: MemberId, outcome: Outcome) {
        self.coordinator.leave(member, &outcome);
        self.work();
    }

    /// Does what the coordinator orders, and holds it against what a plane can do.
    fn work(&mut self) {
        while let Some(action) = self.coordinator.poll_action() {
            match action {
                Action::Forget(member) => self.forgotten.push(member),
                Action::Install(run, order) => {
                    self.check_install(run, &order.install);
                    self.coordinator.on_installed(run, Ok(doors(&order.install.workers)));
                }
                Action::Resize { run, job, lane_slots, reason } => {
                    assert!(!reason.is_empty());
                    // Nothing is there when the plane has lost its memory meanwhile.
                    if let Some(held) = self.plane.get_mut(&job).filter(|held| held.0 == run) {
                        assert!(lane_slots * 2 <= held.2, "a job only shrinks");
                        held.2 = lane_slots * 2;
                    }
                    self.coordinator.on_resized(run, Ok(()));
                }
                Action::Remove(run, _) if self.refuse_removal => {
                    self.coordinator.on_removed(self.now, run, Err("busy".into()));
                }
                Action::Remove(run, job) => {
                    // Nothing is there when the plane has lost its memory meanwhile.
                    if let Some(held) = self.plane.remove(&job) {
                        assert_eq!(held.0, run);
                    }
                    self.coordinator.on_removed(self.now, run, Ok(()));
                }
            }
        }
    }

    fn check_install(&mut self, run: RunId, job: &JobInstall) {
        assert!(!self.used.contains(&(job.job, job.epoch)), "an incarnation is used twice");
        self.used.push((job.job, job.epoch));
        let end = job.first_slot + job.slots();
        assert!(end <= INFO.slots && job.lane_slots.is_power_of_two());
        for (_, first, slots) in self.plane.values() {
            assert!(end <= *first || first + slots <= job.first_slot, "slots overlap");
        }
        let replaced = self.plane.insert(job.job, (run, job.first_slot, job.slots()));
        assert_eq!(replaced, None, "the earlier incarnation is still there");
    }

    /// Time passes in small steps, with heartbeats of `alive`.
    fn pass(&mut self, time: Time, alive: &[MemberId]) {
        let end = self.now + time;
        while self.now < end {
            self.now += millis(100);
            for member in alive {
                self.coordinator.heartbeat(self.now, *member);
            }
            self.coordinator.tick(self.now);
            self.work();
        }
    }

    fn status(&self, member: MemberId) -> Status {
        self.coordinator.status(member).expect("a member").1
    }

    fn failure(&self, member: MemberId) -> JobFailure {
        match self.status(member) {
            Status::Failed(failure) => failure,
            other => panic!("{other:?}"),
        }
    }

    fn refusal(&self, member: MemberId) -> Refusal {
        match self.status(member) {
            Status::Refused(refusal) => refusal,
            other => panic!("{other:?}"),
        }
    }

    fn running(&self, member: MemberId) -> Grant {
        match self.status(member) {
            Status::Running(grant) => grant,
            other => panic!("{other:?}"),
        }
    }

    fn grant(&self, member: MemberId) -> Assignment {
        self.running(member).assignment
    }

    fn departed(&self, member: MemberId) -> Vec<u16> {
        self.running(member).departed
    }

    fn post(&mut self, member: MemberId, first: u64, posts: Vec<Post>) {
        self.coordinator.post(self.now, member, first, posts);
        self.work();
    }
}

#[test]
fn nobody_starts_before_all_have_joined() {
    let mut world = World::new();
    let zero = world.join(&request("a", 0, 3)).unwrap();
    assert_eq!(world.status(zero), Status::Waiting(vec![1, 2]));
    let two = world.join(&request("a", 2, 3)).unwrap();
    assert_eq!(world.status(zero), Status::Waiting(vec![1]));
    assert!(world.plane.is_empty());
    let one = world.join(&request("a", 1, 3)).unwrap();
    for (rank, member) in [zero, one, two].into_iter().enumerate() {
        let grant = world.grant(member);
        assert_eq!((grant.job, grant.epoch, grant.lane_slots, grant.lanes()), (1, 1, 32, 2));
        assert_eq!((grant.rack_rank, grant.rack_world), (rank as u16, 3));
        assert_eq!((grant.tune, world.departed(member)), (false, vec![]));
        assert_eq!(grant.aggregator_ip, Ipv4Addr::new(10, 77, rank as u8, 1));
    }
}

#[test]
fn refused_joins_change_nothing() {
    type Change = fn(&mut JoinRequest);
    let table: [(&str, Change, RefusalKind); 17] = [
        ("rank taken", |r| r.rank = 0, RefusalKind::RankTaken),
        ("no name", |r| r.job = String::new(), RefusalKind::Invalid),
        ("long name", |r| r.job = "x".repeat(65), RefusalKind::Invalid),
        ("control characters", |r| r.job = "a\nb".into(), RefusalKind::Invalid),
        ("world of none", |r| (r.wishes.world, r.rank) = (0, 0), RefusalKind::Invalid),
        ("world of 33", |r| r.wishes.world = 33, RefusalKind::Invalid),
        ("rank outside", |r| r.rank = 3, RefusalKind::Invalid),
        ("no elements", |r| r.wishes.elements = Some(0), RefusalKind::Invalid),
        ("elements", |r| r.wishes.elements = Some(361), RefusalKind::TooManyElements),
        ("scale of zero", |r| r.wishes.scaling = Scaling::Fixed(0.0), RefusalKind::Invalid),
        ("infinite scale", |r| r.wishes.scaling = Scaling::Fixed(f32::INFINITY), RefusalKind::Invalid),
        ("slots of no power of two", |r| r.wishes.slots = Some(0), RefusalKind::Invalid),
        ("more slots than there are", |r| r.wishes.slots = Some(256), RefusalKind::PoolFull),
        ("no slots can be that many", |r| r.wishes.slots = Some(u32::MAX), RefusalKind::Invalid),
        ("no shards", |r| r.wishes.shards = Some(0), RefusalKind::Invalid),
        ("shards", |r| r.wishes.shards = Some(3), RefusalKind::Invalid),
        ("no port", |r| r.worker.port = 0, RefusalKind::Invalid),
    ];
    let mut world = World::new();
    let zero = world.join(&request("a", 0, 3)).unwrap();
    for (what, change, kind) in table {
        let mut bad = request("a", 1, 3);
        change(&mut bad);
        let refusal = world.join(&bad).expect_err(what);
        assert_eq!(refusal.kind(), kind, "{what}: {refusal}");
        assert_eq!(world.status(zero), Status::Waiting(vec![1, 2]), "{what}");
    }
    assert_eq!(world.coordinator.members.len(), 1);
    assert_eq!(world.coordinator.runs.len(), 1);
}

#[test]
fn a_mismatch_ends_the_gathering_for_all_and_names_both() {
    type Change = fn(&mut Wishes);
    let table: [(&str, Change); 9] = [
        ("world size", |w| w.world = 4),
        ("chunk elements", |w| w.elements = Some(64)),
        ("scaling", |w| w.scaling = Scaling::Fixed(2.0)),
        ("wire format", |w| w.wire = WireFormat::Int16),
        ("NaN policy", |w| w.not_finite = NotFinite::Carry),
        ("order", |w| w.order = Order::Name),
        ("checksum", |w| w.checksum = false),
        ("slots", |w| w.slots = Some(64)),
        ("shards", |w| w.shards = Some(2)),
    ];
    for (what, change) in table {
        let mut world = World::new();
        let zero = world.join(&request("a", 0, 3)).unwrap();
        let refusal = world.join(&wanting("a", 2, 3, change)).expect_err(what);
        assert_eq!((refusal.kind(), refusal.ranks()), (RefusalKind::Mismatch, vec![0, 2]), "{what}");
        assert!(refusal.to_string().contains(what), "{what}: {refusal}");
        assert_eq!(world.refusal(zero), refusal, "{what}");
    }
}

#[test]
fn at_the_first_deadline_all_learn_who_is_missing() {
    let mut world = World::new();
    let zero = world.join(&JoinRequest { deadline: seconds(5), ..request("a", 0, 4) }).unwrap();
    let two = world.join(&request("a", 2, 4)).unwrap();
    world.pass(millis(4900), &[zero, two]);
    assert_eq!(world.status(zero), Status::Waiting(vec![1, 3]));
    world.pass(millis(200), &[zero, two]);
    for member in [zero, two] {
        let waited = seconds(5);
        assert_eq!(world.refusal(member), Refusal::Missing { job: "a".into(), ranks: vec![1, 3], waited });
    }
    let fresh = world.join(&request("a", 0, 4)).unwrap();
    assert_eq!(world.status(fresh), Status::Waiting(vec![1, 2, 3]), "a new gathering");
}

#[test]
fn the_dead_lose_their_seat_while_gathering() {
    let mut world = World::new();
    let zero = world.join(&request("a", 0, 2)).unwrap();
    let one = world.join(&request("b", 0, 2)).unwrap();
    world.pass(seconds(3), &[one]);
    assert_eq!(world.coordinator.status(zero), None);
    assert_eq!(world.forgotten, [zero]);
    world.start("a", 2);
    assert_eq!(world.plane.len(), 1);
}

#[test]
fn a_silent_rank_fails_the_job_on_all_others_and_frees_its_slots() {
    let mut world = World::new();
    let members = world.start("a", 3);
    world.pass(seconds(30), &members);
    assert_eq!(world.grant(members[0]).epoch, 1);
    world.pass(millis(1900), &members[..2]);
    assert_eq!(world.grant(members[0]).epoch, 1, "not yet");
    world.pass(millis(200), &members[..2]);
    for member in &members[..2] {
        let failure = world.failure(*member);
        assert_eq!((failure.kind, failure.culprit), (FailureKind::Silent, Some(2)));
        assert_eq!(failure.message, "rank 2 (10.77.2.2) stopped answering");
    }
    assert!(world.plane.is_empty());
    assert_eq!(world.coordinator.pool.free(u32::MAX), 256);
    world.pass(seconds(5), &[]);
    assert!(world.coordinator.runs.is_empty() && world.coordinator.members.is_empty(), "nothing is left");
}

#[test]
fn a_server_that_stood_still_blames_nobody() {
    let mut world = World::new();
    let members = world.start("a", 2);
    world.pass(seconds(1), &members);
    world.now += seconds(60);
    world.coordinator.tick(world.now);
    assert_eq!(world.grant(members[0]).epoch, 1);
    world.pass(seconds(3), &members[..1]);
    assert_eq!(world.failure(members[0]).culprit, Some(1));
}

#[test]
fn leaves() {
    let mut world = World::new();
    let members = world.start("a", 3);
    world.leave(members[1], Outcome::Done);
    assert_eq!(world.departed(members[0]), [1]);
    world.pass(seconds(10), &[members[0], members[2]]);
    assert_eq!(world.departed(members[0]), [1], "who has left is not silent");
    world.leave(members[2], Outcome::Failed("cancelled by the user".into()));
    let failure = world.failure(members[0]);
    assert_eq!(failure.message, "rank 2 (10.77.2.2) left: cancelled by the user");
    assert_eq!((failure.kind, failure.culprit), (FailureKind::Left, Some(2)));
    assert!(world.plane.is_empty());

    let members = world.start("c", 2);
    world.leave(members[1], Outcome::Mismatch("rank 0 has a sum where rank 1 has a maximum".into()));
    let failure = world.failure(members[0]);
    assert_eq!((failure.kind, failure.culprit), (FailureKind::Mismatch, None));
    assert_eq!(failure.message, "rank 0 has a sum where rank 1 has a maximum");

    let members = world.start("b", 2);
    for member in members {
        world.leave(member, Outcome::Done);
    }
    assert!(world.plane.is_empty());
    assert!(world.coordinator.is_idle());
}

#[test]
fn the_next_incarnation_waits_for_the_last_worker_of_the_one_before() {
    let mut world = World::new();
    let first = world.start("a", 2);
    world.leave(first[0], Outcome::Done);
    let zero = world.join(&request("a", 0, 1)).unwrap();
    assert_eq!(world.status(zero), Status::Waiting(vec![]), "rank 1 is still in the first");
    assert_eq!(world.grant(first[1]).epoch, 1);
    world.leave(first[1], Outcome::Done);
    let grant = world.grant(zero);
    assert_eq!((grant.job, grant.epoch), (1, 2));
}

#[test]
fn it_does_not_wait_for_ever() {
    let mut world = World::new();
    let first = world.start("a", 2);
    world.leave(first[0], Outcome::Done);
    let zero = world.join(&JoinRequest { deadline: seconds(4), ..request("a", 0, 1) }).unwrap();
    world.pass(seconds(5), &[first[1], zero]);
    assert_eq!(world.refusal(zero), Refusal::Held { job: "a".into(), ranks: vec![1] });
    assert_eq!(world.grant(first[1]).epoch, 1);
}

#[test]
fn epochs_grow_by_name_and_jobs_have_numbers_of_their_own() {
    let mut world = World::new();
    for epoch in 1..=3 {
        let members = world.start("a", 2);
        assert_eq!((world.grant(members[0]).job, world.grant(members[0]).epoch), (1, epoch));
        world.leave(members[0], Outcome::Failed("again".into()));
    }
    let members = world.start("b", 1);
    assert_eq!((world.grant(members[0]).job, world.grant(members[0]).epoch), (2, 1));
}

#[test]
fn a_full_pool_says_what_is_free_and_who_has_the_rest() {
    let mut world = World::new();
    world.start("a", 1);
    world.start("b", 1);
    world.join(&wanting("c", 0, 1, |w| w.slots = Some(16))).unwrap();
    let holders = vec![("a".into(), 64), ("b".into(), 64), ("c".into(), 32)];
    let full = Refusal::PoolFull { wanted: 128, free: 96, largest: 96, total: 256, holders };
    let wanted = wanting("d", 0, 1, |w| w.slots = Some(64));
    assert_eq!(world.join(&wanted), Err(full.clone()));
    assert!(
        full.to_string().contains("96 of 256 are, at most 96 together (taken by `a` 64, `b` 64, `c` 32)"),
        "{full}"
    );
    // What is to be measured gets the most that there is until then.
    let any = world.join(&wanting("d", 0, 1, |w| w.slots = None)).unwrap();
    assert_eq!((world.grant(any).lane_slots, world.grant(any).tune), (32, true));
    let none = world.join(&wanting("e", 0, 1, |w| (w.slots, w.shards) = (None, Some(2)))).unwrap();
    assert_eq!(world.refusal(none).kind(), RefusalKind::PoolFull);
}

#[test]
fn what_is_left_open_is_what_all_have() {
    let mut world = World::new();
    let open = |rank: u16, max_elements: u16, max_shards: u16| {
        wanting("a", rank, 2, |w| {
            (w.elements, w.shards, w.slots) = (None, None, None);
            (w.max_elements, w.max_shards) = (max_elements, max_shards);
        })
    };
    let zero = world.join(&open(0, 1000, 9)).unwrap();
    world.join(&open(1, 352, 9)).unwrap();
    assert_eq!((world.grant(zero).elements, world.grant(zero).shards), (352, 2), "rank 1's, the plane's");
    world.leave(zero, Outcome::Failed("again".into()));
    // Who asks, asks for all.
    let zero = world.join(&open(0, 1000, 2)).unwrap();
    world.join(&request("a", 1, 2)).unwrap();
    let grant = world.grant(zero);
    assert_eq!((grant.elements, grant.shards, grant.lane_slots, grant.tune), (256, 1, 32, false));
    assert!(grant.slots_reason.contains("asked for"), "{}", grant.slots_reason);
    world.leave(zero, Outcome::Failed("again".into()));
    // Not what another cannot have.
    let zero = world.join(&open(0, 64, 2)).unwrap();
    world.join(&request("a", 1, 2)).unwrap();
    let refusal = world.refusal(zero);
    assert_eq!(refusal.kind(), RefusalKind::Invalid);
    assert!(refusal.to_string().contains("rank 0 has at most 64"), "{refusal}");
}

#[test]
fn the_port_that_limits_chunks_is_named() {
    let mut world = World::new();
    let narrow = PlaneInfo { max_elements: 100, narrowest: Some("p0 (MTU 484)".into()), ..INFO };
    world.coordinator.on_plane(world.now, Ok((0xa, narrow)));
    let refusal = world.join(&wanting("a", 0, 1, |w| w.elements = Some(101))).unwrap_err().to_string();
    assert!(refusal.contains("at most 100, since its port p0 (MTU 484) carries no more"), "{refusal}");
    world.coordinator.on_plane(world.now, Ok((0xa, INFO)));
    let refusal = world.join(&wanting("a", 0, 1, |w| w.elements = Some(361))).unwrap_err().to_string();
    assert!(refusal.contains("at most 360, which its slots hold"), "{refusal}");
}

#[test]
fn lost_state_ends_all_jobs_and_frees_the_pool() {
    let mut world = World::new();
    let members = world.start("a", 2);
    let waiting = world.join(&request("b", 0, 2)).unwrap();
    world.coordinator.on_plane(world.now, Ok((0xa, INFO)));
    assert_eq!(world.grant(members[0]).epoch, 1, "the same memory");
    world.coordinator.on_plane(world.now, Ok((0xb, PlaneInfo { slots: 64, ..INFO })));
    world.work();
    let message = "aggregator lost its state (instance a -> b)";
    assert_eq!(world.failure(members[0]).message, message);
    assert_eq!(world.status(waiting), Status::Waiting(vec![1]), "has nothing to lose yet");
    assert_eq!((world.coordinator.pool.free(u32::MAX), world.coordinator.pool.total(u32::MAX)), (64, 64));
}

#[test]
fn an_absent_plane_is_waited_for_and_not_for_ever() {
    let mut world = World::new();
    let members = world.start("a", 1);
    let away = || Err("detached".to_string());
    world.coordinator.on_plane(world.now, away());
    world.pass(seconds(9), &members);
    world.coordinator.on_plane(world.now, away());
    assert_eq!(world.grant(members[0]).epoch, 1);
    world.coordinator.on_plane(world.now, Ok((0xa, INFO)));
    world.pass(seconds(5), &members);
    world.coordinator.on_plane(world.now, away());
    assert_eq!(world.grant(members[0]).epoch, 1, "counts from the last time it was there");
    world.pass(seconds(10), &members);
    world.coordinator.on_plane(world.now, away());
    let failure = world.failure(members[0]);
    assert_eq!(failure.kind, FailureKind::PlaneDown);
    assert!(failure.message.contains("detached"), "{failure}");
}

#[test]
fn slots_stay_taken_until_the_plane_has_given_the_job_up() {
    let mut world = World::new();
    let members = world.start("a", 1);
    world.refuse_removal = true;
    world.leave(members[0], Outcome::Done);
    assert_eq!(world.coordinator.pool.free(u32::MAX), 192);
    let next = world.join(&request("a", 0, 1)).unwrap();
    world.pass(seconds(3), &[next]);
    assert_eq!(world.status(next), Status::Waiting(vec![]));
    world.refuse_removal = false;
    world.pass(seconds(2), &[next]);
    assert_eq!(world.grant(next).epoch, 2);
}

#[test]
fn an_install_that_comes_too_late_or_fails_is_undone() {
    let mut world = World::new();
    let member = world.coordinator.join(Time::ZERO, &request("a", 0, 1)).unwrap();
    let Some(Action::Install(run, order)) = world.coordinator.poll_action() else { panic!("no order") };
    let job = order.install;
    world.coordinator.leave(member, &Outcome::Failed("cancelled".into()));
    assert_eq!(world.coordinator.poll_action(), Some(Action::Forget(member)));
    assert_eq!(world.coordinator.poll_action(), None, "the plane is at work");
    world.coordinator.on_installed(run, Ok(doors(&job.workers)));
    assert_eq!(world.coordinator.poll_action(), Some(Action::Remove(run, job.job)));
    world.coordinator.on_removed(Time::ZERO, run, Ok(()));
    assert!(world.coordinator.runs.is_empty());

    let member = world.coordinator.join(Time::ZERO, &request("b", 0, 1)).unwrap();
    let Some(Action::Install(run, order)) = world.coordinator.poll_action() else { panic!("no order") };
    let job = order.install;
    world.coordinator.on_installed(run, Err("no way to rank 0".into()));
    assert_eq!(world.refusal(member), Refusal::Plane { what: "no way to rank 0".into() });
    assert_eq!(world.coordinator.poll_action(), Some(Action::Remove(run, job.job)), "what was half done");
}

#[test]
fn a_stop_tells_everybody() {
    let mut world = World::new();
    let running = world.start("a", 1);
    let waiting = world.join(&request("b", 0, 2)).unwrap();
    world.coordinator.stop();
    world.work();
    assert_eq!(world.failure(running[0]).kind, FailureKind::Stopped);
    assert_eq!(world.refusal(waiting), Refusal::Stopping);
    assert!(world.plane.is_empty() && world.coordinator.is_idle());
    assert_eq!(world.join(&request("c", 0, 1)), Err(Refusal::Stopping));
}
