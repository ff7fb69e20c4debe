//! The states that a live upgrade hands over, as bytes (CBOR).
//!
//! The code that serde derives for them is half of what the compiler makes of a daemon. It is compiled here
//! once, for the daemon and for the simulator, and with fewer optimizations (the workspace's profiles): an
//! upgrade is rare, and a build is not.
#![forbid(unsafe_code)]

use ciborium::de::from_reader;
use ciborium::ser::into_writer;
use serde::Serialize;
use serde::de::DeserializeOwned;
use sumac_control::SuspendedMember;
use sumac_host::{HostState, JobId};
use sumac_transport::{CompletionQueue, EngineState, SuspendedEngine};

/// A state that cannot be written, or bytes that are none.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct StateError(String);

// A function that is inlined is compiled where it is called.

/// Writes the state of the core.
#[inline(never)]
pub fn write_host(state: &HostState) -> Result<Vec<u8>, StateError> {
    write(state)
}

/// Reads what [`write_host`] wrote.
#[inline(never)]
pub fn read_host(bytes: &[u8]) -> Result<HostState, StateError> {
    read(bytes)
}

/// Writes the memberships of jobs.
#[inline(never)]
pub fn write_members(members: &Vec<(JobId, SuspendedMember)>) -> Result<Vec<u8>, StateError> {
    write(members)
}

/// Reads what [`write_members`] wrote.
#[inline(never)]
pub fn read_members(bytes: &[u8]) -> Result<Vec<(JobId, SuspendedMember)>, StateError> {
    read(bytes)
}

/// Writes the state of a lane's engine between two packets.
#[inline(never)]
pub fn write_engine(state: &EngineState<'_>) -> Result<Vec<u8>, StateError> {
    write(state)
}

/// Reads what [`write_engine`] wrote.
#[inline(never)]
pub fn read_engine(bytes: &[u8]) -> Result<SuspendedEngine, StateError> {
    read(bytes)
}

/// Writes the operations of a lane that have ended before one that was submitted earlier.
#[inline(never)]
pub fn write_ended(ended: &CompletionQueue) -> Result<Vec<u8>, StateError> {
    write(ended)
}

/// Reads what [`write_ended`] wrote.
#[inline(never)]
pub fn read_ended(bytes: &[u8]) -> Result<CompletionQueue, StateError> {
    read(bytes)
}

fn write(state: &impl Serialize) -> Result<Vec<u8>, StateError> {
    let mut bytes = Vec::new();
    into_writer(state, &mut bytes).map_err(|error| StateError(error.to_string()))?;
    Ok(bytes)
}

fn read<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, StateError> {
    from_reader(bytes).map_err(|error| StateError(error.to_string()))
}
