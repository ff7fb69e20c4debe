//! Waiting for a condition, however slow the machine is. The tests of other packages include this file.

use std::time::{Duration, Instant};

/// The timeout of every wait. It is far above any normal duration: it ends a test that hangs, and measures
/// nothing.
pub const LIMIT: Duration = Duration::from_secs(180);

/// Polls until there is an answer.
pub fn eventually<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(start.elapsed() < LIMIT, "{what}: not within {} s", LIMIT.as_secs());
        std::thread::sleep(Duration::from_millis(5));
    }
}
