//! All workers at once.

use anyhow::{Result, bail};

/// Does `work` on every item in a thread of its own, and returns the results in the items' order.
pub fn in_parallel<I: Send, O: Send>(items: Vec<I>, work: impl Fn(I) -> Result<O> + Sync) -> Result<Vec<O>> {
    std::thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = items.into_iter().map(|item| scope.spawn(move || work(item))).collect();
        let results = threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|_| bail!("a worker's thread panicked")));
        results.collect::<Vec<_>>().into_iter().collect()
    })
}
