//! Checks the slot's decision (Algorithm 3) and the workers' rule (Algorithm 4) exhaustively, for
//! 2 and 3 workers with 1 and 2 slots, on a network that loses, delays, reorders and duplicates.
//!
//! A packet that was sent once may arrive at any later time, any number of times, or never: that
//! is every behaviour of such a network at once, and retransmission too. The same model with the
//! slot as the paper prints it, one bit of version instead of the chunk's number, must fail.

use std::hash::Hash;

use stateright::{Checker, HasDiscoveries, Model, Property};
use sumac_wire::{
    header::flag,
    slot::{Action, Contribution, SlotMeta, Then, decide, owner},
    stream::place,
    workers::all_workers,
};

/// Chunks that each slot carries: enough to use each version twice and once more.
const CHUNKS_PER_SLOT: u32 = 5;

/// The contributions in a sum: `[worker][chunk]` in 2 bits each.
type Sum = u64;

fn term(worker: u32, chunk: u32) -> Sum {
    1 << (2 * (worker * 8 + chunk))
}

/// An aggregator's knowledge of the job.
#[derive(Clone, Copy)]
struct Sizes {
    workers: u32,
    slots: u32,
}

/// An aggregator's treatment of a slot.
trait Slot: Clone + Hash + PartialEq + std::fmt::Debug + Send + Sync + Default + 'static {
    fn receive(&mut self, sizes: Sizes, worker: u32, seq: u32, version: u8, sum: Sum) -> Answer;

    /// Whether a question about this contribution is answered as it must be; the paper has none.
    fn is_honest(&self, _sizes: Sizes, _worker: u32, _seq: u32, _version: u8) -> bool {
        true
    }
}

/// The packet that it sends.
#[derive(Clone, Copy)]
enum Answer {
    Nothing,
    ToAll(Sum),
    ToOne(Sum),
}

/// The slot of `sumac_wire`.
#[derive(Clone, Debug, Default, PartialEq, Hash)]
struct Numbered {
    meta: SlotMeta,
    values: [Sum; 2],
}

fn contribution(sizes: Sizes, worker: u32, seq: u32, version: u8) -> Contribution {
    Contribution {
        owner: owner(1, 1),
        seq,
        slot: seq & (sizes.slots - 1),
        lane: 0,
        version,
        worker: 1 << worker,
        all: all_workers(sizes.workers as u16),
        awaited: all_workers(sizes.workers as u16),
        slots: sizes.slots,
        tensor: 0,
        elements: 1,
        flags: 0,
        received: seq,
        next_exponent: 0,
        child: false,
        ranks: u32::MAX,
        left_out: 0,
        limit: 0,
        bound: 0,
    }
}

impl Slot for Numbered {
    fn receive(&mut self, sizes: Sizes, worker: u32, seq: u32, version: u8, sum: Sum) -> Answer {
        let contribution = contribution(sizes, worker, seq, version);
        let (meta, action) = decide(&self.meta, &contribution);
        self.meta = meta;
        let values = &mut self.values[version as usize];
        let then = match action {
            Action::Store(then) => {
                *values = sum;
                then
            }
            Action::Add(then) => {
                *values = values.wrapping_add(sum);
                then
            }
            Action::Reply => return Answer::ToOne(*values),
            _ => return Answer::Nothing,
        };
        if then == Then::Complete {
            self.meta.set_next(version, seq + 2 * sizes.slots);
        }
        if then == Then::Complete { Answer::ToAll(*values) } else { Answer::Nothing }
    }

    /// The contribution is wanted exactly when it would be taken in, or answered: then, and only then, its
    /// worker gets on by sending it. A question only notes how far its sender has received.
    fn is_honest(&self, sizes: Sizes, worker: u32, seq: u32, version: u8) -> bool {
        let contribution = contribution(sizes, worker, seq, version);
        let question = Contribution { flags: flag::QUERY, elements: 0, ..contribution };
        let expected = match decide(&self.meta, &contribution).1 {
            left @ (Action::Ignore(_) | Action::Postpone) => left,
            _ => Action::Want,
        };
        let (mut after, action) = decide(&self.meta, &question);
        for (after, before) in after.versions.iter_mut().zip(&self.meta.versions) {
            if after.received == before.received | contribution.worker && after.seq < seq {
                after.received = before.received;
            }
        }
        (after, action) == (self.meta, expected)
    }
}

/// Algorithm 3 as printed: `seen` and `count` per version, no number.
#[derive(Clone, Debug, Default, PartialEq, Hash)]
struct AsPrinted {
    seen: [u32; 2],
    count: [u32; 2],
    pool: [Sum; 2],
}

impl Slot for AsPrinted {
    fn receive(&mut self, sizes: Sizes, worker: u32, _seq: u32, version: u8, sum: Sum) -> Answer {
        let (v, bit) = (version as usize, 1 << worker);
        if self.seen[v] & bit != 0 {
            return if self.count[v] == 0 { Answer::ToOne(self.pool[v]) } else { Answer::Nothing };
        }
        self.seen[v] |= bit;
        self.seen[1 - v] &= !bit;
        self.count[v] = (self.count[v] + 1) % sizes.workers;
        self.pool[v] = if self.count[v] == 1 { sum } else { self.pool[v].wrapping_add(sum) };
        if self.count[v] == 0 { Answer::ToAll(self.pool[v]) } else { Answer::Nothing }
    }
}

struct System<S> {
    workers: u32,
    slots_log2: u32,
    slot: std::marker::PhantomData<S>,
}

#[derive(Clone, Debug, PartialEq, Hash)]
struct State<S> {
    slots: Vec<S>,
    /// `[worker][slot]`: the round that the worker waits for in that slot, which it has sent.
    rounds: Vec<Vec<u32>>,
    /// `[worker]`: results that were sent to it, in order of their first sending.
    results: Vec<Vec<(u32, Sum)>>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Step {
    /// The aggregator receives this worker's chunk, sent now or long ago.
    Contribution { worker: u32, seq: u32 },
    /// The worker receives a result.
    Result { worker: u32, index: usize },
}

impl<S: Slot> System<S> {
    fn new(workers: u32, slots_log2: u32) -> Self {
        System { workers, slots_log2, slot: std::marker::PhantomData }
    }

    fn slots(&self) -> u32 {
        1 << self.slots_log2
    }

    fn correct(&self, seq: u32) -> Sum {
        (0..self.workers).map(|worker| term(worker, seq >> self.slots_log2)).sum()
    }
}

impl<S: Slot> Model for System<S> {
    type State = State<S>;
    type Action = Step;

    fn init_states(&self) -> Vec<State<S>> {
        vec![State {
            slots: vec![S::default(); self.slots() as usize],
            rounds: vec![vec![0; self.slots() as usize]; self.workers as usize],
            results: vec![vec![]; self.workers as usize],
        }]
    }

    fn actions(&self, state: &State<S>, steps: &mut Vec<Step>) {
        for worker in 0..self.workers {
            for slot in 0..self.slots() {
                // Everything that it ever sent for this slot: all rounds up to the present one.
                let round = state.rounds[worker as usize][slot as usize];
                for sent in 0..=round.min(CHUNKS_PER_SLOT - 1) {
                    steps.push(Step::Contribution { worker, seq: sent << self.slots_log2 | slot });
                }
            }
            for index in 0..state.results[worker as usize].len() {
                steps.push(Step::Result { worker, index });
            }
        }
    }

    fn next_state(&self, before: &State<S>, step: Step) -> Option<State<S>> {
        let mut state = before.clone();
        match step {
            Step::Contribution { worker, seq } => {
                let at = place(seq, self.slots_log2);
                let sum = term(worker, seq >> self.slots_log2);
                let slot = &mut state.slots[at.slot as usize];
                let sizes = Sizes { workers: self.workers, slots: self.slots() };
                let send = |results: &mut Vec<(u32, Sum)>, sum| {
                    if !results.contains(&(seq, sum)) {
                        results.push((seq, sum));
                    }
                };
                match slot.receive(sizes, worker, seq, at.version, sum) {
                    Answer::Nothing => {}
                    Answer::ToOne(sum) => send(&mut state.results[worker as usize], sum),
                    Answer::ToAll(sum) => state.results.iter_mut().for_each(|to| send(to, sum)),
                }
            }
            Step::Result { worker, index } => {
                let (seq, _) = before.results[worker as usize][index];
                let round = &mut state.rounds[worker as usize][(seq & (self.slots() - 1)) as usize];
                // Algorithm 4: the result of the chunk that is waited for moves the slot on.
                if seq >> self.slots_log2 == *round {
                    *round += 1;
                }
            }
        }
        (state != *before).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(
                "every sum holds every worker exactly once",
                |system: &Self, state: &State<S>| {
                    state.results.iter().flatten().all(|&(seq, sum)| sum == system.correct(seq))
                },
            ),
            Property::always("a question is answered by the truth", |system: &Self, state: &State<S>| {
                let sizes = Sizes { workers: system.workers, slots: system.slots() };
                // Of what was sent, and of what will be.
                let chunks = 0..(CHUNKS_PER_SLOT + 2) << system.slots_log2;
                chunks.into_iter().all(|seq| {
                    let at = place(seq, system.slots_log2);
                    let slot = &state.slots[at.slot as usize];
                    (0..system.workers).all(|worker| slot.is_honest(sizes, worker, seq, at.version))
                })
            }),
            Property::always("no worker is more than one chunk ahead", |system: &Self, state: &State<S>| {
                (0..system.slots() as usize).all(|slot| {
                    let rounds = || state.rounds.iter().map(|rounds| rounds[slot]);
                    rounds().max().unwrap_or(0) - rounds().min().unwrap_or(0) <= 1
                })
            }),
            // With every packet allowed to arrive, whoever gets stuck is stuck for good.
            Property::eventually("every chunk completes", |_: &Self, state: &State<S>| {
                state.rounds.iter().flatten().all(|round| *round == CHUNKS_PER_SLOT)
            }),
        ]
    }
}

fn hold(workers: u32, slots_log2: u32) {
    let checker = System::<Numbered>::new(workers, slots_log2).checker().threads(2).spawn_bfs().join();
    println!("{workers} workers, {} slots: {} states", 1 << slots_log2, checker.unique_state_count());
    assert!(checker.is_done());
    checker.assert_properties();
}

//= switchml#4.3 aggregation in a pool of slots
#[test]
fn two_workers_one_slot() {
    hold(2, 0);
}

#[test]
fn two_workers_two_slots() {
    hold(2, 1);
}

#[test]
fn three_workers_one_slot() {
    hold(3, 0);
}

#[test]
fn three_workers_two_slots() {
    hold(3, 1);
}

//= switchml#4.5 shadow copies of slots
/// With one bit instead of the chunk's number a delayed duplicate enters a later sum.
#[test]
fn one_bit_of_version_is_not_enough() {
    // A wrong sum makes ever more states, so the search ends at the first failure.
    let model = System::<AsPrinted>::new(2, 0).checker();
    let checker = model.finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    let run = checker.discovery("every sum holds every worker exactly once");
    println!("{}", run.expect("a run in which a duplicate is added twice"));
}
