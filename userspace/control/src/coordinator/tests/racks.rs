//! Racks below this aggregator.

use super::*;

const RACK: PlaneInfo = plane(160, 300);

fn entry(number: u8, last_epochs: Vec<LastEpoch>) -> RackEntry {
    let ip = Ipv4Addr::new(10, 77, 100, 10 + number);
    RackEntry { name: format!("r{number}"), ip, plane: RACK, instance: 1, last_epochs }
}

/// Two racks, with as many workers each.
struct Racks {
    world: World,
    members: Vec<MemberId>,
}

fn below(rack: u64, request: JoinRequest) -> JoinRequest {
    JoinRequest { rack: Some(RackId(rack)), ..request }
}

impl Racks {
    fn entered() -> World {
        let mut world = World::new();
        for number in 0..2 {
            let last = vec![LastEpoch { job: 1, epoch: 40 + u16::from(number) }];
            world.coordinator.rack_enters(Time::ZERO, RackId(number.into()), entry(number, last)).unwrap();
        }
        world
    }

    fn running() -> Racks {
        let mut world = Racks::entered();
        let members =
            (0..4).map(|rank| world.join(&below(u64::from(rank % 2), request("a", rank, 4))).unwrap());
        Racks { members: members.collect(), world }
    }

    /// Time passes; members and these racks are alive.
    fn pass(&mut self, time: Time, racks: &[u64]) {
        let end = self.world.now + time;
        while self.world.now < end {
            let now = self.world.now;
            for rack in racks {
                assert!(self.world.coordinator.rack_reports(now, RackId(*rack), Ok((1, RACK))));
            }
            let alive = self.members.clone();
            self.world.pass(millis(100), &alive);
        }
    }
}

#[test]
fn a_job_gets_what_all_its_aggregators_have() {
    let mut world = Racks::entered();
    let ask = |rank: u16| {
        below(u64::from(rank / 2), wanting("a", rank, 4, |w| (w.elements, w.slots) = (None, None)))
    };
    for rank in 0..4 {
        world.coordinator.join(world.now, &ask(rank)).unwrap();
    }
    let Some(Action::Install(_, order)) = world.coordinator.poll_action() else { panic!("no order") };
    let racks: Vec<_> = order.layout.racks().map(|(_, rack, child)| (rack.0, child.ranks.clone())).collect();
    assert_eq!(racks, [(0, vec![0, 1]), (1, vec![2, 3])]);
    assert_eq!(order.install.elements, 300, "the racks' slots");
    assert!(order.install.first_slot + order.install.slots() <= 160, "the racks' pool");
    assert_eq!(order.install.epoch, 42, "none that any of the planes remembers");
}

#[test]
fn a_silent_rack_fails_the_jobs_below_it_by_name() {
    let mut racks = Racks::running();
    let apart = racks.world.start("b", 1);
    racks.members.extend(&apart);
    racks.pass(seconds(5), &[0, 1]);
    assert_eq!(racks.world.grant(racks.members[0]).job, 1);
    racks.pass(seconds(3), &[0]);
    let failure = racks.world.failure(racks.members[0]);
    assert_eq!(failure.kind, FailureKind::Rack);
    assert_eq!(failure.message, "the aggregator of rack `r1` (10.77.100.11) stopped answering");
    assert_eq!(racks.world.coordinator.poll_lost_rack(), Some(RackId(1)));
    assert_eq!(racks.world.grant(apart[0]).job, 2, "who is not below it goes on");
    assert!(!racks.world.coordinator.rack_reports(racks.world.now, RackId(1), Ok((1, RACK))));
    let late = racks.world.join(&below(1, request("c", 0, 1))).unwrap();
    assert_eq!(racks.world.refusal(late).kind(), RefusalKind::Plane);
}

#[test]
fn a_rack_that_lost_its_state_or_is_away_fails_them_too() {
    let mut racks = Racks::running();
    racks.world.coordinator.rack_reports(racks.world.now, RackId(0), Ok((2, RACK)));
    let failure = racks.world.failure(racks.members[3]);
    assert!(failure.message.contains("`r0` (10.77.100.10) lost its state (instance 1 -> 2)"), "{failure}");

    let mut racks = Racks::running();
    let away = |racks: &mut Racks| {
        racks.world.coordinator.rack_reports(racks.world.now, RackId(0), Err("detached".into()));
    };
    for _ in 0..9 {
        away(&mut racks);
        racks.pass(seconds(1), &[1]);
    }
    assert_eq!(racks.world.grant(racks.members[0]).job, 1, "not yet");
    for _ in 0..2 {
        away(&mut racks);
        racks.pass(seconds(1), &[1]);
    }
    assert!(racks.world.failure(racks.members[0]).message.contains("detached"));
}

#[test]
fn names_and_their_owners() {
    let mut racks = Racks::running();
    let now = racks.world.now;
    let mut enter = |id, entry| racks.world.coordinator.rack_enters(now, RackId(id), entry);
    let other = RackEntry { ip: Ipv4Addr::LOCALHOST, ..entry(0, vec![]) };
    assert!(enter(7, other).unwrap_err().contains("a rack `r0` is there already, at 10.77.100.10"));
    assert!(enter(7, RackEntry { name: String::new(), ..entry(0, vec![]) }).is_err());
    enter(8, entry(0, vec![])).unwrap();
    let failure = racks.world.failure(racks.members[0]);
    assert!(failure.message.contains("`r0` (10.77.100.10) was started anew"), "{failure}");
    assert_eq!(racks.world.coordinator.poll_lost_rack(), Some(RackId(0)), "its earlier self");
}

#[test]
fn workers_are_all_below_racks_or_none() {
    let mut world = Racks::entered();
    let zero = world.join(&request("a", 0, 2)).unwrap();
    world.join(&below(1, request("a", 1, 2))).unwrap();
    let refusal = world.refusal(zero);
    assert_eq!(refusal.kind(), RefusalKind::Invalid);
    assert!(
        refusal.to_string().contains("rank 0 joined at the root itself and rank 1 at rack `r1`"),
        "{refusal}"
    );
    let refusal = world.join(&request("b", 0, 33)).unwrap_err();
    assert!(refusal.to_string().contains("1 to 32"), "{refusal}");
    assert!(world.join(&below(0, request("b", 0, 33))).is_ok(), "more than 32 have room in two racks");
}
