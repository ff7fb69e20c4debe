//! Beside the control plane: answers to the command line, the eBPF programs' messages, and the final counters.

use std::{
    collections::BTreeMap,
    os::fd::AsFd as _,
    sync::{Arc, OnceLock},
    thread,
    time::Duration,
};

use anyhow::Context as _;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use sumac_agg::{
    Aggregator, SwitchPlane, control_status,
    drops::numbers,
    local::{self, Question},
    plane::EbpfPlane,
    status::{Status, host as host_status, switch as switch_status, text as status_text, with_rates},
};
use sumac_agg_host::HostDataPlane;
use sumac_agg_layout::Drops;
use sumac_control::{plane::PlaneError, server::Monitor};
use sumac_loader::log::ProgramLog;
use sumac_wire::Reason;

/// Interval of the check for replaced programs.
const LOOK: Duration = Duration::from_millis(500);

/// Answers `sumac-agg status`, `control` and `drop`; jobs do not need it.
pub fn answer_questions(name: &str, answer: impl Fn(Question) -> Result<String, String> + Send + 'static) {
    if let Err(error) = local::serve(name, answer) {
        tracing::warn!(%error, "cannot listen as @{name}: `sumac-agg status` cannot ask this process");
    }
}

/// The control plane of this process, once it listens; a rack's has none that decides.
pub type Deciding = Arc<OnceLock<Monitor>>;

/// Returns the names of the jobs, by number.
fn names(deciding: &Deciding) -> BTreeMap<u16, String> {
    let overview = deciding.get().and_then(Monitor::overview);
    let jobs = overview.into_iter().flat_map(|overview| overview.jobs);
    jobs.map(|job| (job.job, job.name)).collect()
}

pub fn answer_for_ebpf(
    plane: &EbpfPlane,
    deciding: &Deciding,
    question: &Question,
) -> Result<String, String> {
    let json =
        |notes: &BTreeMap<u16, String>| serde_json::to_string(notes).map_err(|error| error.to_string());
    match question {
        Question::SlotsReasons => json(&plane.reasons.all()),
        Question::JobNames => json(&names(deciding)),
        Question::Status { .. } | Question::Drop { .. } | Question::Control { .. } => {
            Err("the eBPF aggregator tells that itself: ask without --host".into())
        }
    }
}

pub fn answer_for_host(
    plane: &HostDataPlane,
    deciding: &Deciding,
    question: &Question,
) -> Result<String, String> {
    let set = |job, drops| host_status::set_drops(plane, job, drops).map_err(|error| error.to_string());
    answer_for_process(|| host_status::status(plane), set, deciding, question)
}

pub fn answer_for_switch(
    plane: &SwitchPlane,
    deciding: &Deciding,
    question: &Question,
) -> Result<String, String> {
    let set = |job, drops| {
        let jobs = numbers(job).map_err(|error| error.to_string())?;
        plane.set_drops(jobs, drops).map_err(|error| error.to_string())
    };
    answer_for_process(|| switch_status::status(plane), set, deciding, question)
}

/// Answers for an aggregator that this process alone knows.
fn answer_for_process(
    status: impl FnMut() -> Result<Status, PlaneError>,
    set_drops: impl FnOnce(Option<u16>, Drops) -> Result<(), String>,
    deciding: &Deciding,
    question: &Question,
) -> Result<String, String> {
    match *question {
        Question::Status { json } => {
            let mut status = with_rates(status).map_err(|error| error.to_string())?;
            let mut names = names(deciding);
            status.jobs.iter_mut().for_each(|job| job.name = names.remove(&job.job));
            status_text::text(&status, json).map_err(|error| error.to_string())
        }
        Question::Drop { job, up, down } => {
            tracing::warn!(job, up, down, "dropping packets on purpose: so many in 2^32");
            set_drops(job, Drops { up, down }).map(|()| String::new())
        }
        Question::SlotsReasons | Question::JobNames => Err("its status has them".into()),
        Question::Control { .. } => Err("its control plane tells that, by its TCP port".into()),
    }
}

pub fn answer_for_control(monitor: &Monitor, question: &Question) -> Result<String, String> {
    let Question::Control { json } = question else {
        return Err("the aggregator tells that, and not its control plane".into());
    };
    let overview = monitor.overview().ok_or("it is being started; ask again")?;
    if !*json {
        return Ok(control_status::text(&overview));
    }
    let line = serde_json::to_string(&overview).map_err(|error| error.to_string())?;
    Ok(line + "\n")
}

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
