//! The handover of lanes to another daemon: their state between two packets.
//!
//! Frozen threads execute commands, and neither send nor receive. Packets that arrive meanwhile wait in the
//! sockets, or are lost and sent again.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use nix::poll::PollFlags;
use serde::{Deserialize, Serialize};
use sumac_handover::{StateError, read_ended, read_engine, write_ended, write_engine};
use sumac_host::{FragmentKey, JobId};
use sumac_transport::Buffer;

use super::frame_io::{Build, FrameIo, IoReport, Received, Transmitted};
use super::handle::Datapath;
use super::job::{InstallError, WorkerJob};
use super::lane::{Lane, OperationState};
use super::thread::DatapathThread;

/// The longest wait for sent frames to complete before their socket is closed.
const QUIESCE_TIMEOUT: std::time::Duration = std::time::Duration::from_millis(500);

/// A lane of a job.
#[derive(Debug, Serialize, Deserialize)]
pub struct LaneSnapshot {
    pub job: JobId,
    pub lane: u16,
    #[serde(with = "serde_bytes")]
    engine: Vec<u8>,
    operations: Vec<OperationState>,
    /// Absent in a direct job.
    #[serde(with = "serde_bytes")]
    ended: Option<Vec<u8>>,
}

/// A lane that another daemon has handed over.
pub struct ResumedLane(Lane);

impl Lane {
    fn snapshot(&self, job: JobId) -> Result<LaneSnapshot, String> {
        let (number, lane) = (self.engine.params().job, self.number());
        let failed = |problem: String| format!("lane {lane} of job number {number}: {problem}");
        let engine = self.engine.state_for_handover();
        let engine = engine.ok_or_else(|| failed("the job has just ended, or does not run yet".into()))?;
        let with_memory: BTreeSet<_> = self.engine.buffers().map(|(number, _)| number).collect();
        let operations = self.ids.iter().map(|(number, submitted)| OperationState {
            number: *number,
            key: submitted.key,
            sent: submitted.sent,
            has_memory: with_memory.contains(number),
        });
        let engine = write_engine(&engine).map_err(|error| failed(error.to_string()))?;
        let ended = self.ended.as_ref().map(write_ended).transpose();
        let ended = ended.map_err(|error| failed(error.to_string()))?;
        Ok(LaneSnapshot { job, lane, engine, operations: operations.collect(), ended })
    }
}

impl LaneSnapshot {
    /// Continues a lane. `lease` returns the memory of a fragment.
    pub fn resume(
        self,
        mut lease: impl FnMut(FragmentKey) -> Option<Box<dyn Buffer>>,
    ) -> Result<ResumedLane, String> {
        let LaneSnapshot { engine, operations, ended, .. } = self;
        let wrong = |error: StateError| format!("the state of a lane: {error}");
        let engine = read_engine(&engine).map_err(wrong)?;
        let ended = ended.map(|bytes| read_ended(&bytes)).transpose().map_err(wrong)?;
        let mut buffers = Vec::new();
        for OperationState { number, key, .. } in operations.iter().filter(|each| each.has_memory) {
            buffers.push((*number, lease(*key).ok_or_else(|| format!("no memory for {key:?}"))?));
        }
        let buffer = |number| {
            let at = buffers.iter().position(|(other, _)| *other == number)?;
            Some(buffers.swap_remove(at).1)
        };
        let engine = engine.resume(buffer).map_err(|error| error.to_string())?;
        Ok(ResumedLane(Lane::resumed(engine, operations, ended)))
    }
}

impl Datapath {
    /// Stops all threads between two packets. Returns `false` when one has ended.
    pub fn freeze(&self) -> bool {
        self.on_all(DatapathThread::freeze).is_some()
    }

    pub fn thaw(&self) -> bool {
        self.on_all(|thread| thread.is_frozen = false).is_some()
    }

    /// Returns the lanes of all jobs; the threads are frozen.
    pub fn snapshot(&self) -> Result<Vec<LaneSnapshot>, String> {
        let threads = self.on_all(|thread| {
            let lanes = thread.engines.lanes();
            lanes.map(|(job, lane)| lane.snapshot(job)).collect::<Result<Vec<_>, _>>()
        });
        let threads = threads.ok_or("a thread of the data path has ended")?;
        Ok(threads.into_iter().collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect())
    }

    /// Returns the sockets that another daemon can continue to use, thread by thread.
    pub fn sockets(&self) -> Result<Vec<Vec<OwnedFd>>, String> {
        let sockets = self.on_all(|thread| {
            thread.ports.sockets().iter().map(BorrowedFd::try_clone_to_owned).collect::<io::Result<Vec<_>>>()
        });
        let sockets = sockets.ok_or("a thread of the data path has ended")?;
        sockets.into_iter().collect::<io::Result<_>>().map_err(|error| format!("a socket: {error}"))
    }

    /// Closes the sockets, after the frames on their way out. Returns whether every frame is accounted for.
    pub fn close_io(&self) -> bool {
        self.on_all(DatapathThread::close_io).is_some_and(|conserved| conserved.into_iter().all(|is| is))
    }

    /// Forgets all jobs, which go on elsewhere, and ends the threads.
    pub fn hand_over(&self) {
        let _ = self.on_all(|thread| thread.engines.forget());
        self.shutdown();
    }

    /// Continues a job; the threads are frozen.
    pub fn resume_job(&self, plan: WorkerJob, lanes: Vec<ResumedLane>) -> Result<(), InstallError> {
        let (job, shards) = (plan.id, self.check(&plan)?);
        if lanes.len() != plan.lanes.len() {
            let number = plan.lanes.first().map_or(0, |lane| lane.job);
            return Err(InstallError::Lanes { job: number, given: lanes.len() });
        }
        // A lane is handed over once it is ready.
        let progress = self.open_job(job, shards, false, 0)?;
        let plan = Arc::new(plan);
        let lanes = lanes.into_iter().map(|ResumedLane(lane)| lane).collect();
        self.try_on_each(lanes, shards, move |thread, lanes| {
            thread.engines.resume(&plan, lanes, progress.clone(), &*thread.ports.io)?;
            thread.join_group(&plan)
        })
    }
}

impl DatapathThread {
    /// Reports what has ended, and stops.
    fn freeze(&mut self) {
        self.engines.report();
        self.engines.write_back();
        self.is_frozen = true;
    }

    fn close_io(&mut self) -> bool {
        self.ports.io.quiesce(Instant::now() + QUIESCE_TIMEOUT);
        let stats = self.stats();
        let is_conserved = stats.frames_are_conserved();
        if !is_conserved {
            tracing::error!(datapath = stats.name, frames = ?stats.port.frames,
                "frames are missing; please report it");
        }
        let (capacity, paths) = (self.ports.io.capacity(), self.ports.io.paths());
        let report = self.ports.io.report();
        self.ports.io = Box::new(ClosedIo { capacity, paths, report });
        is_conserved
    }
}

/// The place of a socket that was closed while another daemon opens its own.
struct ClosedIo {
    capacity: usize,
    paths: u16,
    /// The last report.
    report: IoReport,
}

impl FrameIo for ClosedIo {
    fn capacity(&self) -> usize {
        self.capacity
    }

    fn shards(&self) -> u16 {
        1
    }

    fn paths(&self) -> u16 {
        self.paths
    }

    fn receive(&mut self, _each: &mut dyn FnMut(Received<'_>)) -> io::Result<usize> {
        Ok(0)
    }

    fn transmit(&mut self, _build: Build<'_>) -> io::Result<Transmitted> {
        Ok(Transmitted::Full)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn interest<'a>(&'a mut self, _fds: &mut Vec<(BorrowedFd<'a>, PollFlags)>) -> Option<Instant> {
        None
    }

    fn quiesce(&mut self, _deadline: Instant) {}

    fn report(&self) -> IoReport {
        self.report.clone()
    }
}
