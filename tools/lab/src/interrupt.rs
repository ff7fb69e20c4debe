//! Ctrl-C and its kin as a flag that every wait looks at, so that a lab is always taken down in order.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

static FLAG: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// The polling interval of a wait.
pub const TICK: Duration = Duration::from_millis(20);

/// The user asked to stop.
#[derive(Debug, thiserror::Error)]
#[error("interrupted")]
pub struct Interrupted;

/// Turns SIGINT, SIGTERM and SIGHUP into the flag. Called once, by a program; a library's user may leave it
/// out.
pub fn install() -> std::io::Result<()> {
    let flag = FLAG.get_or_init(Arc::default);
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP] {
        signal_hook::flag::register(signal, flag.clone())?;
    }
    Ok(())
}

/// Whether such a signal has come.
pub fn interrupted() -> bool {
    FLAG.get().is_some_and(|flag| flag.load(Ordering::Relaxed))
}

/// An error when such a signal has come.
pub fn check() -> Result<(), Interrupted> {
    if interrupted() { Err(Interrupted) } else { Ok(()) }
}

/// Asks `ready` again and again until it says something; none when the time runs out.
pub fn wait_for<T>(limit: Duration, mut ready: impl FnMut() -> Option<T>) -> Result<Option<T>, Interrupted> {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(done) = ready() {
            return Ok(Some(done));
        }
        check()?;
        if Instant::now() >= deadline {
            return Ok(None);
        }
        std::thread::sleep(TICK);
    }
}
