//! What a job is told, and its session's end of the line.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use sumac_transport::JobError;
use tokio::sync::mpsc;

/// What a job is told by its session and by the data path.
#[derive(Debug)]
pub(crate) enum Order {
    /// The path to the aggregator works.
    Ready,
    /// The data path has ended the job.
    Broken(JobError),
    /// The trainer leaves in good order.
    Close { request: u64 },
    /// The trainer gave an operation up.
    Cancel,
    /// The trainer is gone.
    Abandon { reason: String },
}

/// The session's line to its job.
#[derive(Debug)]
pub(crate) struct JobLine {
    orders: mpsc::UnboundedSender<Order>,
    /// Operations that have not completed. The job looks at it when a worker has left.
    outstanding: Arc<AtomicUsize>,
}

impl JobLine {
    pub(crate) fn new(orders: mpsc::UnboundedSender<Order>, outstanding: Arc<AtomicUsize>) -> JobLine {
        JobLine { orders, outstanding }
    }

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
