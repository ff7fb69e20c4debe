//! The log of `sumac-agg serve`: the eBPF programs' messages, and the host aggregator's final counters.

use std::{os::fd::AsFd as _, thread, time::Duration};

use anyhow::Context as _;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use sumac_agg::Aggregator;
use sumac_agg_host::HostDataPlane;
use sumac_loader::log::ProgramLog;
use sumac_wire::Reason;

/// Interval of the check for replaced programs.
const LOOK: Duration = Duration::from_millis(500);

/// Forwards the messages of the eBPF programs to the log, until the process ends.
pub fn follow_log(aggregator: Aggregator, mut first: Option<ProgramLog>) -> anyhow::Result<()> {
    let follow = move || {
        loop {
            match first.take().map_or_else(|| aggregator.log(), Ok) {
                Ok(log) => follow_instance(&aggregator, log),
                Err(error) => tracing::debug!(%error, "no messages of the eBPF programs for now"),
            }
            thread::sleep(LOOK);
        }
    };
    thread::Builder::new().name("ebpf-log".into()).spawn(follow).context("cannot start the log's thread")?;
    Ok(())
}

/// Forwards them until the aggregator's instance changes.
fn follow_instance(aggregator: &Aggregator, mut log: ProgramLog) {
    let instance = || aggregator.state().ok().map(|state| state.instance);
    let first = instance();
    while instance() == first {
        let mut waiting = [PollFd::new(log.as_fd(), PollFlags::POLLIN)];
        let timeout = PollTimeout::try_from(LOOK).unwrap_or(PollTimeout::MAX);
        if let Err(error) = poll(&mut waiting, timeout) {
            tracing::debug!(%error, "waiting for messages of the eBPF programs");
            thread::sleep(LOOK);
        }
        log.flush();
    }
}

/// Logs the counters of the host aggregator.
pub fn report(plane: &HostDataPlane) {
    for reason in Reason::ALL.iter().filter(|reason| plane.counter(**reason) > 0) {
        tracing::info!(reason = reason.name(), packets = plane.counter(*reason), "host aggregator");
    }
}
