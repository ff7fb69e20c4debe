//! What a trainer asks for, checked and done. Answers that take time come later, as notes.

use std::collections::hash_map::Entry;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use sumac_api::{
    Allreduce, AllreduceReply, Cancel, CancelReply, Close, Code, Command, DType, Failure, Hello, HelloReply,
    Open, Outbound, Register, RegisterReply, Request, Unregister, VERSION, Wait,
};
use sumac_transport::Operation;
use sumac_xsk::mapping::{LeaseError, Region, Shared, SharedError};

use super::notes::wait_reply;
use super::{JobState, LIMITS, Registered, Session, SessionJob};
use crate::bell::Bell;
use crate::operations::{Running, WaitState};
use crate::region::Ranges;

/// An answer, `None` when it comes later.
type Answer = Result<Option<Outbound>, Failure>;

fn now(id: u64, reply: &impl serde::Serialize) -> Answer {
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
            Command::Allreduce(allreduce) => self.allreduce(id, &allreduce),
            Command::Wait(wait) => self.wait(id, &wait),
            Command::Cancel(cancel) => self.cancel(id, &cancel),
            Command::Stats(_) => now(id, &self.hub.stats()?),
            Command::Unregister(unregister) => self.unregister(id, &unregister),
            Command::Close(close) => self.close(id, &close),
        }
    }

    fn hello(&mut self, id: u64, hello: &Hello) -> Answer {
        if hello.version != VERSION {
            return Err(Failure::new(
                Code::Version,
                format!("the client speaks version {}, this daemon version {VERSION}", hello.version),
            )
            .hint("install client and daemon of the same release"));
        }
        self.greeted = true;
        tracing::debug!(peer = %self.peer, client = ?hello.client, "hello");
        let reply = HelloReply {
            version: VERSION,
            daemon: format!("sumac {}", env!("CARGO_PKG_VERSION")),
            backend: self.hub.carrier.backend().to_owned(),
            limits: self.limits,
        };
        now(id, &reply)
    }

    fn open(&mut self, id: u64, open: Open) -> Answer {
        if self.jobs.len() >= LIMITS.jobs as usize {
            return Err(limit("jobs", LIMITS.jobs, "close one first"));
        }
        let bell = Bell::new().map_err(|error| {
            Failure::new(Code::Internal, format!("cannot make an eventfd for the job: {error}"))
        })?;
        let handle = self.next_handle();
        let line = self.hub.open(open, self.inbox.clone(), id, handle)?;
        self.jobs.insert(handle, SessionJob { line, bell, state: JobState::Opening, tensors: 0 });
        Ok(None)
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
            return Err(Failure::new(
                Code::Limit,
                format!("a region has at most {} bytes, not {}", LIMITS.region_bytes, register.size),
            ));
        }
        let share = self.hub.memory.take(register.size).ok_or_else(|| {
            Failure::new(
                Code::Limit,
                format!("{} bytes more exceed the {} of all regions", register.size, self.hub.memory.limit()),
            )
            .hint("register less, or raise memory_mib in the daemon's configuration")
        })?;
        let shared = match usize::try_from(register.size) {
            Ok(size) => Shared::from_fd(fd.as_fd(), size),
            Err(_) => Err(SharedError::Size { size: register.size }),
        };
        let shared = shared.map_err(|error| Failure::new(Code::BadRegion, error.to_string()))?;
        let region = self.next_handle();
        self.regions.insert(region, Registered { region: shared.into_region(), _share: share });
        now(id, &RegisterReply { region })
    }

    fn allreduce(&mut self, id: u64, ask: &Allreduce) -> Answer {
        let wire_job = self.ready_job(ask.job)?;
        if self.operations.outstanding() >= self.limits.operations as usize {
            return Err(limit("outstanding operations", self.limits.operations, "wait for one first"));
        }
        check_options(ask)?;
        let out_region = ask.out_region.unwrap_or(ask.region);
        let ranges = self.borrow(ask, out_region)?;
        let job = self.jobs.get_mut(&ask.job).ok_or_else(|| unknown_job(ask.job))?;
        let tensor = ask.tensor.unwrap_or(job.tensors);
        let op = self.operations.start(Running { job: ask.job, regions: [ask.region, out_region] });
        let operation = Operation {
            tensor,
            dtype: match ask.dtype {
                DType::Float32 => sumac_transport::DType::F32,
                DType::Int32 => sumac_transport::DType::I32,
            },
            count: usize::try_from(ask.count).unwrap_or(usize::MAX),
            priority: ask.priority,
            loss_bound: ask.loss_bound,
            buffer: Box::new(ranges),
        };
        job.line.count_operation();
        if let Err(failure) = self.hub.carrier.submit(wire_job, op, operation) {
            job.line.discount_operation();
            self.operations.withdraw(op);
            return Err(failure);
        }
        // Only an operation that was taken uses up a number.
        job.tensors = job.tensors.wrapping_add(1);
        now(id, &AllreduceReply { op, tensor })
    }

    /// The job's number in packets, if it takes operations.
    fn ready_job(&self, handle: u64) -> Result<u16, Failure> {
        match self.jobs.get(&handle).map(|job| &job.state) {
            Some(JobState::Open { wire_job }) => Ok(*wire_job),
            Some(JobState::Failed(failure)) => Err(failure.clone()),
            Some(JobState::Opening | JobState::Closing { .. }) | None => Err(unknown_job(handle)),
        }
    }

    fn borrow(&self, ask: &Allreduce, out_region: u64) -> Result<Ranges, Failure> {
        let from = self.region(ask.region)?;
        let to = self.region(out_region)?;
        let input = range(from, ask.region, ask.offset, ask)?;
        let out_offset = match (ask.out_offset, ask.out_region) {
            (Some(offset), _) => offset,
            (None, None) => ask.offset,
            (None, Some(_)) => 0,
        };
        let output = range(to, out_region, out_offset, ask)?;
        let borrowed = if out_region == ask.region {
            let apart = input.end <= output.start || output.end <= input.start;
            if input != output && !apart {
                return Err(Failure::new(
                    Code::OutOfRange,
                    format!("input {input:?} and output {output:?} overlap without being the same"),
                )
                .hint("sum in place, or into a range of its own"));
            }
            Ranges::within(from, input, output)
        } else {
            Ranges::across((from, input), (to, output))
        };
        borrowed.map_err(|error| {
            let code = match error {
                LeaseError::Outside { .. } => Code::OutOfRange,
                LeaseError::Busy { .. } => Code::RangeBusy,
            };
            Failure::new(code, format!("region {out_region}: {error}"))
        })
    }

    fn region(&self, handle: u64) -> Result<&Region, Failure> {
        self.regions.get(&handle).map(|registered| &registered.region).ok_or_else(|| {
            Failure::new(Code::UnknownRegion, format!("this connection has no region {handle}"))
                .hint("use the handle from the reply to register")
        })
    }

    fn wait(&mut self, id: u64, wait: &Wait) -> Answer {
        // A deadline beyond the clock's end is none.
        let deadline = wait
            .timeout_ms
            .and_then(|milliseconds| Instant::now().checked_add(Duration::from_millis(milliseconds)));
        match self.operations.wait(wait.op, id, deadline) {
            WaitState::Ended(outcome) => Ok(Some(wait_reply(id, wait.op, outcome))),
            WaitState::Waiting => Ok(None),
            WaitState::Unknown => Err(unknown_op(wait.op)),
            WaitState::TooMany => Err(limit("waits", LIMITS.finished, "read the replies first")),
        }
    }

    fn cancel(&mut self, id: u64, cancel: &Cancel) -> Answer {
        if self.operations.has_ended(cancel.op) {
            return now(id, &CancelReply { cancelled: false });
        }
        let running = self.operations.running(cancel.op).ok_or_else(|| unknown_op(cancel.op))?;
        if let Some(job) = self.jobs.get(&running.job) {
            job.line.cancel();
        }
        now(id, &CancelReply { cancelled: true })
    }

    fn unregister(&mut self, id: u64, unregister: &Unregister) -> Answer {
        let handle = unregister.region;
        self.region(handle)?;
        if self.operations.uses_region(handle) {
            return Err(Failure::new(
                Code::RegionBusy,
                format!("operations are still using region {handle}"),
            )
            .hint("wait for them first"));
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
        match &job.get().state {
            // A failed job has been left already; its trainer only lets go of the handle.
            JobState::Failed(_) => {
                job.remove();
                now(id, &serde_json::Map::new())
            }
            JobState::Open { .. } if busy => {
                Err(Failure::new(Code::JobBusy, format!("operations of job {handle} are outstanding"))
                    .hint("wait for them first, or cancel one, which ends the job on all workers"))
            }
            JobState::Open { .. } => {
                job.get().line.close(id);
                job.get_mut().state = JobState::Closing { request: id };
                Ok(None)
            }
            JobState::Opening | JobState::Closing { .. } => Err(unknown_job(handle)),
        }
    }

    fn next_handle(&mut self) -> u64 {
        self.handles += 1;
        self.handles
    }
}

/// Refuses what the engine would refuse, before anything is borrowed.
fn check_options(ask: &Allreduce) -> Result<(), Failure> {
    if ask.loss_bound != 0.0 {
        return Err(Failure::new(
            Code::Unsupported,
            format!("a loss bound of {} is not supported by this job, which is exact", ask.loss_bound),
        )
        .hint("leave loss_bound out, or give 0"));
    }
    if ask.priority > 7 {
        return Err(Failure::new(
            Code::BadField,
            format!("allreduce: priority {} is not between 0 and 7", ask.priority),
        ));
    }
    if ask.count > u64::from(u32::MAX) {
        return Err(Failure::new(
            Code::BadField,
            format!("allreduce: {} elements; packets can address {} of a tensor", ask.count, u32::MAX),
        )
        .hint("split the tensor"));
    }
    Ok(())
}

/// The bytes of `count` elements from `offset` on, if the region has them.
fn range(region: &Region, handle: u64, offset: u64, ask: &Allreduce) -> Result<Range<usize>, Failure> {
    let size = ask.dtype.size() as u64;
    if !offset.is_multiple_of(size) {
        return Err(Failure::new(
            Code::Misaligned,
            format!("offset {offset} is not a multiple of the element's {size} bytes"),
        ));
    }
    let end = ask.count.checked_mul(size).and_then(|bytes| bytes.checked_add(offset));
    let within = end.filter(|end| *end <= region.len() as u64);
    match (usize::try_from(offset), within.map(usize::try_from)) {
        (Ok(start), Some(Ok(end))) => Ok(start..end),
        _ => Err(Failure::new(
            Code::OutOfRange,
            format!(
                "{} elements from byte {offset} on do not lie in the {} bytes of region {handle}",
                ask.count,
                region.len()
            ),
        )),
    }
}

fn limit(what: &str, most: u32, hint: &str) -> Failure {
    Failure::new(Code::Limit, format!("this connection has {most} {what}, the most it may have")).hint(hint)
}

fn unknown_job(handle: u64) -> Failure {
    Failure::new(Code::UnknownJob, format!("this connection has no open job {handle}"))
        .hint("use the handle from the reply to open")
}

fn unknown_op(op: u64) -> Failure {
    Failure::new(
        Code::UnknownOp,
        format!("this connection has no operation {op} outstanding or among the last {}", LIMITS.finished),
    )
}
