//! What all sessions share: the carrier of frames, the jobs of this host, and who is told of what.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sumac_api::{Code, Failure, JobStats, Open, StatsReply};
use sumac_transport::JobError;
use tokio::sync::mpsc;

use crate::carrier::Carrier;
use crate::config::Config;
use crate::datapath::Event;
use crate::explain;
use crate::inbox::Inbox;
use crate::job::{self, Order};
use crate::memory::Budget;
use crate::operations::Outcome;
use crate::session::Note;

/// The session's line to its job.
#[derive(Debug)]
pub(crate) struct JobLine {
    orders: mpsc::UnboundedSender<Order>,
    /// Operations that have not completed; see [`Route::outstanding`].
    outstanding: Arc<AtomicUsize>,
}

impl JobLine {
    /// Leaves the job in good order; answered by [`Note::Closed`].
    pub(crate) fn close(&self, request: u64) {
        self.order(Order::Close { request });
    }

    /// Ends the job for all workers, because the trainer gave an operation up.
    pub(crate) fn cancel(&self) {
        self.order(Order::Cancel);
    }

    /// Ends the job for all workers, because its trainer is no longer there.
    pub(crate) fn abandon(&self, reason: String) {
        self.order(Order::Abandon { reason });
    }

    /// Counts an operation that is about to be submitted.
    pub(crate) fn count_operation(&self) {
        self.outstanding.fetch_add(1, Ordering::Relaxed);
    }

    /// Takes the count back: the operation was not taken.
    pub(crate) fn discount_operation(&self) {
        self.outstanding.fetch_sub(1, Ordering::Relaxed);
    }

    fn order(&self, order: Order) {
        // Fails when the job is over, which its session has been told or is about to be.
        let _ = self.orders.send(order);
    }
}

impl Drop for JobLine {
    fn drop(&mut self) {
        // Whatever ends a session, its jobs do not outlive it. A job that is over does not hear this.
        self.abandon("its trainer's session ended".into());
    }
}

/// Whom the data path's news of a job go to.
#[derive(Debug)]
pub(crate) struct Route {
    pub(crate) inbox: Arc<Inbox<Note>>,
    pub(crate) orders: mpsc::UnboundedSender<Order>,
    /// Operations that have not completed. The job looks at it when a worker has left.
    pub(crate) outstanding: Arc<AtomicUsize>,
    pub(crate) name: String,
    pub(crate) epoch: u16,
    pub(crate) rank: u16,
    pub(crate) world: u16,
}

/// The routes of all jobs that the data path carries, by their number in packets.
#[derive(Debug, Default)]
pub(crate) struct Routes {
    by_job: Mutex<HashMap<u16, Route>>,
}

impl Routes {
    fn lock(&self) -> MutexGuard<'_, HashMap<u16, Route>> {
        // Every statement leaves the map whole.
        self.by_job.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a route, unless the number is taken: two aggregators may give out the same.
    pub(crate) fn add(&self, job: u16, route: Route) -> bool {
        let mut routes = self.lock();
        if routes.contains_key(&job) {
            return false;
        }
        routes.insert(job, route);
        true
    }

    pub(crate) fn remove(&self, job: u16) {
        self.lock().remove(&job);
    }

    /// Takes news from the data path's thread. Never blocks for longer than a push into a queue.
    pub(crate) fn deliver(&self, event: Event) {
        match event {
            Event::JobReady { job } => self.order(job, Order::Ready),
            Event::JobFailed { job, error } => self.order(job, Order::Broken(error)),
            Event::Completed { job, tag, completion } => {
                let duration = completion.finished.0.saturating_sub(completion.started.0);
                let error = completion.result.as_ref().err().map(explain::op_error);
                // The memory is the trainer's again before it hears of the end.
                drop(completion);
                self.completed(job, tag, Outcome { duration_ns: duration, error });
            }
            Event::Refused { job, tag, error, operation } => {
                drop(operation);
                let error = Some(explain::refusal(&error));
                self.completed(job, tag, Outcome { duration_ns: 0, error });
            }
        }
    }

    fn order(&self, job: u16, order: Order) {
        if let Some(route) = self.lock().get(&job) {
            // Fails when the job is over already.
            let _ = route.orders.send(order);
        }
    }

    fn completed(&self, job: u16, op: u64, outcome: Outcome) {
        if let Some(route) = self.lock().get(&job) {
            route.outstanding.fetch_sub(1, Ordering::Relaxed);
            // Fails when the session is over, and then nobody wants to know.
            let _ = route.inbox.push(Note::Completed { op, outcome });
        }
    }
}

/// A job's name, taken on this host until dropped: a host is one worker of a job.
#[derive(Debug)]
pub(crate) struct Place {
    hub: Arc<Hub>,
    name: String,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.hub.places().remove(&self.name);
    }
}

/// The daemon's shared state.
#[derive(Debug)]
pub(crate) struct Hub {
    pub(crate) config: Config,
    pub(crate) carrier: Carrier,
    pub(crate) routes: Arc<Routes>,
    pub(crate) clients: AtomicU32,
    pub(crate) memory: Arc<Budget>,
    runtime: tokio::runtime::Handle,
    /// The names of the jobs that are open or being opened, with their ranks.
    places: Mutex<HashMap<String, u16>>,
}

impl Hub {
    pub(crate) fn new(
        config: Config,
        carrier: Carrier,
        routes: Arc<Routes>,
        runtime: tokio::runtime::Handle,
    ) -> Hub {
        let memory = Arc::new(Budget::new(config.memory_bytes()));
        Hub { config, carrier, routes, clients: AtomicU32::new(0), memory, runtime, places: Mutex::default() }
    }

    fn places(&self) -> MutexGuard<'_, HashMap<String, u16>> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many jobs are open or being opened.
    pub(crate) fn open_jobs(&self) -> usize {
        self.places().len()
    }

    /// Starts to join a job; its session hears the rest as notes.
    pub(crate) fn open(
        self: &Arc<Hub>,
        open: Open,
        inbox: Arc<Inbox<Note>>,
        request: u64,
        handle: u64,
    ) -> Result<JobLine, Failure> {
        let plan = job::Plan::new(&self.config, &open)?;
        let place = self.take_place(&open)?;
        let (orders, received) = mpsc::unbounded_channel();
        let outstanding = Arc::new(AtomicUsize::new(0));
        let line = JobLine { orders: orders.clone(), outstanding: outstanding.clone() };
        let member = job::Job { hub: self.clone(), plan, inbox, request, handle, orders, outstanding };
        self.runtime.spawn(async move {
            member.run(received).await;
            drop(place);
        });
        Ok(line)
    }

    fn take_place(self: &Arc<Hub>, open: &Open) -> Result<Place, Failure> {
        match self.places().entry(open.job.clone()) {
            Entry::Occupied(taken) => {
                let rank = *taken.get();
                Err(Failure::new(
                    Code::RankTaken,
                    format!("job {:?} is open on this daemon already, as rank {rank}", open.job),
                )
                .hint("a daemon is one worker of a job; close the job before it is opened again")
                .ranks([rank]))
            }
            Entry::Vacant(free) => {
                free.insert(open.rank);
                Ok(Place { hub: self.clone(), name: open.job.clone() })
            }
        }
    }

    /// Everything that is counted.
    pub(crate) fn stats(&self) -> Result<StatsReply, Failure> {
        let measured = self.carrier.stats()?;
        let routes = self.routes.lock();
        let jobs = measured
            .jobs
            .into_iter()
            .filter_map(|measured| {
                let route = routes.get(&measured.job)?;
                Some(JobStats {
                    name: route.name.clone(),
                    job: measured.job,
                    epoch: route.epoch,
                    rank: route.rank,
                    world: route.world,
                    state: measured.state,
                    error: measured.error,
                    engine: measured.engine,
                })
            })
            .collect();
        Ok(StatsReply {
            backend: self.carrier.backend().to_owned(),
            fallback: self.carrier.fallback().to_owned(),
            clients: self.clients.load(Ordering::Relaxed),
            jobs,
            ports: measured.ports,
            threads: measured.threads,
            frames: measured.frames,
            host_program: measured.host_program,
        })
    }
}

/// The reason that other workers read when this host ends a job.
pub(crate) fn spoken(error: &JobError) -> String {
    match error {
        JobError::Ended { reason } => reason.clone(),
        other => other.to_string(),
    }
}
