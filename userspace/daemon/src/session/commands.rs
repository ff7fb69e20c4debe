//! The commands of a trainer. A command that takes time is answered by a notification.

use std::collections::hash_map::Entry;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sumac_api::{
    Attach, Cancel, CancelReply, Close, Code, Collective, CollectiveKind, Command, Failure, Hello,
    HelloReply, Open, OperationReply, Outbound, Register, RegisterReply, Request, Unregister, VERSION, Wait,
};
use sumac_job::{DType, JobTerms, OperationOrder, Reduction};
use sumac_memory::FurtherMappings;
use sumac_wire::MAX_WORKERS;

use super::completion_event::CompletionEvent;
use super::completion_word::CompletionWord;
use super::memory::Region;
use super::notifications::wait_reply;
use super::outstanding::{Outstanding, WaitState};
use super::tensor::Tensor;
use super::{Admitted, JobState, LIMITS, Session, SessionJob};
use crate::operations::{Client, ClientId, ElementRanges, Ending, JobOperations, Submission, arithmetic};
use crate::quotas::Reservation;
use crate::sync::monotonic_ns;

/// The longest name of an operation in bytes.
const NAME_LEN: usize = 128;

/// A reply; `None` when it follows later.
pub(super) type Answer = Result<Option<Outbound>, Failure>;

#[expect(clippy::unnecessary_wraps, reason = "the form of every command's answer")]
pub(super) fn now(id: u64, reply: &impl serde::Serialize) -> Answer {
    Ok(Some(Outbound::ok(id, reply)))
}

impl Session {
    pub(super) fn command(&mut self, request: Request, mut fds: Vec<OwnedFd>) -> Answer {
        let Request { id, command } = request;
        if !self.greeted && !matches!(command, Command::Hello(_)) {
            return Err(Failure::new(Code::HelloFirst, "the first command must be hello")
                .hint(format!(r#"send {{"id":1,"cmd":"hello","version":{VERSION}}}"#)));
        }
        let fd = fds.pop();
        if fd.is_some() && !matches!(command, Command::Register(_)) {
            return Err(Failure::new(Code::UnexpectedFd, "only register takes a file descriptor"));
        }
        match command {
            Command::Hello(hello) => self.hello(id, &hello),
            Command::Open(open) => self.open(id, open),
            Command::Register(register) => self.register(id, register, fd),
            Command::Attach(attach) => self.attach(id, &attach),
            Command::Allreduce(request) => self.submit(id, CollectiveKind::Allreduce, &request),
            Command::Broadcast(request) => self.submit(id, CollectiveKind::Broadcast, &request),
            Command::Reduce(request) => self.submit(id, CollectiveKind::Reduce, &request),
            Command::ReduceScatter(request) => self.submit(id, CollectiveKind::ReduceScatter, &request),
            Command::Allgather(request) => self.submit(id, CollectiveKind::Allgather, &request),
            Command::PostSend(request) => self.post_send(id, &request),
            Command::PostRecv(request) => self.post_recv(id, &request),
            Command::PollCq(request) => self.poll_cq(id, &request),
            Command::Wait(wait) => self.wait(id, &wait),
            Command::Cancel(cancel) => self.cancel(id, &cancel),
            Command::Stats(_) => now(id, &self.daemon.stats()?),
            Command::Unregister(unregister) => self.unregister(id, &unregister),
            Command::Close(close) => self.close(id, &close),
        }
    }

    fn hello(&mut self, id: u64, hello: &Hello) -> Answer {
        if hello.version != VERSION {
            let message =
                format!("the client speaks version {}, this daemon version {VERSION}", hello.version);
            return Err(
                Failure::new(Code::Version, message).hint("install client and daemon of the same release")
            );
        }
        self.greeted = true;
        tracing::debug!(peer = %self.credentials, client = ?hello.client, "hello");
        let daemon = format!("sumac {}", env!("CARGO_PKG_VERSION"));
        let backend = self.daemon.backend.name().to_owned();
        now(id, &HelloReply { version: VERSION, daemon, backend, limits: self.limits })
    }

    fn open(&mut self, id: u64, open: Open) -> Answer {
        let (handle, completion, reserved) = self.job_handle()?;
        let client = self.client(handle);
        let job = Some(self.daemon.open(open, client, id, reserved.clone())?);
        self.jobs
            .insert(handle, SessionJob { job, completion, state: JobState::Opening, _reserved: reserved });
        Ok(None)
    }

    /// Attaches to a job of this host; the reply follows like that of [`Session::open`].
    fn attach(&mut self, id: u64, attach: &Attach) -> Answer {
        let (handle, completion, reserved) = self.job_handle()?;
        let (operations, client) = self.daemon.jobs.attach(attach, self.client(handle), id)?;
        let state = JobState::Open { operations, client };
        self.jobs.insert(handle, SessionJob { job: None, completion, state, _reserved: reserved });
        Ok(None)
    }

    fn client(&self, handle: u64) -> Client {
        Client {
            notes: self.notes.clone(),
            connection: self.connection,
            handle,
            credentials: self.credentials.clone(),
        }
    }

    fn job_handle(&mut self) -> Result<(u64, CompletionEvent, Arc<Reservation>), Failure> {
        if self.jobs.len() >= LIMITS.jobs as usize {
            return Err(limit("jobs", LIMITS.jobs, "close one first"));
        }
        let reserved = Arc::new(self.daemon.quotas.jobs.reserve(self.credentials.uid, 1)?);
        let completion = CompletionEvent::new().map_err(|error| {
            Failure::new(Code::Internal, format!("cannot make an eventfd for the job: {error}"))
        })?;
        Ok((self.next_handle(), completion, reserved))
    }

    fn register(&mut self, id: u64, register: Register, fd: Option<OwnedFd>) -> Answer {
        let Some(fd) = fd else {
            return Err(Failure::new(Code::MissingFd, "register came without a file descriptor")
                .hint("send the memfd with the message, by SCM_RIGHTS"));
        };
        if self.regions.len() >= LIMITS.regions as usize {
            return Err(limit("regions", LIMITS.regions, "put several tensors into one region"));
        }
        if register.size > LIMITS.region_bytes {
            let message =
                format!("a region has at most {} bytes, not {}", LIMITS.region_bytes, register.size);
            return Err(Failure::new(Code::Limit, message));
        }
        let further = match self.daemon.config.live_upgrade {
            true => FurtherMappings::Allowed,
            false => FurtherMappings::Refused,
        };
        let region = Region::register(&self.daemon.quotas, self.credentials.uid, fd, register.size, further)?;
        let handle = self.next_handle();
        self.regions.insert(handle, region);
        now(id, &RegisterReply { region: handle })
    }

    fn region(&self, handle: u64) -> Result<&Arc<Region>, Failure> {
        self.regions.get(&handle).ok_or_else(|| {
            Failure::new(Code::UnknownRegion, format!("this connection has no region {handle}"))
                .hint("use the handle from the reply to register")
        })
    }

    fn wait(&mut self, id: u64, wait: &Wait) -> Answer {
        // A deadline beyond the clock's range is none.
        let deadline = wait
            .timeout_ms
            .and_then(|milliseconds| Instant::now().checked_add(Duration::from_millis(milliseconds)));
        match self.operations.wait(wait.op, id, deadline) {
            WaitState::Ended(outcome) => Ok(Some(wait_reply(id, wait.op, *outcome))),
            WaitState::Waiting => Ok(None),
            WaitState::Unknown => Err(unknown_op(wait.op)),
            WaitState::TooMany => Err(limit("waits", LIMITS.finished, "read the replies first")),
        }
    }

    fn cancel(&mut self, id: u64, cancel: &Cancel) -> Answer {
        if self.operations.has_ended(cancel.op) {
            return now(id, &CancelReply { cancelled: false });
        }
        let operation = self.operations.get(cancel.op).ok_or_else(|| unknown_op(cancel.op))?;
        if let Some(JobState::Open { operations, .. }) = self.jobs.get(&operation.job).map(|job| &job.state) {
            operations.cancel();
        }
        now(id, &CancelReply { cancelled: true })
    }

    fn unregister(&mut self, id: u64, unregister: &Unregister) -> Answer {
        let handle = unregister.region;
        self.region(handle)?;
        if self.operations.uses_region(handle) {
            let message = format!("operations are still using region {handle}");
            return Err(Failure::new(Code::RegionBusy, message).hint("wait for them first"));
        }
        self.regions.remove(&handle);
        now(id, &serde_json::Map::new())
    }

    fn close(&mut self, id: u64, close: &Close) -> Answer {
        let handle = close.job;
        let busy = self.operations.uses_job(handle);
        let Entry::Occupied(mut job) = self.jobs.entry(handle) else {
            return Err(unknown_job(handle));
        };
        let SessionJob { job: opened, state, .. } = job.get_mut();
        match (state, opened) {
            // The daemon has left a failed job already; only the handle is released.
            (JobState::Failed(_), _) => {}
            (JobState::Opening | JobState::Closing { .. }, _) => return Err(unknown_job(handle)),
            (JobState::Open { .. }, _) if busy => {
                return Err(job_busy(format!("operations of job {handle} are outstanding")));
            }
            (JobState::Open { operations, client }, None) => operations.detach(*client, "left"),
            (state @ JobState::Open { .. }, Some(opened)) => {
                if let JobState::Open { operations, .. } = &*state {
                    operations.begin_close().map_err(|others| {
                        job_busy(format!(
                            "{others} operations of clients attached to job {handle} are outstanding"
                        ))
                    })?;
                }
                opened.close(id);
                *state = JobState::Closing { request: id };
                return Ok(None);
            }
        }
        job.remove();
        now(id, &serde_json::Map::new())
    }

    fn submit(&mut self, id: u64, kind: CollectiveKind, request: &Collective) -> Answer {
        let received_ns = (request.timing || self.daemon.spans.is_on()).then(monotonic_ns);
        let (operations, client) = self.open_job(request.job)?;
        let terms = &operations.terms;
        check(kind, request, terms)?;
        let ranges = ElementRanges::of(kind, request.count, operations.rank, terms.world, request.root);
        let tensor = Tensor::new(kind, request, ranges);
        let descriptor = request.descriptor(kind);
        let bytes = || operations.held_bytes(request.dtype, arithmetic(&descriptor), request.count);
        let Admitted { op, from, to, held } = self.admit(request.job, &tensor, false, bytes)?;
        let word = request.completion_word.map(|at| CompletionWord::new(&to, tensor.regions()[1], at));
        let word = word.transpose().inspect_err(|_| self.operations.withdraw(op))?;
        let submission = Submission {
            descriptor,
            held,
            priority: request.priority,
            importance: request.importance,
            client,
            op,
            ranges: tensor.ranges(),
            ending: Ending { word, received_ns, is_timed: request.timing },
        };
        let lease =
            |fragment: &Range<u64>, ranges: &ElementRanges| tensor.lease(&from, &to, fragment, ranges);
        match operations.submit(&self.daemon.backend, submission, lease) {
            Ok(()) => now(id, &OperationReply { op }),
            Err(failure) => {
                self.operations.withdraw(op);
                Err(failure)
            }
        }
    }

    /// Checks the memory of an operation, and counts it. `bytes` returns those that the daemon holds for it.
    pub(super) fn admit(
        &mut self,
        job: u64,
        tensor: &Tensor,
        is_transfer: bool,
        bytes: impl FnOnce() -> Result<u64, Failure>,
    ) -> Result<Admitted, Failure> {
        if self.operations.outstanding() >= self.limits.operations as usize {
            return Err(limit("outstanding operations", self.limits.operations, "wait for one first"));
        }
        let regions = tensor.regions();
        let [from, to] = regions.map(|handle| self.region(handle).cloned());
        let (from, to) = (from?, to?);
        tensor.check(&from, &to)?;
        let held = self.daemon.quotas.held.reserve(self.credentials.uid, bytes()?)?;
        let op = self.operations.start(Outstanding { job, regions, is_transfer, submitted: Instant::now() });
        Ok(Admitted { op, from, to, held })
    }

    pub(super) fn open_job(&self, handle: u64) -> Result<(Arc<JobOperations>, ClientId), Failure> {
        match self.jobs.get(&handle).map(|job| &job.state) {
            Some(JobState::Open { operations, client }) => Ok((operations.clone(), *client)),
            Some(JobState::Failed(failure)) => Err(failure.clone()),
            Some(JobState::Opening | JobState::Closing { .. }) | None => Err(unknown_job(handle)),
        }
    }

    fn next_handle(&mut self) -> u64 {
        self.handles += 1;
        self.handles
    }
}

fn limit(what: &str, most: u32, hint: &str) -> Failure {
    Failure::new(Code::Limit, format!("this connection has {most} {what}, the most it may have")).hint(hint)
}

pub(super) fn unknown_job(handle: u64) -> Failure {
    Failure::new(Code::UnknownJob, format!("this connection has no open job {handle}"))
        .hint("use the handle from the reply to open")
}

fn job_busy(message: String) -> Failure {
    Failure::new(Code::JobBusy, message)
        .hint("wait for them first, or cancel one, which ends the job on all workers")
}

fn unknown_op(op: u64) -> Failure {
    let last = LIMITS.finished;
    let message = format!("this connection has no operation {op} outstanding or among the last {last}");
    Failure::new(Code::UnknownOp, message)
}

pub(super) fn check_fraction(command: &str, bound: f32) -> Result<(), Failure> {
    if (0.0..=1.0).contains(&bound) {
        return Ok(());
    }
    Err(Failure::new(Code::BadField, format!("{command}: loss_bound {bound} is not between 0 and 1")))
}

/// Checks a request's loss bound.
fn check_bound(kind: CollectiveKind, request: &Collective, job: &JobTerms) -> Result<(), Failure> {
    let (name, bound) = (kind.name(), request.loss_bound);
    check_fraction(name, bound)?;
    let reduction = request.reduction.unwrap_or_default();
    let problem = match () {
        () if bound == 0.0 => return Ok(()),
        () if job.is_direct() && bound == 1.0 => "something must arrive",
        () if !(kind.reduces() || job.is_direct() && kind == CollectiveKind::Allgather) => {
            "values that are only moved have no others that could stand for them"
        }
        () if request.dtype == DType::Int32 => "a sum of some workers' int32 cannot be scaled to that of all",
        () if matches!(reduction, Reduction::Min | Reduction::Max) => {
            "the minimum or maximum of some workers is not that of all"
        }
        () if usize::from(job.world) > MAX_WORKERS => "it is for jobs of up to 32 workers",
        () if job.whole => "a P4 switch aggregates this static job, and leaves no worker out",
        () if job.fan_in_1 > 0 && !job.is_dynamic() => {
            "in a static job two levels of aggregators wait for all workers"
        }
        () => return Ok(()),
    };
    let message = format!("{name}: loss_bound {bound}: {problem}");
    Err(Failure::new(Code::Unsupported, message).hint("leave loss_bound out, or give 0"))
}

/// Checks a request before its memory is leased.
fn check(kind: CollectiveKind, request: &Collective, job: &JobTerms) -> Result<(), Failure> {
    let bad = |problem: String| Failure::new(Code::BadField, format!("{}: {problem}", kind.name()));
    let Collective { count, priority, root, ref name, .. } = *request;
    check_bound(kind, request, job)?;
    if priority > 7 {
        return Err(bad(format!("priority {priority} is not between 0 and 7")));
    }
    if count > u64::from(u32::MAX) {
        let problem = format!("{count} elements; packets can address {} of a tensor", u32::MAX);
        return Err(bad(problem).hint("split the tensor"));
    }
    if let Some(root) = root.filter(|root| *root >= job.world) {
        return Err(bad(format!("root {root} is not below world {}", job.world)));
    }
    if kind.has_blocks() && !count.is_multiple_of(u64::from(job.world)) {
        let problem = format!("{count} elements do not divide into blocks for {} workers", job.world);
        return Err(bad(problem).hint("count is that of the whole tensor; pad it to a multiple of world"));
    }
    match name {
        Some(name) if name.is_empty() || name.len() > NAME_LEN || name.contains(char::is_control) => {
            Err(bad(format!("a name must have 1 to {NAME_LEN} bytes and no control characters")))
        }
        None if job.order == OperationOrder::Name => {
            Err(bad("an operation of a job in order of names needs a name".into()))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_static_job_of_a_switch_has_no_loss_bound() {
        let terms = JobTerms::new(1, 1, 1, 2);
        let with = |loss_bound: f32, terms: &JobTerms| {
            let sum = json!({"job": 1, "region": 1, "dtype": "float32", "offset": 0, "count": 4, "loss_bound": loss_bound});
            check_bound(CollectiveKind::Allreduce, &serde_json::from_value(sum).unwrap(), terms)
        };
        with(0.1, &terms).unwrap();
        let whole = JobTerms { whole: true, ..terms };
        let refused = with(0.1, &whole).unwrap_err();
        assert_eq!(refused.code, Code::Unsupported);
        assert_eq!(
            &*refused.message,
            "allreduce: loss_bound 0.1: a P4 switch aggregates this static job, and leaves no worker out"
        );
        with(0.0, &whole).unwrap();
    }
}
