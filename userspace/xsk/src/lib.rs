//! AF_XDP sockets whose frames have one owner from fill to completion.
//!
//! xsk-rs provides the UMEM, the rings, socket set-up, wake-ups and statistics, and leaves it to its caller
//! that no descriptor is used twice. This crate is that caller: [`XskQueue`] records a state for each frame.
//!
//! | module | concept |
//! | --- | --- |
//! | `layout` | division of the UMEM into chunks |
//! | [`frames`] | a state per frame, and the conservation of frames |
//! | `rings` | xsk-rs's UMEM and rings behind a trait, so that the queue runs without a kernel in tests |
//! | `multi_buffer` | packets longer than a chunk |
//! | [`queue`] | receive, submit, flush |
//! | `open`, [`config`], [`error`] | from a configuration to a bound socket |
//! | `sockopt` | socket options and errors that xsk-rs does not expose |
//!
//! The invariant: *a frame belongs to one side at a time*. User space accesses a frame's bytes only through a
//! token ([`TxFrame`], or the closure of [`XskQueue::receive`]) that exists once and is given up when the
//! frame goes to the kernel. A descriptor that the kernel returns twice, or that names a frame it does not
//! have, is refused and counted.

pub mod config;
pub mod error;
pub mod frames;
mod layout;
mod multi_buffer;
mod open;
pub mod queue;
mod rings;
mod sockopt;

pub use config::{BindMode, Bound, LINK_HEADER, QueueConfig};
pub use error::OpenError;
pub use frames::{Conservation, TxFrame};
pub use queue::{Statistics, XskQueue};
