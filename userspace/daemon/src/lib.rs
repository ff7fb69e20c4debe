//! The daemon of a host: trainers pass tensors to it over a local socket, and it moves them through the
//! network.
//!
//! ```text
//!   trainers --- sessions --- job task ----------- control plane (sumac-control)
//!      |             \           \
//!      |          operations     backend --- host program (sumac-hostprog)
//!      |               \           /
//!   memory ---------- data path (a thread, engines and a FrameIo for each queue) --- network
//!                       |
//!                parameter host --------- control plane
//! ```
#![forbid(unsafe_code)]

/// Returns from the caller with an error unless a condition holds.
macro_rules! ensure {
    ($condition:expr, $error:expr) => {
        if !$condition {
            return Err($error);
        }
    };
}

/// Logs a message that trainers can cause, at most five times a second at each place; the others are counted.
macro_rules! log_limited {
    ($level:ident, $($message:tt)*) => {{
        use std::sync::LazyLock;
        use std::time::Instant;

        static LIMITER: LazyLock<sumac_control::RateLimiter> =
            LazyLock::new(|| sumac_control::RateLimiter::new(Instant::now()));
        if let Some(suppressed) = LIMITER.allow(Instant::now()) {
            tracing::$level!(suppressed, $($message)*);
        }
    }};
}

mod access;
mod arena;
mod backend;
pub mod config;
mod control_planes;
mod core;
mod daemon;
mod handover;
mod job;
mod job_events;
mod json;
pub mod metrics;
mod opens;
mod outbox;
mod parameter;
mod path;
mod peer_process;
mod plan;
mod sandbox;
mod server;
mod service;
mod session;
mod spans;
mod state;
mod stats;
mod sum_threads;
mod sync;
mod wake_queue;
mod watch;

pub use access::UnknownPrincipal;
pub use backend::BackendError;
pub use control_planes::ControlPlaneError;
pub use daemon::{Daemon, DaemonError, PreparedDaemon, attach, check};
pub use handover::{HandoverError, Versions};
pub use parameter::ParameterHostError;
pub use sandbox::limit_start;
pub use server::ServeError;
pub use spans::SpansError;
pub use sumac_control::secret::check_private;
