//! The handover of an engine to another process: its state between two packets, from which the other one
//! continues.
//!
//! The state is that of the engine's own types, so it is for a release with the same version of the
//! handover's format. The tensors' memory is not part of it: the other process passes a buffer for each
//! operation.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::{
    engine::Engine,
    engine_core::{Core, Phase},
    engine_mode::EngineMode,
    error::ParamError,
    operation::{Buffer, OpId},
};

/// The state of a running engine, to be written.
#[derive(Serialize)]
pub struct EngineState<'a> {
    core: &'a Core,
    mode: &'a EngineMode,
}

/// An engine as it was read, without the memory of its operations.
#[derive(Deserialize)]
pub struct SuspendedEngine {
    core: Core,
    mode: EngineMode,
}

/// The reason for which an engine does not continue.
#[derive(Debug, Error)]
pub enum ResumeError {
    #[error("the state of job {job}, lane {lane}, has operation {operation} without its memory")]
    NoBuffer { job: u16, lane: u16, operation: u64 },
    #[error("the state of a job has parameters that contradict the protocol: {0}")]
    Params(#[from] ParamError),
}

impl Engine {
    /// Has the output of all operations reach the tensors' memory, which another process continues with.
    pub fn write_back(&mut self) {
        self.core.stream.write_back();
    }

    /// The state of an engine whose job runs; `None` before its handshake has ended, and after the job has
    /// failed.
    pub fn state_for_handover(&self) -> Option<EngineState<'_>> {
        let Engine { core, mode } = self;
        matches!(core.phase, Phase::Ready).then(|| EngineState { core, mode })
    }

    /// The memory of the operations that are not collected.
    pub fn buffers(&self) -> impl Iterator<Item = (OpId, &dyn Buffer)> {
        self.core.stream.pending().map(|(number, pending)| (OpId(number), &*pending.operation.buffer))
    }
}

impl Engine {
    /// Returns the memory of the operations that are not collected, of an engine that was handed over.
    pub fn into_buffers(self) -> Vec<(OpId, Box<dyn Buffer>)> {
        self.core.stream.into_buffers().map(|(number, buffer)| (OpId(number), buffer)).collect()
    }
}

impl SuspendedEngine {
    /// Continues. `buffer` returns the memory of an operation, which has the same bytes as in the process
    /// before.
    pub fn resume(
        self,
        mut buffer: impl FnMut(OpId) -> Option<Box<dyn Buffer>>,
    ) -> Result<Engine, ResumeError> {
        let SuspendedEngine { mut core, mode } = self;
        core.params.check()?;
        core.tuning.check()?;
        let numbers: Vec<u64> = core.stream.pending().map(|(number, _)| number).collect();
        for number in numbers {
            let (job, lane) = (core.params.job, core.params.lane);
            let missing = ResumeError::NoBuffer { job, lane, operation: number };
            let (Some(pending), Some(buffer)) = (core.stream.get_mut(number), buffer(OpId(number))) else {
                return Err(missing);
            };
            pending.operation.buffer = buffer;
        }
        core.resume();
        Ok(Engine { core, mode })
    }
}
