//! Where the data path's news of a job go.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sumac_api::JobStats;
use tokio::sync::mpsc;

use crate::carrier::MeasuredJob;
use crate::datapath::Event;
use crate::explain;
use crate::inbox::Inbox;
use crate::line::Order;
use crate::operations::Outcome;
use crate::session::Note;

/// Whom the data path's news of a job go to.
#[derive(Debug)]
pub(crate) struct Route {
    pub(crate) inbox: Arc<Inbox<Note>>,
    pub(crate) orders: mpsc::UnboundedSender<Order>,
    /// Operations that have not completed; the session counts up, this down.
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

    /// Names the jobs that the data path knows by their numbers only.
    pub(crate) fn name(&self, measured: Vec<MeasuredJob>) -> Vec<JobStats> {
        let routes = self.lock();
        let named = measured.into_iter().filter_map(|measured| {
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
        });
        named.collect()
    }
}
