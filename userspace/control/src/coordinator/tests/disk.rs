//! The journal on a file system with faults, from seeds: `SEED=7` runs one, `SEEDS=10000` as many.

use rand::{Rng as _, seq::IndexedRandom as _};

use super::*;
use crate::journal::simulated::Faults;

fn with_disk(seed: u64, info: PlaneInfo) -> World {
    let mut world = World::with(info);
    let disk = Simulated::new(seed);
    let (journal, _) = Journal::read(Path::new("disk"), Box::new(disk.clone())).unwrap();
    let recorder = Recorder::new(journal, Time::ZERO, &mut world.coordinator);
    world.disk = Some((disk, recorder));
    world
}

impl World {
    fn set_faults(&self, faults: Faults) {
        self.disk.as_ref().unwrap().0.set_faults(faults);
    }

    /// The machine loses power and is started again, with a disk that works.
    fn power_off(&mut self) {
        self.disk.as_ref().unwrap().0.crash();
        self.set_faults(Faults::default());
        self.restart(0);
    }

    fn journal_failures(&self) -> u64 {
        self.disk.as_ref().unwrap().1.stats().failures
    }

    /// The terms of a running job's member; none if the job does not run.
    fn granted(&self, member: MemberId) -> Option<JobTerms> {
        match self.coordinator.status(member)?.1 {
            Status::Running { grant, .. } => Some(grant.terms),
            _ => None,
        }
    }
}

/// The room that is left on the disk.
fn with_room_for(world: &World, bytes: usize) -> Faults {
    let used = world.disk.as_ref().unwrap().0.used();
    Faults { capacity: Some(used + bytes), ..Faults::default() }
}

#[test]
fn a_full_disk_refuses_jobs_and_spoils_nothing() {
    for room in (0..600).step_by(7) {
        let mut world = with_disk(room, INFO);
        let before = world.start("before", 2);
        world.set_faults(with_room_for(&world, room as usize));
        let during = world.join(&request("during", 0, 1));
        let is_granted = during.clone().is_ok_and(|member| world.granted(member).is_some());
        if !is_granted {
            let why = match &during {
                Ok(member) => world.refusal(*member).message,
                Err(refusal) => refusal.message.clone(),
            };
            assert!(why.contains("cannot write the journal"), "room for {room}: {why}");
            assert!(world.journal_failures() > 0);
        }
        assert!(world.granted(before[0]).is_some(), "running jobs go on");
        world.set_faults(Faults::default());
        let after = world.start("after", 2);
        world.power_off();
        for member in before.iter().chain(&after) {
            assert!(world.granted(*member).is_some(), "room for {room}: a job is lost");
        }
        if is_granted {
            assert!(world.granted(during.unwrap()).is_some(), "room for {room}: a granted job is lost");
        }
    }
}

#[test]
fn a_replacement_that_is_not_on_the_disk_is_refused_and_the_rank_stays_vacant() {
    let mut world = with_disk(1, dynamic::SHARING);
    world.coordinator.rejoin_grace = seconds(30);
    world.enter(dynamic::host(0));
    let members = world.all((0..2).map(|rank| dynamic::plain("a", rank, 2)));
    world.pass_with(seconds(3), &members[..1], &dynamic::present());
    world.set_faults(with_room_for(&world, 0));
    let new = world.join(&dynamic::plain("a", 1, 2)).unwrap();
    assert_eq!(world.coordinator.status(new), None, "it is no member");
    assert_eq!(world.terms(members[0]).epoch, 1, "the job goes on");
    assert!(world.join(&dynamic::plain("a", 1, 2)).unwrap_err().message.contains("cannot write"));
    world.set_faults(Faults::default());
    let new = world.join(&dynamic::plain("a", 1, 2)).unwrap();
    world.pass_with(seconds(1), &[members[0], new], &dynamic::present());
    assert!(world.terms(new).epoch > 1);
    assert_eq!(world.terms(members[0]), world.terms(new));
}

#[test]
fn a_rack_that_is_not_on_the_disk_has_not_entered() {
    let mut world = with_disk(1, dynamic::SHARING);
    world.set_faults(with_room_for(&world, 0));
    let id = RackId(world.enter(dynamic::rack(1)));
    assert!(!world.coordinator.has_rack(id));
    assert_eq!(world.coordinator.poll_lost_rack(), Some(id), "its connection ends");
}

/// One trainer after the other joins, leaves, and sometimes the power fails.
fn play(seed: u64, lies: bool) {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut world = with_disk(seed, INFO);
    let mut alive: Vec<MemberId> = Vec::new();
    for _ in 0..60 {
        if rng.random_bool(0.3) {
            let of =
                |rng: &mut ChaCha8Rng| if rng.random_bool(0.3) { rng.random_range(0.0..0.4) } else { 0.0 };
            let room = rng.random_bool(0.3).then(|| rng.random_range(0..2000));
            let mut faults = Faults {
                short: of(&mut rng),
                write_fails: of(&mut rng),
                sync_fails: of(&mut rng),
                sync_lost: 0.0,
                rename_fails: of(&mut rng),
                capacity: room.and_then(|room| with_room_for(&world, room).capacity),
            };
            if lies {
                faults.sync_lost = of(&mut rng);
            }
            world.set_faults(faults);
        }
        match rng.random_range(0..10) {
            0..5 => {
                let (job, world_size) = (rng.random_range(0..4), rng.random_range(1..3));
                let slots = rng.random_bool(0.5).then_some(16);
                let name = format!("job {job}");
                for rank in 0..world_size {
                    let join = wanting(&name, rank, world_size, |asked| asked.spec.slots = slots);
                    alive.extend(world.join(&join));
                }
            }
            5 => {
                if let Some(member) = alive.choose(&mut rng).copied() {
                    world.leave(
                        member,
                        if rng.random() { Outcome::Done } else { Outcome::Failed("so".into()) },
                    );
                }
            }
            6 => {
                for member in alive.clone() {
                    let rtt_ns = rng.random_range(1..1 << 20);
                    let measure = PathMeasure { rtt_ns, shortest_ns: rtt_ns, bytes_per_s: 125_000_000 };
                    world.post(member, 0, vec![Post::Measure(measure)]);
                }
            }
            7..9 => world.pass(millis(rng.random_range(1..2500)), &alive.clone()),
            _ => {
                let granted: Vec<_> =
                    alive.iter().filter_map(|id| Some((*id, world.granted(*id)?))).collect();
                world.power_off();
                for (member, terms) in granted.into_iter().filter(|_| !lies) {
                    assert_eq!(world.granted(member), Some(terms), "a granted job is lost");
                }
            }
        }
        alive
            .retain(|member| world.granted(*member).is_some() || world.coordinator.status(*member).is_some());
    }
    world.set_faults(Faults::default());
    world.pass(seconds(20), &[]);
    assert!(world.coordinator.runs.is_empty(), "{:?}", world.coordinator.runs);
    assert!(world.plane.is_empty());
    assert_eq!(world.coordinator.pool.free(u32::MAX), INFO.slots);
}

/// Granted jobs are there after a power failure, whatever the disk did. No incarnation comes twice, and no
/// slots are two jobs' (both checked at every install). With syncs that lie, only these and the end.
#[test]
fn what_was_granted_survives_any_fault_of_the_disk() {
    let from = |name| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    let seeds = match from("SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..from("SEEDS").unwrap_or(60),
    };
    for seed in seeds {
        for lies in [false, true] {
            let played = std::panic::catch_unwind(|| play(seed, lies));
            assert!(
                played.is_ok(),
                "SEED={seed} cargo test -p sumac-control what_was_granted (lost syncs: {lies})"
            );
        }
    }
}
