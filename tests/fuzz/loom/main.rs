//! The daemon's queue between threads, under loom: the orders of the steps of its threads, and no item is
//! lost.
//!
//! `userspace/daemon/src/wake_queue.rs` is compiled here once more, over loom's primitives. The daemon's
//! other queues are those of std and crossbeam.
#![expect(clippy::unwrap_used, reason = "a test ends by panicking")]

mod sync;
#[path = "../../../userspace/daemon/src/wake_queue.rs"]
mod wake_queue;

// cargo-bolero builds this executable too, with code that refers to the fuzzer's.
use bolero as _;
use loom::{sync::Arc, thread};
use wake_queue::WakeQueue;

/// Runs a model with at most three preemptions, which suffice for a lost wake-up, in seconds.
fn every_order(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

/// Takes items until there are so many; it sleeps whenever the queue's event is not set.
fn take(queue: &WakeQueue<u32>, count: usize) -> Vec<u32> {
    let mut items = Vec::new();
    while items.len() < count {
        // Blocks for ever where a wake-up is lost, which loom reports as a deadlock.
        queue.wake.wait();
        items.extend(queue.take());
    }
    items
}

#[test]
fn no_wake_up_is_lost() {
    every_order(|| {
        let queue = Arc::new(WakeQueue::new().unwrap());
        let senders = [1, 2].map(|item| {
            let queue = queue.clone();
            thread::spawn(move || queue.push(item).unwrap())
        });
        let mut items = take(&queue, 2);
        items.sort_unstable();
        assert_eq!(items, [1, 2]);
        senders.into_iter().for_each(|sender| sender.join().unwrap());
    });
}

#[test]
fn items_of_one_thread_stay_in_order() {
    every_order(|| {
        let queue = Arc::new(WakeQueue::new().unwrap());
        let sender = queue.clone();
        let sender = thread::spawn(move || [1, 2].map(|item| sender.push(item).unwrap()));
        assert_eq!(take(&queue, 2), [1, 2]);
        sender.join().unwrap();
    });
}

#[test]
fn an_item_is_taken_or_returned_when_the_queue_closes() {
    every_order(|| {
        let queue = Arc::new(WakeQueue::new().unwrap());
        let sender = queue.clone();
        let sender = thread::spawn(move || sender.push(1));
        let taken = queue.take();
        queue.close();
        let pushed = sender.join().unwrap();
        assert!(queue.take().is_empty(), "none after the close");
        // One that arrived between the last take and the close is dropped with the queue, as the session is
        // gone.
        assert!(taken.is_empty() || pushed.is_ok(), "not both taken and returned");
    });
}
