//! The C library `libsumac`: functions over [`sumac_client`] for programs in C, and in languages that call C.
//!
//! The header `include/sumac.h` is made from this crate's public items by cbindgen; a test holds the two
//! together. Handles are numbers in the form of pointers, never dereferenced, so a closed or wrong one is an
//! error and not undefined behaviour. Panics end at the boundary ([`error::call`]).

mod arguments;
mod client;
mod collective;
mod error;
mod input;
mod job;
mod layout;
mod request;
mod state;
mod status;
mod transfer;
pub mod types;
mod version;
