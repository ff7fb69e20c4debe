//! The host's core behind one lock, with its handles: each thread that has an input calls it, and executes
//! the outputs.
//!
//! The lock covers the outputs, so that all lanes have the operations, and each connection its messages, in
//! the order in which the core made them. Nothing under it waits: outputs are queued for other threads.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use sumac_datapath::{Event, Rejection, monotonic_ns};
use sumac_host::{
    Attached, ConnectionId, EndedFragment, FragmentOutcome, FragmentTimes, Host, HostTotals, JobId,
    JobSummary, Message, Output,
};
use sumac_transport::Completion;
use tokio::sync::Notify;
use tokio::sync::mpsc::UnboundedSender;

use crate::arena::Arena;
use crate::backend::Backend;
use crate::job_events::TaskEvent;
use crate::outbox::{AttachedFile, Delivery, Notification, Outbox};
use crate::sum_threads::SumThreads;

#[derive(Debug)]
struct Inner {
    host: Host,
    arena: Arena,
    outputs: Vec<Output>,
}

/// See the module.
pub(crate) struct Core {
    inner: Mutex<Inner>,
    /// Set once the data path has started, whose threads have this core.
    backend: OnceLock<Weak<Backend>>,
    /// Set once.
    sums: OnceLock<SumThreads>,
    /// The jobs to start.
    starts: UnboundedSender<JobId>,
    /// Notified when a job has been removed, and its name is free.
    pub(crate) released: Notify,
}

impl Core {
    pub(crate) fn new(host: Host, arena: Arena, starts: UnboundedSender<JobId>) -> Core {
        Core {
            inner: Mutex::new(Inner { host, arena, outputs: Vec::new() }),
            backend: OnceLock::new(),
            sums: OnceLock::new(),
            starts,
            released: Notify::new(),
        }
    }

    pub(crate) fn set_backend(&self, backend: &Arc<Backend>) {
        // It is set once.
        let _ = self.backend.set(Arc::downgrade(backend));
    }

    /// Starts the threads that sum the tensors of this host's ranks.
    pub(crate) fn start_sums(self: &Arc<Core>) -> io::Result<()> {
        let core = Arc::downgrade(self);
        let sink = move |key, ended| {
            if let Some(core) = core.upgrade() {
                core.fragment_ended(key, ended);
            }
        };
        let threads = SumThreads::start(Arc::new(sink))?;
        // It is set once.
        let _ = self.sums.set(threads);
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // A panic in the core ends the daemon's thread that had it; the others stop by their own errors.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls the core, and executes its outputs.
    pub(crate) fn call<T>(&self, call: impl FnOnce(&mut Host, &mut Arena, &mut Vec<Output>) -> T) -> T {
        self.run(&mut self.lock(), None, call)
    }

    /// Calls the core from the thread of a connection's session, which looks into its outbox afterwards.
    pub(crate) fn call_session<T>(
        &self,
        connection: ConnectionId,
        call: impl FnOnce(&mut Host, &mut Arena, &mut Vec<Output>) -> T,
    ) -> T {
        self.run(&mut self.lock(), Some(connection), call)
    }

    fn run<T>(
        &self,
        inner: &mut Inner,
        own: Option<ConnectionId>,
        call: impl FnOnce(&mut Host, &mut Arena, &mut Vec<Output>) -> T,
    ) -> T {
        let mut outputs = std::mem::take(&mut inner.outputs);
        let result = call(&mut inner.host, &mut inner.arena, &mut outputs);
        for output in outputs.drain(..) {
            self.execute(&mut inner.arena, own, output);
        }
        inner.outputs = outputs;
        result
    }

    fn execute(&self, arena: &mut Arena, own: Option<ConnectionId>, output: Output) {
        match output {
            Output::Send { connection, message } => send(arena, own, connection, *message),
            Output::Submit { job, lane, key, mut operation, ranks } => {
                let is_direct = operation.exchange.is_some();
                if let Some(buffer) = arena.buffer(key, ranks.map(|ranks| *ranks), is_direct) {
                    operation.buffer = buffer;
                }
                if let Some(backend) = self.backend.get().and_then(Weak::upgrade) {
                    // Fails when a thread of the data path has ended, which ends the daemon.
                    let _ = backend.datapath().submit(job, lane, key, *operation);
                }
            }
            Output::Sum(ranks) => {
                let first = ranks.keys.first().copied();
                if let (Some(first), Some(threads)) = (first, self.sums.get()) {
                    threads.submit(first, arena.sum(*ranks));
                }
            }
            // Fails when the daemon stops.
            Output::Start { job } => drop(self.starts.send(job)),
            Output::Wake { job } => {
                if let Some(task) = arena.tasks.get(&job) {
                    task.wake.notify_one();
                }
            }
            Output::PeerLeft { job, worker } => {
                if let Some(backend) = self.backend.get().and_then(Weak::upgrade) {
                    backend.peer_left(job, worker);
                }
            }
            Output::Span { job, span } => {
                if let Some(spans) = arena.tasks.get(&job).and_then(|task| task.spans.as_ref()) {
                    spans.ended(*span);
                }
            }
            Output::Warn { job, message, ranks } => {
                let name = arena.tasks.get(&job).map(|task| &task.plan.spec.job);
                log_limited!(warn, job = ?name, ?ranks, "{message}");
            }
        }
    }

    /// Handles an event of a data path thread. It blocks no longer than the submission of an operation.
    pub(crate) fn deliver(&self, event: Event) {
        match event {
            Event::JobReady { job } => self.send_task(job, TaskEvent::Ready),
            Event::JobMeasured { job, measure } => self.send_task(job, TaskEvent::Measured(measure)),
            Event::JobFailed { job, error } => {
                self.call(|host, _, out| host.engine_failed(monotonic_ns(), job, error, out));
            }
            // The memory is released before the trainer is notified.
            Event::Completed { id, completion, sent, .. } => {
                let Completion { result, buffer, started, finished, loss, left, .. } = completion;
                let fault = buffer.fault();
                drop(buffer);
                let times = FragmentTimes { taken: started.0, sent: sent.0, arrived: finished.0 };
                let outcome = FragmentOutcome::of(result, fault);
                self.fragment_ended(id, EndedFragment { outcome, times, loss, left });
            }
            Event::Rejected { id, error, operation, .. } => {
                drop(operation);
                let outcome = match error {
                    Rejection::Submit(error) => FragmentOutcome::Refused(error.to_string()),
                    Rejection::UnknownJob { .. } => FragmentOutcome::JobEnded,
                };
                let times = FragmentTimes::default();
                self.fragment_ended(id, EndedFragment { outcome, times, loss: None, left: Vec::new() });
            }
        }
    }

    pub(crate) fn fragment_ended(&self, key: sumac_host::FragmentKey, ended: EndedFragment) {
        self.call(|host, arena, out| host.fragment_ended(monotonic_ns(), key, ended, arena, out));
    }

    fn send_task(&self, job: JobId, event: TaskEvent) {
        self.call(|_, arena, _| {
            if let Some(task) = arena.tasks.get(&job) {
                // Fails when the job has ended.
                let _ = task.events.send(event);
            }
        });
    }

    /// Removes a job, whose name is free from here on.
    pub(crate) fn remove_job(&self, job: JobId) {
        self.call(|host, arena, _| {
            host.remove_job(job, arena);
            arena.tasks.remove(&job);
        });
        self.released.notify_waiters();
    }

    pub(crate) fn totals(&self) -> HostTotals {
        self.lock().host.totals()
    }

    pub(crate) fn summary(&self, job: JobId) -> Option<JobSummary> {
        self.lock().host.summary(job)
    }

    /// Returns the outboxes of all sessions.
    pub(crate) fn outboxes(&self) -> Vec<Arc<Outbox>> {
        self.lock().arena.sessions.values().map(|session| session.outbox.clone()).collect()
    }

    /// Notifies all sessions.
    pub(crate) fn notify_sessions(&self, notification: impl Fn() -> Notification) {
        for outbox in self.outboxes() {
            // Fails when the session has ended.
            let _ = outbox.push(notification());
        }
    }
}

impl std::fmt::Debug for Core {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Core").finish_non_exhaustive()
    }
}

/// Queues a message. `own`: the connection of this thread, which needs no wake-up.
fn send(arena: &Arena, own: Option<ConnectionId>, connection: ConnectionId, message: Message) {
    let Some(session) = arena.sessions.get(&connection) else { return };
    let Message { outbound, attached, signalled_event, is_optional } = message;
    let event = |handle| arena.events.get(&(connection, handle)).cloned();
    let attached = attached.and_then(|attached| match attached {
        Attached::Event(handle) => event(handle).map(AttachedFile::Event),
        Attached::Region(region) => arena.regions.get(&region).cloned().map(|region| {
            region.add_trainer(&session.channel);
            AttachedFile::Region(region)
        }),
    });
    let signalled = signalled_event.and_then(event);
    let delivery = Delivery { outbound, attached, signalled, is_optional };
    let delivery = Notification::Message(Box::new(delivery));
    let outbox = &session.outbox;
    // Fails when the session has ended.
    let _ = if own == Some(connection) { outbox.append(delivery) } else { outbox.push(delivery) };
}
