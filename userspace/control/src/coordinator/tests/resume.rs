//! Dynamic jobs of an earlier control plane, which another one takes up.

use super::{
    dynamic::{SHARING, below, host, plain, rack},
    *,
};

/// What it takes to come back.
struct Members {
    requests: Vec<JoinRequest>,
    had: Vec<Assignment>,
}

/// A job that has run at a control plane with these ranks below racks.
fn run_before(racks: &[Option<u64>]) -> Members {
    let mut world = World::sharing(&[0]);
    world.enter(1, rack(1));
    let requests = requests(racks);
    let members = world.all(requests.clone());
    let layout = Layout::new(&racks.iter().map(|rack| rack.map(RackId)).collect::<Vec<_>>(), true);
    let had = members.iter().enumerate().map(|(rank, member)| {
        let spot = layout.spot(rank).unwrap();
        let (rack_rank, rack_world) = (spot.bit as u16, spot.fan_in as u16);
        Assignment { rack_rank, rack_world, ..world.grant(*member) }
    });
    Members { requests, had: had.collect() }
}

fn requests(racks: &[Option<u64>]) -> Vec<JoinRequest> {
    let request = |(rank, rack): (u16, &Option<u64>)| {
        let request = plain("a", rank, racks.len() as u16);
        rack.map_or(request.clone(), |rack| below(rack, request))
    };
    (0..).zip(racks).map(request).collect()
}

impl Members {
    fn claim(&self, rank: usize) -> JoinRequest {
        JoinRequest { resumes: Some(self.had[rank].clone()), ..self.requests[rank].clone() }
    }

    fn all(&self) -> impl Iterator<Item = JoinRequest> {
        (0..self.had.len()).map(|rank| self.claim(rank))
    }
}

/// The same from another worker.
fn elsewhere(mut claim: JoinRequest) -> JoinRequest {
    claim.worker.port += 1;
    claim
}

fn keeping(kept: &[u16]) -> RackEntry {
    let entry = host(0);
    RackEntry { plane: PlaneInfo { kept: kept.to_vec(), ..entry.plane }, ..entry }
}

/// A control plane that knows nothing, but for a parameter host that keeps job 1.
fn anew() -> World {
    let mut world = World::with(SHARING);
    world.enter(200, keeping(&[1]));
    world
}

fn here() -> [(u64, PlaneInfo); 1] {
    [(200, host(0).plane)]
}

#[test]
fn a_job_goes_on_when_all_have_come_back() {
    let before = run_before(&[None, None]);
    let mut world = anew();
    let first = world.join(&before.claim(0)).unwrap();
    assert_eq!(world.status(first), Status::Waiting(vec![1]));
    let second = world.join(&before.claim(1)).unwrap();
    for (rank, member) in [first, second].into_iter().enumerate() {
        let grant = world.grant(member);
        assert_eq!(
            grant,
            Assignment { slots_reason: grant.slots_reason.clone(), ..before.had[rank].clone() }
        );
    }
    let [order] = &world.resumed[..] else { panic!("{:?}", world.resumed) };
    let (job, had) = (&order.install, &before.had[0]);
    assert_eq!((job.job, job.epoch, job.token, job.shards), (had.job, had.epoch, had.token, had.shards));
    assert_eq!((order.hosts.clone(), job.workers.len()), (vec![RackId(200)], 2));

    // The aggregator gets it back, as one that has lost it.
    world.pass_with(seconds(1), &[first, second], &here());
    assert_eq!(world.restored, [(RunId(0), None)]);
    world.pass_with(seconds(3), &[first], &here());
    assert_eq!(world.failure(first).culprit, Some(1), "who dies now is missed");
    world.leave(first, Outcome::Done);
    let next = world.all([plain("a", 0, 1)]);
    assert_eq!(world.grant(next[0]).epoch, had.epoch + 1, "no incarnation comes twice");
}

#[test]
fn racks_get_it_back_too() {
    let before = run_before(&[Some(1), None, Some(1)]);
    let mut world = anew();
    world.enter(7, rack(1));
    let claims: Vec<_> =
        before.all().map(|claim| JoinRequest { rack: claim.rack.map(|_| RackId(7)), ..claim }).collect();
    let members = world.all(claims.clone());
    let present = [(200, host(0).plane), (7, rack(1).plane)];
    world.pass_with(seconds(1), &members, &present);
    assert_eq!(world.restored, [(RunId(0), None), (RunId(0), Some(RackId(7)))]);
    assert_eq!(world.grant(members[2]).rack_rank, 1);

    // Not below other aggregators than before.
    let mut world = anew();
    world.enter(7, rack(1));
    let members = world.all(claims.into_iter().map(|claim| JoinRequest { rack: None, ..claim }));
    assert!(world.refusal(members[0]).to_string().contains("below other aggregators than they were"));
    assert!(world.resumed.is_empty());
}

#[test]
fn who_does_not_come_back_is_named() {
    let before = run_before(&[None, None]);
    let mut world = anew();
    let first = world.join(&before.claim(0)).unwrap();
    world.pass_with(seconds(31), &[first], &here());
    assert_eq!(world.refusal(first).ranks(), [1]);

    // Neither the parameter host, nor what it had summed.
    for kept in [None, Some(&[][..]), Some(&[2])] {
        let mut world = World::with(SHARING);
        kept.into_iter().for_each(|kept| world.enter(200, keeping(kept)));
        let members = world.all(before.all());
        let present: Vec<_> = kept.into_iter().map(|kept| (200, keeping(kept).plane)).collect();
        world.pass_with(seconds(31), &members, &present);
        let failure = world.failure(members[0]);
        assert_eq!(failure.kind, FailureKind::ParameterHost);
        assert!(failure.message.contains("10.77.200.0:48800 did not come back"), "{failure}");
    }
    let mut world = World::with(SHARING);
    let members = world.all(before.all());
    world.pass(seconds(2), &members);
    world.enter(200, keeping(&[1]));
    world.pass_with(seconds(1), &members, &[(200, keeping(&[1]).plane)]);
    assert_eq!(world.grant(members[1]).epoch, 1, "one that comes later is waited for");
}

#[test]
fn a_host_that_keeps_another_job_ends_it() {
    let before = run_before(&[None]);
    let mut world = anew();
    world.refuse_resume = true;
    let members = world.all(before.all());
    assert_eq!(world.failure(members[0]).kind, FailureKind::PlaneDown);
    world.leave(members[0], Outcome::Done);
    assert!(world.coordinator.runs.is_empty());
}

#[test]
fn what_does_not_fit_is_refused() {
    let before = run_before(&[None, None]);
    let other = |change: fn(&mut Assignment)| {
        let mut claim = before.claim(1);
        claim.resumes.iter_mut().for_each(change);
        claim
    };
    let table = [
        (other(|had| had.epoch = 2), "another incarnation"),
        (other(|had| had.token ^= 1), "another incarnation"),
        (other(|had| had.job = 2), "another incarnation"),
        (other(|had| had.dynamic.as_mut().unwrap().window *= 2), "another incarnation"),
        (other(|had| had.dynamic = None), "only dynamic jobs"),
        (elsewhere(before.claim(0)), "rank 0 has joined already"),
    ];
    for (claim, words) in table {
        let mut world = anew();
        let first = world.join(&before.claim(0)).unwrap();
        let refusal = world.join(&claim).unwrap_err().to_string();
        assert!(refusal.contains(words), "{refusal}");
        assert_eq!(world.status(first), Status::Waiting(vec![1]), "the others wait on");
    }
    let mut world = anew();
    world.start("b", 1);
    let mut number = before.claim(0);
    number.resumes.as_mut().unwrap().job = 2;
    let taken = world.join(&number).unwrap_err().to_string();
    assert!(taken.contains("job number 2 is that of `b` here"), "{taken}");
    number.resumes.as_mut().unwrap().job = 0;
    assert!(world.join(&number).is_err(), "no job has that number");
    let mut named = before.claim(0);
    named.wishes.order = OperationOrder::Name;
    assert!(world.join(&named).unwrap_err().to_string().contains("in order of submission"));
}

#[test]
fn who_comes_back_twice_has_its_place_again() {
    let before = run_before(&[None, None]);
    let mut world = anew();
    // Neither heard the answer to its first claim; that of the second made the job run.
    let ghosts = world.all(before.all());
    assert_eq!(world.forgotten, []);
    let taken = world.join(&elsewhere(before.claim(1))).unwrap_err();
    assert_eq!(taken.kind(), RefusalKind::RankTaken, "but nobody else");
    let notice = |text: &str| Post::Notice(crate::Notice { key: 1, text: text.into() });
    world.post(ghosts[0], 0, vec![notice("heard"), notice("not heard")]);
    world.coordinator.heard(ghosts[1], 1);
    world.pass_with(seconds(1), &[], &here());
    let members = world.all(before.all());
    assert_eq!(world.forgotten, ghosts);
    world.pass_with(seconds(5), &members, &here());
    assert_eq!(world.grant(members[1]).epoch, before.had[1].epoch);
    let (first, events) = world.coordinator.events(members[1], 0, 1 << 10);
    assert_eq!((first, events.len()), (1, 1), "of what it has heard nothing again");
    world.post(members[0], 0, vec![notice("its first here")]);
    assert_eq!(world.coordinator.events(members[1], 2, 1 << 10).1.len(), 1);
    world.leave(ghosts[0], Outcome::Failed("nobody".into()));
    assert_eq!(world.grant(members[0]).epoch, before.had[0].epoch);

    // While others are missing, too.
    let mut world = anew();
    let ghost = world.join(&before.claim(0)).unwrap();
    let first = world.join(&before.claim(0)).unwrap();
    assert_eq!((world.status(first), world.forgotten.clone()), (Status::Waiting(vec![1]), vec![ghost]));
    world.join(&before.claim(1)).unwrap();
    assert_eq!(world.grant(first).epoch, before.had[0].epoch);

    // And when it was taken for dead meanwhile.
    world.coordinator.rejoin_grace = seconds(5);
    let second = world.join(&before.claim(1)).unwrap();
    world.pass_with(seconds(3), &[second], &here());
    let first = world.join(&before.claim(0)).unwrap();
    world.pass_with(seconds(10), &[first, second], &here());
    assert_eq!(world.grant(first).epoch, before.had[0].epoch);
}

#[test]
fn a_running_job_goes_before_one_that_is_opened_anew() {
    let before = run_before(&[None, None, None]);
    let mut world = anew();
    // Rank 2 has died, and its trainer was started anew.
    let early = world.join(&plain("a", 2, 3)).unwrap();
    assert!(
        matches!(world.join(&before.claim(2)), Err(Refusal::RankTaken { .. })),
        "but not of its own rank"
    );
    let claimed = world.join(&before.claim(0)).unwrap();
    assert_eq!(world.refusal(early), Refusal::Held { job: "a".into(), ranks: vec![0] });
    world.leave(early, Outcome::Done);
    assert_eq!(world.join(&plain("a", 2, 3)), Err(Refusal::Held { job: "a".into(), ranks: vec![0] }));
    let second = world.join(&before.claim(1)).unwrap();
    world.pass_with(seconds(31), &[claimed, second], &here());
    assert_eq!(world.refusal(claimed).ranks(), [2], "it is missed");
    for member in [claimed, second] {
        world.leave(member, Outcome::Done);
    }
    world.enter(200, keeping(&[1]));
    let fresh = world.all((0..3).map(|rank| plain("a", rank, 3)));
    let grant = world.grant(fresh[0]);
    assert_eq!(
        (grant.job, grant.epoch),
        (2, 1),
        "under another number: nobody has confirmed what that one had"
    );
    assert!(matches!(world.join(&before.claim(1)), Err(Refusal::RankTaken { .. })));
}

#[test]
fn who_was_not_heard_while_its_job_ended_is_told() {
    let mut world = World::sharing(&[0]);
    let requests = requests(&[None, None]);
    let members = world.all(requests.clone());
    let had = world.grant(members[1]);
    world.pass_with(seconds(3), &members[..1], &[(100, host(0).plane)]);
    assert_eq!(world.failure(members[0]).culprit, Some(1));
    assert!(world.forgotten.contains(&members[1]));
    world.leave(members[0], Outcome::Done);
    let gathering = world.join(&requests[0]).unwrap();
    let late = JoinRequest { resumes: Some(had), ..requests[1].clone() };
    assert_eq!(world.join(&late), Err(Refusal::Over { job: "a".into() }));
    assert_eq!(world.status(gathering), Status::Waiting(vec![1]), "and holds nobody up");
}

#[test]
fn who_was_replaced_while_it_was_not_heard_is_told() {
    let mut world = World::sharing(&[0]);
    world.coordinator.rejoin_grace = seconds(10);
    let requests = requests(&[None, None]);
    let mut members = world.all(requests.clone());
    let had = world.grant(members[1]);
    let present = [(100, host(0).plane)];
    world.pass_with(seconds(3), &members[..1], &present);
    members[1] = world.join(&elsewhere(requests[1].clone())).unwrap();
    let late = JoinRequest { resumes: Some(had), ..requests[1].clone() };
    let refusal = world.join(&late).unwrap_err();
    assert_eq!((refusal.kind(), refusal.ranks()), (RefusalKind::Over, vec![1]), "{refusal}");
    // Who takes part and has not heard of the next incarnation yet has its place.
    let survivor = JoinRequest { resumes: late.resumes, ..requests[0].clone() };
    members[0] = world.join(&survivor).unwrap();
    world.pass_with(seconds(3), &members, &present);
    assert_eq!([0, 1].map(|rank| world.grant(members[rank]).epoch), [2, 2]);
}

#[test]
fn one_that_is_stopped_leaves_it_as_it_was() {
    let before = run_before(&[None]);
    let mut world = anew();
    let members = world.all(before.all());
    world.coordinator.stop();
    world.work();
    assert_eq!(world.grant(members[0]).epoch, 1);
    assert!(world.plane.is_empty() && world.coordinator.is_idle());
}
