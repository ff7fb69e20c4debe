//! Random sequences of joins, leaves, deaths, accidents and restarts.

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Step {
    Join { job: u8, rank: u16, world: u16, slots: Option<u32> },
    Leave { which: prop::sample::Index, done: bool },
    Die(prop::sample::Index),
    Pass(u64),
    LoseState,
    Restart { torn: usize },
    RefuseRemoval(bool),
    Measure(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let slots = prop_oneof![Just(None), (0u32..8).prop_map(|log2| Some(1 << log2))];
    prop_oneof![
        8 => (0u8..5, 0u16..3, 1u16..4, slots)
            .prop_map(|(job, rank, world, slots)| Step::Join { job, rank, world, slots }),
        3 => (any::<prop::sample::Index>(), any::<bool>()).prop_map(|(which, done)| Step::Leave { which, done }),
        1 => any::<prop::sample::Index>().prop_map(Step::Die),
        2 => (1u64..4000).prop_map(Step::Pass),
        1 => Just(Step::LoseState),
        1 => (0usize..200).prop_map(|torn| Step::Restart { torn: torn.saturating_sub(100) }),
        1 => any::<bool>().prop_map(Step::RefuseRemoval),
        3 => (1u64..1 << 40).prop_map(Step::Measure),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]
    /// Whatever happens: no incarnation twice, no slots of two jobs (both checked at every install),
    /// and in the end nothing is left, of members, runs and slots.
    #[test]
    fn nothing_leaks(steps in prop::collection::vec(step(), 0..60)) {
        let mut world = World::new();
        let mut alive: Vec<MemberId> = Vec::new();
        for step in steps {
            match step {
                Step::Join { job, rank, world: size, slots } => {
                    let join = wanting(&format!("job {job}"), rank, size, |asked| asked.spec.slots = slots);
                    if let Ok(member) = world.join(&join) {
                        alive.push(member);
                    }
                }
                Step::Leave { which, done } if !alive.is_empty() => {
                    let member = alive.swap_remove(which.index(alive.len()));
                    world.leave(member, if done { Outcome::Done } else { Outcome::Failed("so".into()) });
                }
                Step::Die(which) if !alive.is_empty() => {
                    alive.swap_remove(which.index(alive.len()));
                }
                Step::Pass(time) => world.pass(millis(time), &alive.clone()),
                Step::LoseState => world.lose_state(),
                Step::Restart { torn } => world.restart(torn),
                Step::RefuseRemoval(refuse) => world.refuse_removal = refuse,
                Step::Measure(rtt_ns) => {
                    for member in alive.clone() {
                        let measure = PathMeasure { rtt_ns, shortest_ns: rtt_ns, bytes_per_s: 125_000_000 };
                        world.post(member, 0, vec![Post::Measure(measure)]);
                    }
                }
                Step::Leave { .. } | Step::Die(_) => {}
            }
        }
        world.refuse_removal = false;
        world.pass(seconds(20), &[]);
        prop_assert!(world.coordinator.runs.is_empty(), "{:?}", world.coordinator.runs);
        prop_assert!(world.coordinator.members.is_empty());
        prop_assert!(world.plane.is_empty());
        prop_assert_eq!(world.coordinator.pool.free(u32::MAX), INFO.slots);
    }
}
