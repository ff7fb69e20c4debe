//! The primitives of `userspace/daemon/src/sync.rs`, as loom models them.

use std::io;

use loom::sync::Condvar;
pub(crate) use loom::sync::Mutex;

/// An eventfd: a counter that a read sets to zero.
#[derive(Debug)]
pub(crate) struct Event {
    count: Mutex<u64>,
    changed: Condvar,
}

impl Event {
    #[expect(clippy::unnecessary_wraps, reason = "an eventfd may be refused")]
    pub(crate) fn new() -> io::Result<Event> {
        Ok(Event { count: Mutex::new(0), changed: Condvar::new() })
    }

    pub(crate) fn signal(&self) {
        *self.count.lock().unwrap() += 1;
        self.changed.notify_one();
    }

    pub(crate) fn reset(&self) {
        *self.count.lock().unwrap() = 0;
    }

    /// Waits until it is set, as poll(2) does.
    pub(crate) fn wait(&self) {
        let mut count = self.count.lock().unwrap();
        while *count == 0 {
            count = self.changed.wait(count).unwrap();
        }
    }
}
