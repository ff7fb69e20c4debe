//! One worker's trainer.

use std::path::Path;

use sumac_client::{Client, ClientError, Job, JobOptions, OpOptions, Pending, Reduction, Tensor};

use crate::exact::{self, Value};

/// One worker's trainer with its job open.
#[derive(Debug)]
pub struct Trainer {
    pub client: Client,
    pub job: Job,
    pub rank: u16,
}

impl Trainer {
    /// Connects to a daemon and opens a job.
    pub fn open(socket: impl AsRef<Path>, rank: u16, options: &JobOptions) -> Result<Trainer, ClientError> {
        let client = Client::connect(socket)?;
        let job = client.open(options)?;
        Ok(Trainer { client, job, rank })
    }

    /// Submits this worker's values for a sum.
    pub fn submit(&self, seed: u64, count: usize) -> Pending<f32> {
        self.hand_in(self.values(seed, count), Reduction::Sum)
    }

    /// Returns this worker's values of a seed.
    pub fn values<T: Value>(&self, seed: u64, count: usize) -> Tensor<T> {
        let mut tensor = self.client.tensor::<T>(count).unwrap();
        for (index, element) in tensor.iter_mut().enumerate() {
            *element = exact::value(seed, self.rank, index);
        }
        tensor
    }

    /// Submits a tensor for a reduction.
    pub fn hand_in<T: Value>(&self, tensor: Tensor<T>, reduction: Reduction) -> Pending<T> {
        let pending = self.job.allreduce_with(tensor, OpOptions { reduction, ..OpOptions::default() });
        pending.unwrap_or_else(|error| panic!("rank {}: {error}", self.rank))
    }
}
