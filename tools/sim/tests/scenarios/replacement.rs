//! A worker dies in the middle of a dynamic job, and another takes its place (ATP appendix A.3), as the control plane has it: first the
//! parameter hosts go on under another incarnation, and then aggregators, workers and the newcomer hear of it, one after
//! another.

use std::{cell::RefCell, rc::Rc};

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use sumac_sim::{events::Nanos, job::Job, network::NodeId, world::World};

use crate::{
    scenario::Replaced,
    tensors,
    trainer::{Checker, Truth},
};

/// Who has come.
pub struct Newcomer {
    pub rank: usize,
    /// Its place among all of the world.
    pub id: usize,
    /// The chunks that its lanes began with.
    pub resume: Vec<u32>,
}

/// What a newcomer finds.
pub struct Place {
    /// The job as it was.
    pub job: Job,
    /// The newcomer's node.
    pub node: NodeId,
    pub truth: Rc<RefCell<Truth>>,
    pub newcomer: Rc<RefCell<Option<Newcomer>>>,
}

impl Place {
    /// Has the worker die and another come; `workers`: the job's, by rank.
    pub fn plan(mut self, world: &mut World, replaced: &Replaced, workers: &[usize], seed: u64) {
        let Replaced { rank, at, after, spread } = *replaced;
        let dead = workers[rank];
        world.at(at, move |world| world.workers[dead].is_dead = true);
        self.job.params.epoch += 1;
        self.job.seats[rank].node = self.node;
        let survivors: Vec<usize> = workers.iter().copied().filter(|id| *id != dead).collect();
        let mut rng = ChaCha8Rng::seed_from_u64(!seed);
        world.at(at + after, move |world| {
            let resume = self.job.renew(world).unwrap();
            self.tell(world, &survivors, &resume, &mut || at + after + rng.random_range(0..spread));
            self.come(world, rank, resume, at + after + rng.random_range(0..spread), seed);
        });
    }

    /// Tells aggregators and survivors, each at another time.
    fn tell(&self, world: &mut World, survivors: &[usize], resume: &[u32], time: &mut dyn FnMut() -> Nanos) {
        for node in self.job.aggregators() {
            let job = self.job.clone();
            world.at(time(), move |world| job.install_at(world, node).unwrap());
        }
        for id in survivors.iter().copied() {
            let (epoch, resume) = (self.job.params.epoch, resume.to_vec());
            world.at(time(), move |world| world.renew_worker(id, epoch, &resume));
        }
    }

    fn come(self, world: &mut World, rank: usize, resume: Vec<u32>, at: Nanos, seed: u64) {
        let Place { job, truth, newcomer, .. } = self;
        world.at(at, move |world| {
            let inputs = tensors::inputs(&truth.borrow().job, seed, rank, 1);
            truth.borrow_mut().inputs[rank] = inputs;
            let trainer = Box::new(Checker::taking_over(rank, truth, &resume));
            let id = job.replace(world, rank, &resume, trainer).unwrap();
            *newcomer.borrow_mut() = Some(Newcomer { rank, id, resume });
        });
    }
}
