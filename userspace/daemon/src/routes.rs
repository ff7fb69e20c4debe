//! Where the data path's news of a job go.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sumac_api::{JobStats, OpenReply};
use sumac_transport::Completion;
use tokio::sync::mpsc;

use crate::carrier::MeasuredJob;
use crate::datapath::Event;
use crate::explain;
use crate::line::Order;
use crate::stream::{PartEnd, Stream};

/// Whom the data path's news of a job go to.
#[derive(Debug)]
pub(crate) struct Route {
    pub(crate) orders: mpsc::UnboundedSender<Order>,
    /// Collects the parts of operations; there when the job's shape is known.
    pub(crate) stream: Arc<Stream>,
    /// The job's name.
    pub(crate) name: String,
    /// What was agreed on; slots only once they are known.
    pub(crate) reply: OpenReply,
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

    /// Takes news from a thread of the data path. Never blocks for longer than the hand-over of an operation.
    pub(crate) fn deliver(&self, event: Event) {
        match event {
            Event::JobReady { job } => self.order(job, Order::Ready),
            Event::JobMeasured { job, measure } => self.order(job, Order::Measured(measure)),
            Event::JobFailed { job, error } => self.order(job, Order::Broken(error)),
            Event::Completed { job, tag, completion, .. } => self.completed(job, tag, completion),
            Event::Rejected { job, tag, error, operation, .. } => {
                // The memory is the trainer's again before it hears of the end.
                drop(operation);
                self.part_ended(job, tag, (0, 0), |_| explain::rejection(&error));
            }
        }
    }

    fn order(&self, job: u16, order: Order) {
        if let Some(route) = self.lock().get(&job) {
            // Fails when the job is over already.
            let _ = route.orders.send(order);
        }
    }

    fn completed(&self, job: u16, tag: u64, completion: Completion) {
        let times = (completion.started.0, completion.finished.0);
        let result = completion.result.clone();
        // The memory is the trainer's again before it hears of the end.
        drop(completion);
        self.part_ended(job, tag, times, |tensor| match &result {
            Ok(()) => PartEnd::Done,
            Err(error) => explain::part_end(error, tensor),
        });
    }

    fn part_ended(&self, job: u16, tag: u64, times: (u64, u64), end: impl FnOnce(&str) -> PartEnd) {
        let stream = self.lock().get(&job).map(|route| route.stream.clone());
        // The tag is a number that the stream gave.
        if let (Some(stream), Ok(number)) = (stream, u32::try_from(tag)) {
            stream.part_ended(number, times, end);
        }
    }

    /// Notes what was agreed on when the path had been measured.
    pub(crate) fn settle(&self, job: u16, reply: OpenReply) {
        if let Some(route) = self.lock().get_mut(&job) {
            route.reply = reply;
        }
    }

    /// Notes a job's next incarnation.
    pub(crate) fn renew(&self, job: u16, epoch: u16) {
        if let Some(route) = self.lock().get_mut(&job) {
            route.reply.epoch = epoch;
        }
    }

    /// Names the jobs that the data path knows by their numbers only.
    pub(crate) fn name(&self, measured: Vec<MeasuredJob>) -> Vec<JobStats> {
        let routes = self.lock();
        let named = measured.into_iter().filter_map(|measured| {
            let Route { stream, name, reply, .. } = routes.get(&measured.job)?;
            let (operations_submitted, operations_ended) = stream.counts();
            Some(JobStats {
                name: name.clone(),
                job: measured.job,
                epoch: reply.epoch,
                rank: reply.rank,
                world: reply.world,
                state: measured.state,
                error: measured.error,
                clients: stream.clients(),
                mode: reply.mode,
                slots: reply.slots,
                slots_reason: reply.slots_reason.clone(),
                dynamic: reply.dynamic.clone(),
                elements: reply.elements,
                operations_submitted,
                operations_ended,
                engine: measured.engine,
                lanes: measured.lanes,
            })
        });
        named.collect()
    }
}
