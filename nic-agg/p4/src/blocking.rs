//! A runtime of its own for a switch's client, whose calls block and may be made from any thread.

use std::{io, panic, thread};

use tokio::runtime::{Builder, Handle, Runtime};

pub struct Blocking {
    handle: Handle,
    runtime: Option<Runtime>,
}

impl Blocking {
    pub fn start(name: &str) -> io::Result<Blocking> {
        let runtime = Builder::new_multi_thread().worker_threads(1).thread_name(name).enable_all().build()?;
        Ok(Blocking { handle: runtime.handle().clone(), runtime: Some(runtime) })
    }

    /// Runs a call to its end, on a thread of its own: the caller's may be one of another runtime.
    ///
    /// # Errors
    /// When there can be no thread.
    pub fn run<T: Send, F: Future<Output = T>>(&self, call: impl FnOnce() -> F + Send) -> io::Result<T> {
        thread::scope(|scope| {
            let thread = thread::Builder::new().spawn_scoped(scope, || self.handle.block_on(call()))?;
            Ok(thread.join().unwrap_or_else(|panicked| panic::resume_unwind(panicked)))
        })
    }
}

impl Drop for Blocking {
    fn drop(&mut self) {
        // To drop a runtime is to wait, which other runtimes' threads must not.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}
