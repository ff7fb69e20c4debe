//! Random sequences with dynamic jobs beside static ones: racks and parameter hosts come and go, workers are
//! replaced.

use proptest::prelude::*;

use super::{
    dynamic::{SHARING, host, plain, rack},
    *,
};

#[derive(Clone, Debug)]
enum Step {
    Join {
        job: u8,
        rank: u16,
        world: u16,
        dynamic: bool,
        rack: Option<u64>,
    },
    /// Three ranks, each at the rack of this number or at the root.
    Start {
        job: u8,
        racks: [Option<u64>; 3],
    },
    Leave {
        which: prop::sample::Index,
        how: u8,
    },
    Die(prop::sample::Index),
    Pass(u64),
    Enter(u64),
    Vanish(u64),
    Away(bool),
    LoseState,
    Restart,
    Refuse {
        restore: bool,
        renewal: bool,
    },
}

/// Racks have even numbers, parameter hosts odd ones.
fn entry(number: u64) -> RackEntry {
    if number.is_multiple_of(2) { rack(number as u8) } else { host(number as u8) }
}

fn step() -> impl Strategy<Value = Step> {
    let rack = prop_oneof![2 => Just(None), 1 => (0u64..2).prop_map(|rack| Some(2 * rack))];
    let three = prop::array::uniform3(rack.clone());
    prop_oneof![
        5 => (0u8..4, three).prop_map(|(job, racks)| Step::Start { job, racks }),
        9 => (0u8..4, 0u16..3, Just(3), prop::bool::weighted(0.8), rack)
            .prop_map(|(job, rank, world, dynamic, rack)| Step::Join { job, rank, world, dynamic, rack }),
        3 => (any::<prop::sample::Index>(), 0u8..3).prop_map(|(which, how)| Step::Leave { which, how }),
        2 => any::<prop::sample::Index>().prop_map(Step::Die),
        4 => (1u64..4000).prop_map(Step::Pass),
        3 => (0u64..4).prop_map(Step::Enter),
        1 => (0u64..4).prop_map(Step::Vanish),
        1 => any::<bool>().prop_map(Step::Away),
        1 => Just(Step::LoseState),
        1 => Just(Step::Restart),
        1 => (any::<bool>(), any::<bool>()).prop_map(|(restore, renewal)| Step::Refuse { restore, renewal }),
    ]
}

/// The surroundings of the coordinator.
struct Play {
    world: World,
    alive: Vec<MemberId>,
    /// The racks and parameter hosts that are connected: their ids, by their numbers.
    present: BTreeMap<u64, u64>,
    is_away: bool,
}

impl Play {
    fn new() -> Play {
        let mut world = World::with(SHARING);
        world.coordinator.rejoin_grace = seconds(3);
        let mut play = Play { world, alive: Vec::new(), present: BTreeMap::new(), is_away: false };
        play.step(Step::Enter(1));
        play
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Join { job, rank, world, dynamic, rack } => {
                self.join(job, rank, world, dynamic, rack);
            }
            Step::Start { job, racks } => {
                for (rank, rack) in (0..).zip(racks) {
                    self.join(job, rank, 3, true, rack);
                }
            }
            Step::Leave { which, how } if !self.alive.is_empty() => {
                let member = self.alive.swap_remove(which.index(self.alive.len()));
                let outcomes = [Outcome::Done, Outcome::Failed("so".into()), Outcome::Died("so".into())];
                self.world.leave(member, outcomes[usize::from(how)].clone());
            }
            Step::Die(which) if !self.alive.is_empty() => {
                self.alive.swap_remove(which.index(self.alive.len()));
            }
            Step::Leave { .. } | Step::Die(_) => {}
            Step::Pass(time) => self.pass(millis(time)),
            Step::Enter(number) => {
                let id = self.world.enter(entry(number));
                self.present.insert(number, id);
            }
            Step::Vanish(number) => drop(self.present.remove(&number)),
            Step::Away(is_away) => self.is_away = is_away,
            Step::LoseState => {
                self.is_away = false;
                self.world.lose_state();
            }
            Step::Restart => {
                self.is_away = false;
                self.world.restart(0);
                self.enter_again();
            }
            Step::Refuse { restore, renewal } => {
                let renewed = Replaced { placements: Vec::new(), resume: vec![0; 8], lost: vec![None] };
                self.world.refuse_restore = restore;
                self.world.replaced = if renewal { Err("no".into()) } else { Ok(renewed) };
            }
        }
        self.check();
    }

    fn join(&mut self, job: u8, rank: u16, world: u16, dynamic: bool, rack: Option<u64>) {
        let name = format!("job {job}");
        let request = if dynamic { plain(&name, rank, world) } else { request(&name, rank, world) };
        let rack = rack.and_then(|rack| self.present.get(&rack)).map(|session| RackId(*session));
        if let Ok(member) = self.world.join(&within(5.0, Join { rack, ..request })) {
            self.alive.push(member);
        }
    }

    fn pass(&mut self, time: Time) {
        let present: Vec<_> =
            self.present.iter().map(|(number, session)| (*session, entry(*number).plane)).collect();
        let state = if self.is_away { Err("away".into()) } else { Ok((self.world.instance, SHARING)) };
        self.world.coordinator.on_plane(self.world.now, state);
        self.world.pass_with(time, &self.alive.clone(), &present);
    }

    /// Connected members enter again, with the jobs that they must keep.
    fn enter_again(&mut self) {
        for number in self.present.keys().copied().collect::<Vec<_>>() {
            let entry = entry(number);
            let is_host = entry.plane.kind == PlaneKind::Parameter;
            let known = self.world.coordinator.known_jobs(&entry.name, is_host);
            let jobs = known.iter().map(|known| known.job).collect();
            let jobs = TakenOver { jobs, last_epochs: vec![] };
            let id = self.world.enter(RackEntry { jobs, ..entry });
            self.present.insert(number, id);
        }
    }

    /// Every running job has what it needs.
    fn check(&self) {
        let coordinator = &self.world.coordinator;
        for run in coordinator.runs.values().filter(|run| run.outlives_aggregators()) {
            let shared = run.shared.as_ref().unwrap();
            assert!(shared.hosts.iter().all(|host| coordinator.racks.contains_key(host)), "a lost host");
            let hosts = run.terms.as_ref().unwrap().parameter_hosts.len();
            assert_eq!(shared.hosts.len(), hosts);
            assert!(
                run.members.keys().copied().eq(0..run.world),
                "a member is gone, and its rank not only vacated"
            );
            for rack in run.members.values().filter_map(|member| member.rack) {
                assert!(run.racks.contains_key(&rack), "a rack that it does not know");
            }
            assert_eq!(run.range, None);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]
    /// Whatever happens: no incarnation twice, no two runs of one number (both checked at every install),
    /// every running job has its parameter hosts, and in the end nothing is left.
    #[test]
    fn nothing_leaks(steps in prop::collection::vec(step(), 0..60)) {
        let mut play = Play::new();
        for step in steps {
            play.step(step);
        }
        play.alive.clear();
        // A worker below a rack that is gone is found dead when that is back.
        for number in 0..4 {
            play.step(Step::Enter(number));
        }
        play.pass(seconds(25));
        let coordinator = &play.world.coordinator;
        prop_assert!(coordinator.runs.is_empty(), "{:?}", coordinator.runs);
        prop_assert!(coordinator.members.is_empty());
        prop_assert!(play.world.plane.is_empty());
        prop_assert_eq!(coordinator.pool.free(u32::MAX), SHARING.slots);
    }
}
