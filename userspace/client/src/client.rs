//! The client: tensors, jobs and counters over one connection.

use std::path::Path;
use std::sync::Arc;

use serde_json::Value;
use sumac_api::{Attach, Command, Hello, HelloReply, Secret, StatsReply, VERSION};

use crate::connection::{Connection, body};
use crate::opening::{Opening, entered};
use crate::tensor::{self, Element, Tensor};
use crate::{ClientError, Job, JobOptions, Memory};

/// A connection to the host's daemon. Clones and threads share it.
#[derive(Clone, Debug)]
pub struct Client {
    connection: Arc<Connection>,
    hello: Arc<HelloReply>,
}

impl Client {
    /// Connects to the daemon that listens at `path` and agrees on a version.
    ///
    /// # Errors
    /// When no daemon listens, or it refuses this user or version.
    pub fn connect(path: impl AsRef<Path>) -> Result<Client, ClientError> {
        let connection = Connection::connect(path.as_ref())?;
        let command = Command::Hello(Hello {
            version: VERSION,
            client: format!("sumac-client {}", env!("CARGO_PKG_VERSION")),
        });
        let hello = body(connection.call(command, &[])?.value)?;
        Ok(Client { connection: Arc::new(connection), hello: Arc::new(hello) })
    }

    /// The daemon's version, backend and limits.
    #[must_use]
    pub fn hello(&self) -> &HelloReply {
        &self.hello
    }

    /// Joins a job; returns when all its workers have joined.
    ///
    /// # Errors
    /// Among the daemon's: `ranks_missing` (names them), `refused`, `unreachable`, `handshake`, `rank_taken`.
    pub fn open(&self, options: &JobOptions) -> Result<Job, ClientError> {
        self.begin_open(options)?.wait()
    }

    /// Begins to join a job, for a caller that may give it up: a dropped [`Opening`] is withdrawn.
    ///
    /// # Errors
    /// When the connection is lost.
    pub fn begin_open(&self, options: &JobOptions) -> Result<Opening, ClientError> {
        Opening::begin(&self.connection, options.open.clone())
    }

    /// Attaches to a job that another connection of this host has opened, to submit operations too.
    ///
    /// Without the job's `secret` this is allowed to the user who opened it.
    ///
    /// # Errors
    /// Among the daemon's: `unknown_job`, `denied`.
    pub fn attach(&self, name: impl Into<String>, secret: Option<String>) -> Result<Job, ClientError> {
        self.attach_to(Attach { job: name.into(), rank: None, secret: secret.map(Secret) })
    }

    /// Attaches to a job as one of its ranks, as [`Client::attach`]: where this host has several of them.
    ///
    /// # Errors
    /// As [`Client::attach`].
    pub fn attach_rank(
        &self,
        name: impl Into<String>,
        rank: u16,
        secret: Option<String>,
    ) -> Result<Job, ClientError> {
        self.attach_to(Attach { job: name.into(), rank: Some(rank), secret: secret.map(Secret) })
    }

    fn attach_to(&self, attach: Attach) -> Result<Job, ClientError> {
        entered(&self.connection, self.connection.call(Command::Attach(attach), &[])?)
    }

    /// Allocates a tensor of `count` zeros in memory shared with the daemon.
    ///
    /// # Errors
    /// When the memory cannot be allocated or the daemon refuses it.
    pub fn tensor<T: Element>(&self, count: usize) -> Result<Tensor<T>, ClientError> {
        let mut tensors = self.tensors(&[count])?;
        tensors.pop().ok_or_else(|| ClientError::Protocol("no tensor was allocated".into()))
    }

    /// Allocates several tensors in one region, in the order of `counts`; cheaper than a region each.
    ///
    /// # Errors
    /// As [`Client::tensor`].
    pub fn tensors<T: Element>(&self, counts: &[usize]) -> Result<Vec<Tensor<T>>, ClientError> {
        tensor::allocate(&self.connection, counts)
    }

    /// Allocates zeroed bytes in memory shared with the daemon, for tensors of any type.
    ///
    /// # Errors
    /// As [`Client::tensor`].
    pub fn memory(&self, size: usize) -> Result<Memory, ClientError> {
        Memory::allocate(&self.connection, size)
    }

    /// The daemon's counters, of all pages.
    ///
    /// # Errors
    /// When the connection is lost.
    pub fn stats(&self) -> Result<StatsReply, ClientError> {
        self.connection.stats(None)
    }

    /// The daemon's counters as JSON.
    ///
    /// # Errors
    /// When the connection is lost.
    pub fn stats_json(&self) -> Result<Value, ClientError> {
        serde_json::to_value(self.stats()?).map_err(|error| ClientError::Protocol(error.to_string()))
    }
}
