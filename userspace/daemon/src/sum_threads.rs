//! The threads that sum the tensors of jobs whose ranks are all on this host. They are apart from those of
//! the data path, whose packets and timers do not wait for a sum.

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use sumac_datapath::monotonic_ns;
use sumac_host::{EndedFragment, FragmentKey, FragmentOutcome, FragmentTimes};
use sumac_transport::LocalSum;

/// The most threads: memory is no faster with more.
const MOST: usize = 4;

/// Receives the end of a fragment.
pub(crate) type SumSink = Arc<dyn Fn(FragmentKey, EndedFragment) + Send + Sync>;

/// Returns the number of threads on this machine.
pub(crate) fn number() -> u16 {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    u16::try_from(processors.min(MOST)).unwrap_or(1)
}

/// A sum whose buffers are in place. Its end is that of the fragment `key`.
struct Task {
    key: FragmentKey,
    sum: LocalSum,
}

#[derive(Default)]
struct Queue {
    tasks: VecDeque<Task>,
    is_stopped: bool,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        // Every statement leaves the queue whole.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the next sum; `None`: the threads end.
    fn next(&self) -> Option<Task> {
        let has_none = |queue: &mut Queue| queue.tasks.is_empty() && !queue.is_stopped;
        let queue = self.changed.wait_while(self.lock(), has_none);
        queue.unwrap_or_else(PoisonError::into_inner).tasks.pop_front()
    }
}

/// See the module. Dropped, they end after what is queued.
pub(crate) struct SumThreads(Arc<Shared>);

impl SumThreads {
    /// Starts the threads. `sink` receives the ends of sums on them.
    pub(crate) fn start(sink: SumSink) -> io::Result<SumThreads> {
        let shared = Arc::new(Shared::default());
        for number in 0..number() {
            let (shared, sink) = (shared.clone(), sink.clone());
            std::thread::Builder::new()
                .name(format!("sumac-sum-{number}"))
                .spawn(move || run(&shared, &sink))?;
        }
        Ok(SumThreads(shared))
    }

    pub(crate) fn submit(&self, key: FragmentKey, sum: LocalSum) {
        self.0.lock().tasks.push_back(Task { key, sum });
        self.0.changed.notify_one();
    }
}

impl Drop for SumThreads {
    fn drop(&mut self) {
        self.0.lock().is_stopped = true;
        self.0.changed.notify_all();
    }
}

fn run(shared: &Shared, sink: &SumSink) {
    while let Some(Task { key, mut sum }) = shared.next() {
        let taken = monotonic_ns();
        let outcome = match catch_unwind(AssertUnwindSafe(|| sum.run())) {
            Ok(Ok(())) => FragmentOutcome::Complete,
            Ok(Err(fault)) => FragmentOutcome::LocalFault(fault),
            Err(_) => FragmentOutcome::Refused("internal error: a sum of this host has panicked".into()),
        };
        // The memory is released before the trainers are notified.
        drop(sum);
        let times = FragmentTimes { taken, sent: taken, arrived: monotonic_ns() };
        sink(key, EndedFragment { outcome, times, loss: None, left: Vec::new() });
    }
}
