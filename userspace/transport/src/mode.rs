//! The seam between the engine and the modes.

use sumac_wire::{Header, Kind, Reason, header::flag};

use crate::{
    engine_core::Core,
    error::{JobError, ParamError},
    packet::Packet,
    peer::PeerId,
    time::Time,
    transmit::Transmit,
};

/// The path of a mode's chunks.
pub(crate) struct CheckedPath {
    pub to: PeerId,
    /// Bits of the numbers of probes on this path.
    pub numbers: u32,
    /// All chunks before this one have their results; 0 where probes do not carry it.
    pub received: u32,
}

/// The protocol of one mode. The engine has checked that a packet is the job's before a mode gets it; the
/// time is the core's.
pub(crate) trait ModeProtocol: Send {
    /// Considers an operation that was appended to the stream, with this number.
    fn on_submit(&mut self, _core: &mut Core, _operation: u64) {}

    /// Processes a packet of the job.
    fn on_packet(&mut self, core: &mut Core, packet: &Packet<'_>) -> Result<(), Reason> {
        match Kind::from_number(packet.header.kind) {
            Some(Kind::Result) => self.on_result(core, packet),
            Some(Kind::Report) => {
                let report = &packet.header;
                core.check_report(report)?;
                if report.has(flag::UNKNOWN_JOB) {
                    core.stats.unknown_job += 1;
                    self.on_unknown_job(core);
                    return Ok(());
                }
                if core.result_paths.on_report(report) {
                    return Ok(());
                }
                if let Some(path) = core.path_check.on_survey_report(report) {
                    core.paths.on_answer(path, false, &mut core.stats.paths);
                    return Ok(());
                }
                let Core { path_check, now, params, .. } = core;
                if let Some(why) = path_check.on_report(*now, report, params) {
                    core.fail(why);
                    return Ok(());
                }
                self.on_report(core, report);
                Ok(())
            }
            _ => Err(Reason::BadType),
        }
    }

    /// Processes a result of the job. The reason for which it is dropped determines how it is counted.
    fn on_result(&mut self, core: &mut Core, packet: &Packet<'_>) -> Result<(), Reason>;

    /// Processes a report of the lane.
    fn on_report(&mut self, core: &mut Core, report: &Header);

    /// Processes the aggregator's report that it does not have the job.
    fn on_unknown_job(&mut self, core: &mut Core) {
        core.path_check.on_unknown_job(core.now);
    }

    /// The path of the chunks, which probes check.
    fn checked_path(&self) -> CheckedPath;

    /// The reason for which the job ends when the path is lost.
    fn path_lost(&self, why: JobError) -> JobError {
        match why {
            why @ JobError::UnknownJob { .. } => why,
            why => JobError::PathLost { reason: why.to_string() },
        }
    }

    /// Writes the next packet to `out`, which has room for the longest.
    fn poll_transmit(&mut self, core: &mut Core, out: &mut [u8]) -> Option<Transmit>;

    fn poll_timeout(&self, core: &Core) -> Option<Time>;

    /// Lets the timers expire that are due.
    fn on_timeout(&mut self, core: &mut Core);

    /// Records that another worker has left, after it had ended all its operations.
    fn peer_left(&mut self, _core: &mut Core, _peer: PeerId) {}

    /// The operations that are transfers of two workers, and that the other one has not posted yet.
    fn unposted(&self) -> Vec<u64> {
        Vec::new()
    }

    /// Sets the number of the lane's own slots.
    fn set_slots(&mut self, _core: &mut Core, _slots: u32) -> Result<(), ParamError> {
        Err(ParamError::Measure)
    }

    /// Prepares a stream that begins where the worker died whose rank this one has.
    fn take_over(&mut self, _core: &mut Core) {}

    /// Continues under another epoch, in which a new worker begins with chunk `resume`.
    fn renew(&mut self, core: &mut Core, _epoch: u16, _resume: u32) {
        let reason = String::from("a worker of a static job cannot be replaced");
        core.fail(JobError::Ended { reason });
    }
}
