//! The connection as a trainer sees it: hello, tensors, jobs, counters.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use sumac_api::{Command, Hello, HelloReply, Open, Secret, Stats, StatsReply, VERSION};

use crate::connection::{Answer, Connection};
use crate::tensor::{self, Element, Tensor};
use crate::{ClientError, Job};

/// A connection to the host's daemon. Clones share it, and threads may too.
#[derive(Clone, Debug)]
pub struct Client {
    connection: Arc<Connection>,
    hello: Arc<HelloReply>,
}

/// Which job to open, and as whom.
#[derive(Clone, Debug)]
pub struct JobOptions {
    open: Open,
}

impl JobOptions {
    /// Worker `rank` of the `world` workers of the job `name`, with the daemon's defaults for the rest.
    #[must_use]
    pub fn new(name: impl Into<String>, rank: u16, world: u16) -> JobOptions {
        JobOptions {
            open: Open {
                job: name.into(),
                rank,
                world,
                secret: None,
                aggregator: None,
                elements: None,
                slots: None,
                scale: None,
                timeout_s: None,
            },
        }
    }

    /// The job's shared secret, instead of the daemon's.
    #[must_use]
    pub fn secret(mut self, secret: impl Into<String>) -> JobOptions {
        self.open.secret = Some(Secret(secret.into()));
        self
    }

    /// The aggregator's control plane, `address:port`, instead of the daemon's.
    #[must_use]
    pub fn aggregator(mut self, endpoint: impl Into<String>) -> JobOptions {
        self.open.aggregator = Some(endpoint.into());
        self
    }

    /// Elements per chunk.
    #[must_use]
    pub fn elements(mut self, elements: u16) -> JobOptions {
        self.open.elements = Some(elements);
        self
    }

    /// Slots to stream through, a power of two.
    #[must_use]
    pub fn slots(mut self, slots: u32) -> JobOptions {
        self.open.slots = Some(slots);
        self
    }

    /// What floats are multiplied with before they are rounded.
    #[must_use]
    pub fn scale(mut self, scale: f32) -> JobOptions {
        self.open.scale = Some(scale);
        self
    }

    /// How long to wait for the other workers.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> JobOptions {
        self.open.timeout_s = Some(timeout.as_secs_f64());
        self
    }
}

impl Client {
    /// Connects to the daemon that listens at `path` and agrees on a version.
    ///
    /// # Errors
    /// When nobody listens, or the daemon does not want this user or version.
    pub fn connect(path: impl AsRef<Path>) -> Result<Client, ClientError> {
        let connection = Connection::connect(path.as_ref())?;
        let command = Command::Hello(Hello {
            version: VERSION,
            client: format!("sumac-client {}", env!("CARGO_PKG_VERSION")),
        });
        let hello = body(connection.call(command, &[])?.value)?;
        Ok(Client { connection: Arc::new(connection), hello: Arc::new(hello) })
    }

    /// What the daemon said of itself: version, backend, limits.
    #[must_use]
    pub fn hello(&self) -> &HelloReply {
        &self.hello
    }

    /// Joins a job; returns when all its workers have.
    ///
    /// # Errors
    /// Among the daemon's: `ranks_missing` (names them), `refused`, `unreachable`, `handshake`, `rank_taken`.
    pub fn open(&self, options: &JobOptions) -> Result<Job, ClientError> {
        let Answer { value, fds } = self.connection.call(Command::Open(options.open.clone()), &[])?;
        let opened = body(value)?;
        let bell = fds
            .into_iter()
            .next()
            .ok_or_else(|| ClientError::Protocol("the reply to open came without eventfd".into()))?;
        Ok(Job::new(self.connection.clone(), opened, bell))
    }

    /// A tensor of `count` zeros in memory that the daemon can see.
    ///
    /// # Errors
    /// When the memory cannot be made or the daemon refuses it.
    pub fn tensor<T: Element>(&self, count: usize) -> Result<Tensor<T>, ClientError> {
        let mut tensors = self.tensors(&[count])?;
        tensors.pop().ok_or_else(|| ClientError::Protocol("no tensor was made".into()))
    }

    /// Several tensors in one region, in the order of `counts`; cheaper for the daemon than a region each.
    ///
    /// # Errors
    /// As [`Client::tensor`].
    pub fn tensors<T: Element>(&self, counts: &[usize]) -> Result<Vec<Tensor<T>>, ClientError> {
        tensor::allocate(&self.connection, counts)
    }

    /// The daemon's counters.
    ///
    /// # Errors
    /// When the connection is lost.
    pub fn stats(&self) -> Result<StatsReply, ClientError> {
        body(self.stats_json()?)
    }

    /// The daemon's counters as it wrote them.
    ///
    /// # Errors
    /// When the connection is lost.
    pub fn stats_json(&self) -> Result<Value, ClientError> {
        Ok(self.connection.call(Command::Stats(Stats {}), &[])?.value)
    }
}

/// Reads a reply's body.
pub(crate) fn body<T: serde::de::DeserializeOwned>(value: Value) -> Result<T, ClientError> {
    sumac_api::body(value).map_err(|error| ClientError::Protocol(error.to_string()))
}
