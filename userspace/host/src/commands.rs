//! The commands of a trainer. A command that takes time is answered by a later message.

use serde_json::Map;
use sumac_api::{
    Cancel, CancelReply, Close, Code, CollectiveKind, Command, Failure, Hello, HelloReply, Open, Outbound,
    PollCq, PollCqReply, Register, RegisterReply, Request, ShareRegion, Stats, Unregister, VERSION, Wait,
};

use crate::connection::{ConnectionJob, ConnectionJobState, LIMITS};
use crate::host::Host;
use crate::job::{Job, JobPhase};
use crate::job_end::JobEnd;
use crate::local::NameRefusal;
use crate::operation::Operation;
use crate::quotas::Quota;
use crate::refusals::{gone, limit, unknown_job, unknown_region};
use crate::region::Region;
use crate::transfer::check_mode;
use crate::{Attached, ConnectionId, MILLISECOND, Message, Nanos, OperationKey, Output, RegionId, Resources};

/// Bytes of completions in a reply: some of them, or one with all the ranges that it may have.
const POLLED_BYTES: usize = 60_000;

/// The part of a command that is left to the daemon around the core.
#[derive(Debug, PartialEq, Eq)]
pub enum Handled {
    /// `is_free`: it has submitted operations, or taken the ends of some; their number is limited, so that
    /// its CPU time is not charged.
    Done { is_free: bool },
    /// A page of the counters is to be read, of one job or of all. [`Host::reply`]
    /// follows.
    Stats { id: u64, job: Option<crate::JobId>, after: Option<u64> },
    /// The file is to be mapped. [`Host::registered`] follows.
    Register { id: u64, region: RegionId, size: u64 },
}

impl Host {
    /// Executes a command. `has_file`: whether a file descriptor came with it.
    pub fn command(
        &mut self,
        now: Nanos,
        connection: ConnectionId,
        Request { id, command }: Request,
        has_file: bool,
        resources: &mut dyn Resources,
        out: &mut Vec<Output>,
    ) -> Handled {
        let submits = command.submits();
        let mut is_free = submits;
        let at = (connection, id);
        let executed = self.check_command(connection, &command, has_file).and_then(|()| {
            match command {
                Command::Hello(hello) => self.hello(connection, id, &hello, out),
                Command::Open(open) => self.open(now, at, open, resources, out),
                Command::Withdraw(withdraw) => self.withdraw(connection, id, &withdraw, resources, out),
                Command::Register(register) => {
                    return self
                        .register(connection, &register, has_file)
                        .map(|region| Some(Handled::Register { id, region, size: register.size }));
                }
                Command::Share(ShareRegion { job, size }) => {
                    let region = self.share((connection, job), size, resources, out)?;
                    self.registered(connection, id, region, Ok(()), resources, out);
                    Ok(())
                }
                Command::Stats(Stats { job, after }) => {
                    let job = job.map(|handle| self.running_job(connection, handle)).transpose()?;
                    return Ok(Some(Handled::Stats { id, job, after }));
                }
                Command::Attach(attach) => self.attach(connection, id, &attach, resources, out),
                Command::Allreduce(request) => {
                    self.submit(now, at, CollectiveKind::Allreduce, &request, resources, out)
                }
                Command::Broadcast(request) => {
                    self.submit(now, at, CollectiveKind::Broadcast, &request, resources, out)
                }
                Command::Reduce(request) => {
                    self.submit(now, at, CollectiveKind::Reduce, &request, resources, out)
                }
                Command::ReduceScatter(request) => {
                    self.submit(now, at, CollectiveKind::ReduceScatter, &request, resources, out)
                }
                Command::Allgather(request) => {
                    self.submit(now, at, CollectiveKind::Allgather, &request, resources, out)
                }
                Command::PostSend(request) => self.post_send(now, at, &request, resources, out),
                Command::PostRecv(request) => self.post_recv(now, at, &request, resources, out),
                Command::PollCq(request) => {
                    self.poll_cq(connection, id, &request, out).map(|polled| is_free = polled > 0)
                }
                Command::Wait(wait) => self.wait(now, connection, id, &wait, out),
                Command::Cancel(cancel) => self.cancel(connection, id, &cancel, out),
                Command::Unregister(unregister) => {
                    self.unregister(connection, id, &unregister, resources, out)
                }
                Command::Close(close) => self.close(connection, id, &close, resources, out),
            }
            .map(|()| None)
        });
        match executed {
            Ok(Some(handled)) => handled,
            Ok(None) => Handled::Done { is_free },
            Err(failure) => {
                self.send(connection, Outbound::failed(Some(id), failure), out);
                Handled::Done { is_free: false }
            }
        }
    }

    /// Answers a request that the core has left to its caller, or one that could not be parsed.
    pub fn reply(&self, connection: ConnectionId, outbound: Outbound, out: &mut Vec<Output>) {
        self.send(connection, outbound, out);
    }

    fn check_command(
        &self,
        connection: ConnectionId,
        command: &Command,
        has_file: bool,
    ) -> Result<(), Failure> {
        let found = self.state.connections.get(&connection).ok_or_else(gone)?;
        if !found.is_greeted && !matches!(command, Command::Hello(_)) {
            return Err(Failure::new(Code::HelloFirst, "the first command must be hello")
                .hint(format!(r#"send {{"id":1,"cmd":"hello","version":{VERSION}}}"#)));
        }
        if has_file && !matches!(command, Command::Register(_)) {
            return Err(Failure::new(Code::UnexpectedFd, "only register takes a file descriptor"));
        }
        Ok(())
    }

    fn hello(
        &mut self,
        connection: ConnectionId,
        id: u64,
        hello: &Hello,
        out: &mut Vec<Output>,
    ) -> Result<(), Failure> {
        if hello.version != VERSION {
            let message =
                format!("the client speaks version {}, this daemon version {VERSION}", hello.version);
            return Err(
                Failure::new(Code::Version, message).hint("install client and daemon of the same release")
            );
        }
        let found = self.state.connections.get_mut(&connection).ok_or_else(gone)?;
        found.is_greeted = true;
        let (daemon, backend) = (self.config.daemon.clone(), self.config.backend.clone());
        let reply = HelloReply { version: VERSION, daemon, backend, limits: found.limits };
        self.send(connection, Outbound::ok(id, &reply), out);
        Ok(())
    }

    /// Opens a job. The reply follows once all workers have joined.
    fn open(
        &mut self,
        now: Nanos,
        (connection, id): (ConnectionId, u64),
        open: Open,
        resources: &mut dyn Resources,
        out: &mut Vec<Output>,
    ) -> Result<(), Failure> {
        let job = self.state.last_job + 1;
        let own = ConnectionJob { job, is_opener: true, state: ConnectionJobState::Opening };
        let handle = self.add_handle(connection, own, resources)?;
        let credentials = self.state.connections.get(&connection).map(|found| found.credentials.clone());
        let planned = credentials.as_ref().ok_or_else(gone);
        let planned = planned.and_then(|credentials| resources.plan(job, credentials, &open));
        let spec = match planned {
            Ok(spec) => spec,
            Err(failure) => {
                self.remove_handle(connection, handle, resources);
                return Err(failure);
            }
        };
        self.state.last_job = job;
        let new = Job {
            name: spec.job.clone(),
            rank: spec.rank,
            order: spec.order.unwrap_or_default(),
            uid: credentials.map_or(0, |credentials| credentials.uid),
            opener: (connection, handle),
            request: id,
            asked: now,
            open,
            phase: JobPhase::AwaitsName,
            has_handle: true,
            is_connected: false,
            posts: std::collections::VecDeque::new(),
            end: None,
            running: None,
        };
        self.state.jobs.insert(job, new);
        if let Err(NameRefusal::Refused(failure)) = self.take_name(job, resources, out) {
            self.remove_handle(connection, handle, resources);
            self.remove_job(job, resources);
            return Err(failure);
        }
        out.push(Output::Start { job });
        Ok(())
    }

    fn register(
        &mut self,
        connection: ConnectionId,
        register: &Register,
        has_file: bool,
    ) -> Result<RegionId, Failure> {
        if !has_file {
            return Err(Failure::new(Code::MissingFd, "register came without a file descriptor")
                .hint("send the memfd with the message, by SCM_RIGHTS"));
        }
        let size = register.size;
        let uid = self.room_for_region(connection, size)?;
        self.add_region(Region { uid, size, users: 0, holders: 1, shared: None })
    }

    /// Checks that a connection may have a further region of this size in bytes. Returns its user.
    pub(crate) fn room_for_region(&self, connection: ConnectionId, size: u64) -> Result<u32, Failure> {
        let found = self.state.connections.get(&connection).ok_or_else(gone)?;
        if found.regions.len() >= LIMITS.regions as usize {
            return Err(limit("regions", LIMITS.regions, "put several tensors into one region"));
        }
        if size > LIMITS.region_bytes {
            let message = format!("a region has at most {} bytes, not {size}", LIMITS.region_bytes);
            return Err(Failure::new(Code::Limit, message));
        }
        Ok(found.credentials.uid)
    }

    /// Adds a region, and charges its user.
    pub(crate) fn add_region(&mut self, region: Region) -> Result<RegionId, Failure> {
        let amounts = [(Quota::Regions, 1), (Quota::Mapped, region.size)];
        self.state.quotas.reserve(&self.config.quotas, region.uid, &amounts)?;
        self.state.last_region += 1;
        self.state.regions.insert(self.state.last_region, region);
        Ok(self.state.last_region)
    }

    /// Answers the request for a region, which is mapped, or could not be.
    pub fn registered(
        &mut self,
        connection: ConnectionId,
        id: u64,
        region: RegionId,
        mapped: Result<(), Failure>,
        resources: &mut dyn Resources,
        out: &mut Vec<Output>,
    ) {
        let found = self.state.connections.get_mut(&connection);
        match (mapped, found) {
            (Ok(()), Some(found)) => {
                let handle = found.next_handle();
                found.regions.insert(handle, region);
                let mut message = Message::new(Outbound::ok(id, &RegisterReply { region: handle }));
                let is_shared = self.state.regions.get(&region).is_some_and(|found| found.shared.is_some());
                message.attached = is_shared.then_some(Attached::Region(region));
                out.push(Output::Send { connection, message: Box::new(message) });
            }
            (mapped, _) => {
                self.unregister_region(region, resources);
                let failure = mapped.err().unwrap_or_else(gone);
                self.send(connection, Outbound::failed(Some(id), failure), out);
            }
        }
    }

    fn unregister(
        &mut self,
        connection: ConnectionId,
        id: u64,
        unregister: &Unregister,
        resources: &mut dyn Resources,
        out: &mut Vec<Output>,
    ) -> Result<(), Failure> {
        let handle = unregister.region;
        let found = self.state.connections.get_mut(&connection).ok_or_else(gone)?;
        let region = *found.regions.get(&handle).ok_or_else(|| unknown_region(handle))?;
        // The operations of other ranks keep a region that they share.
        let uses = |(_, operation): (_, &Operation)| operation.regions.contains(&region);
        if self.state.operations.of_connection(connection).any(uses) {
            let message = format!("operations are still using region {handle}");
            return Err(Failure::new(Code::RegionBusy, message).hint("wait for them first"));
        }
        found.regions.remove(&handle);
        self.unregister_region(region, resources);
        self.send(connection, Outbound::ok(id, &Map::new()), out);
        Ok(())
    }

    fn wait(
        &mut self,
        now: Nanos,
        connection: ConnectionId,
        id: u64,
        wait: &Wait,
        out: &mut Vec<Output>,
    ) -> Result<(), Failure> {
        let key = OperationKey { connection, op: wait.op };
        let found = self.state.connections.get_mut(&connection).ok_or_else(gone)?;
        if let Some(outcome) = found.finished.get(wait.op).cloned() {
            self.send(connection, outcome.reply(id, wait.op), out);
            return Ok(());
        }
        if !self.state.operations.contains_key(&key) {
            return Err(unknown_op(wait.op));
        }
        // A deadline beyond the clock's range is none.
        let deadline = wait.timeout_ms.and_then(|timeout| now.checked_add(timeout.checked_mul(MILLISECOND)?));
        if !found.finished.wait(wait.op, id, deadline, LIMITS.finished as usize) {
            return Err(limit("waits", LIMITS.finished, "read the replies first"));
        }
        Ok(())
    }

    fn cancel(
        &mut self,
        connection: ConnectionId,
        id: u64,
        cancel: &Cancel,
        out: &mut Vec<Output>,
    ) -> Result<(), Failure> {
        let found = self.state.connections.get(&connection).ok_or_else(gone)?;
        let cancelled = found.finished.get(cancel.op).is_none();
        if cancelled {
            let key = OperationKey { connection, op: cancel.op };
            let operation = self.state.operations.get(&key).ok_or_else(|| unknown_op(cancel.op))?;
            let own = found.jobs.get(&operation.handle);
            if own.is_some_and(|own| own.state == ConnectionJobState::Open) {
                let job = operation.job;
                self.cancel_job(job, out);
            }
        }
        self.send(connection, Outbound::ok(id, &CancelReply { cancelled }), out);
        Ok(())
    }

    /// Takes transfers of a job that have ended, up to the length of a reply. Returns their number.
    fn poll_cq(
        &mut self,
        connection: ConnectionId,
        id: u64,
        request: &PollCq,
        out: &mut Vec<Output>,
    ) -> Result<usize, Failure> {
        let found = self.state.connections.get_mut(&connection).ok_or_else(gone)?;
        let own = found.jobs.get(&request.job).ok_or_else(|| unknown_job(request.job))?;
        let running = self.state.jobs.get(&own.job).and_then(|job| job.running.as_ref());
        if let (ConnectionJobState::Open, Some(running)) = (&own.state, running) {
            check_mode("poll_cq", &running.terms)?;
        }
        let completions = found.finished.poll_cq(request.job, POLLED_BYTES);
        let polled = completions.len();
        self.send(connection, Outbound::ok(id, &PollCqReply { completions }), out);
        Ok(polled)
    }

    /// Returns a connection's job, which runs.
    fn running_job(&self, connection: ConnectionId, handle: u64) -> Result<crate::JobId, Failure> {
        let found = self.state.connections.get(&connection).ok_or_else(gone)?;
        let own = found.jobs.get(&handle).ok_or_else(|| unknown_job(handle))?;
        let running = self.state.jobs.get(&own.job).and_then(|job| job.running.as_ref());
        running.map(|_| own.job).ok_or_else(|| unknown_job(handle))
    }

    fn close(
        &mut self,
        connection: ConnectionId,
        id: u64,
        close: &Close,
        resources: &mut dyn Resources,
        out: &mut Vec<Output>,
    ) -> Result<(), Failure> {
        let handle = close.job;
        let found = self.state.connections.get(&connection).ok_or_else(gone)?;
        let own = found.jobs.get(&handle).ok_or_else(|| unknown_job(handle))?;
        let (job, is_opener) = (own.job, own.is_opener);
        let credentials = found.credentials.clone();
        match &own.state {
            // The daemon has left a failed job already; only the handle is released.
            ConnectionJobState::Failed(_) => {}
            ConnectionJobState::Opening | ConnectionJobState::Closing { .. } => {
                return Err(unknown_job(handle));
            }
            ConnectionJobState::Open => {
                let is_own = |(_, operation): (_, &Operation)| operation.handle == handle;
                if self.state.operations.of_connection(connection).any(is_own) {
                    return Err(job_busy(format!("operations of job {handle} are outstanding")));
                }
                if is_opener {
                    return self.begin_close(job, (connection, handle), id, out);
                }
                self.detach(job, (connection, handle), &credentials, "left", out);
            }
        }
        self.remove_handle(connection, handle, resources);
        self.send(connection, Outbound::ok(id, &Map::new()), out);
        Ok(())
    }

    /// Ends a job, if none of its operations is outstanding. The reply follows once the control plane was
    /// notified.
    fn begin_close(
        &mut self,
        id: crate::JobId,
        (connection, handle): (ConnectionId, u64),
        request: u64,
        out: &mut Vec<Output>,
    ) -> Result<(), Failure> {
        let others = self.state.operations.of_job(id).count();
        if others > 0 {
            let message = format!("{others} operations of clients attached to job {handle} are outstanding");
            return Err(job_busy(message));
        }
        if let Some(job) = self.state.jobs.get_mut(&id) {
            let mut is_undiagnosed = false;
            if let Some(running) = &mut job.running {
                let failure = Failure::new(Code::JobFailed, "the client that opened the job has closed it");
                running.closed.get_or_insert(failure.hint("open it again, on all workers"));
                is_undiagnosed = running.undiagnosed.is_some();
            }
            // The diagnosis, which follows soon, also answers the close.
            if !is_undiagnosed {
                job.end_with(id, JobEnd::Closed { request }, out);
            }
        }
        if let Some(own) = self.handle_mut(connection, handle) {
            own.state = ConnectionJobState::Closing { request };
        }
        Ok(())
    }
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
