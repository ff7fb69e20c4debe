//! AF_XDP sockets with frames that have one owner from fill to completion.
//!
//! This crate holds all `unsafe` code about frames, mappings and system calls, so that everything above it can forbid
//! it. One concept per file:
//!
//! | module | what it is |
//! | --- | --- |
//! | [`abi`] | the kernel's structures and what their numbers mean |
//! | `syscall` | the system calls, each a safe function where that can be |
//! | `mapping` | memory that is unmapped when dropped |
//! | `ring` | the four rings between user space and the kernel |
//! | `layout` | how the frames' memory is cut |
//! | [`umem`] | the frames, and whose each is at the moment |
//! | [`port`] | rings and frames together: receive, send, reap; runs without a kernel too |
//! | [`socket`] | a [`port::Port`] that is bound to a queue of an interface |
//! | [`error`] | what can fail, and what to do about it |
//!
//! The invariant that everything rests on: *a frame belongs to one side at a time*. User space touches a
//! frame's bytes only through a token ([`umem::TxFrame`], or the closure of [`port::Port::receive`]) that
//! exists once and is given up when the frame goes to the kernel.
//! The states are written down per frame, so a descriptor that the kernel hands back twice is refused and counted.

pub mod abi;
pub mod error;
mod layout;
mod mapping;
pub mod port;
mod ring;
pub mod socket;
mod syscall;
pub mod umem;

pub use error::OpenError;
pub use port::Port;
pub use socket::{Bound, LINK_HEADER, Mode, Socket, SocketConfig};
pub use umem::{Conservation, TxFrame};
