//! A worker of a dynamic job dies and is replaced (ATP appendix A.3), as by the control plane: first the
//! parameter hosts continue under another incarnation; then aggregators, workers and the replacement learn of
//! it, one after another.

use std::{cell::RefCell, rc::Rc};

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use sumac_sim::{address::NodeId, events::Nanos, job::Job, world::World};

use crate::{
    scenario::Replaced,
    tensors,
    trainer::{Checker, Truth},
};

/// A worker that took a dead one's place.
pub struct Newcomer {
    pub rank: usize,
    /// Its index in the world.
    pub id: usize,
    /// The first chunks of its lanes.
    pub resume: Vec<u32>,
}

/// The job that it joins.
pub struct Replacement {
    pub job: Job,
    /// The new worker's node.
    pub node: NodeId,
    pub truth: Rc<RefCell<Truth>>,
    pub newcomer: Rc<RefCell<Option<Newcomer>>>,
}

impl Replacement {
    /// Schedules the death and the replacement; `workers`: the job's, by rank.
    pub fn plan(mut self, world: &mut World, replaced: &Replaced, workers: &[usize], seed: u64) {
        let Replaced { rank, at, after, spread } = *replaced;
        let dead = workers[rank];
        world.at(at, move |world| world.workers[dead].is_dead = true);
        self.job.params.epoch += 1;
        self.job.workers[rank].node = self.node;
        let survivors: Vec<usize> = workers.iter().copied().filter(|id| *id != dead).collect();
        let mut rng = ChaCha8Rng::seed_from_u64(!seed);
        world.at(at + after, move |world| {
            let resume = self.job.renew_hosts(world).unwrap();
            self.announce(world, &survivors, &resume, &mut || at + after + rng.random_range(0..spread));
            self.join(world, rank, resume, at + after + rng.random_range(0..spread), seed);
        });
    }

    /// Lets aggregators and survivors continue under the new epoch, each at another time.
    fn announce(
        &self,
        world: &mut World,
        survivors: &[usize],
        resume: &[u32],
        time: &mut dyn FnMut() -> Nanos,
    ) {
        for node in self.job.aggregators() {
            let job = self.job.clone();
            world.at(time(), move |world| job.install_at(world, node).unwrap());
        }
        for id in survivors.iter().copied() {
            let (epoch, resume) = (self.job.params.epoch, resume.to_vec());
            world.at(time(), move |world| world.renew_worker(id, epoch, &resume));
        }
    }

    fn join(self, world: &mut World, rank: usize, resume: Vec<u32>, at: Nanos, seed: u64) {
        let Replacement { job, truth, newcomer, .. } = self;
        world.at(at, move |world| {
            let inputs = tensors::inputs(&truth.borrow().job, seed, rank, 1);
            truth.borrow_mut().inputs[rank] = inputs;
            let trainer = Box::new(Checker::taking_over(rank, truth, &resume));
            let id = job.replace(world, rank, &resume, trainer).unwrap();
            *newcomer.borrow_mut() = Some(Newcomer { rank, id, resume });
        });
    }
}
