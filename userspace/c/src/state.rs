//! The clients of a program, their jobs, and the requests of those, as its handles refer to them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use ::sumac_client::boundary::HandleTable;
use ::sumac_client::{Client, Job, Memory, Operation};

use crate::types::{sumac_client, sumac_job, sumac_request};

pub(crate) static CLIENTS: HandleTable<sumac_client, ClientState> = HandleTable::new("client");

/// A connection, with its memory by address.
#[derive(Debug)]
pub(crate) struct ClientState {
    pub(crate) client: Client,
    pub(crate) memory: Mutex<BTreeMap<usize, Memory>>,
}

pub(crate) static JOBS: HandleTable<sumac_job, JobState> = HandleTable::new("job");

/// A job, with its client.
#[derive(Debug)]
pub(crate) struct JobState {
    pub(crate) client: Arc<ClientState>,
    pub(crate) job: Job,
    /// The memory of its barriers and how many there were. Locked during one.
    pub(crate) barrier: Mutex<(Option<Memory>, u64)>,
}

pub(crate) static REQUESTS: HandleTable<sumac_request, RequestState> = HandleTable::new("request");

/// An operation, with its job.
#[derive(Debug)]
pub(crate) struct RequestState {
    pub(crate) job: Arc<JobState>,
    pub(crate) operation: Mutex<Operation>,
}
