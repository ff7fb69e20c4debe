//! What a job is told, and its opener's end of the line.

use sumac_api::Failure;
use sumac_transport::{JobError, PathMeasure};
use tokio::sync::mpsc;

use crate::stream::{Announced, Doubt};

/// What a job is told by its clients, its stream and the data path.
#[derive(Debug)]
pub(crate) enum Order {
    /// The path to the aggregator has been measured; it waits for a number of slots.
    Measured(PathMeasure),
    /// The path to the aggregator works.
    Ready,
    /// The data path has ended the job.
    Broken(JobError),
    /// The client that opened the job leaves in good order.
    Close { request: u64 },
    /// A client gave an operation up.
    Cancel { by: String },
    /// The client that opened the job is gone, or one that had operations outstanding.
    Abandon { reason: String },
    /// An operation waits for the other workers to come to its name.
    Announce(Announced),
    /// A value of this worker could not be sent: the others want to know which.
    Blame { number: u32, failure: Failure },
    /// A value of another worker could not be sent: which?
    Doubt(Doubt),
}

/// The line of the session that opened the job.
#[derive(Debug)]
pub(crate) struct JobLine {
    orders: mpsc::UnboundedSender<Order>,
}

impl JobLine {
    pub(crate) fn new(orders: mpsc::UnboundedSender<Order>) -> JobLine {
        JobLine { orders }
    }

    /// Leaves the job in good order; answered by [`crate::session::Note::Closed`].
    pub(crate) fn close(&self, request: u64) {
        self.order(Order::Close { request });
    }

    /// Ends the job for all workers, because the client that opened it is no longer there.
    pub(crate) fn abandon(&self, reason: String) {
        self.order(Order::Abandon { reason });
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
