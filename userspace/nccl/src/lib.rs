//! The NCCL plugin `libnccl-net-sumac.so`: NCCL's collective network (CollNet) and its point-to-point network
//! over the host's daemon, through [`sumac_client`].
//!
//! [`abi`] has the interface's structures, [`export`] the exported ones. All versions share the functions of
//! [`net`] and [`coll`], which check arguments and end panics ([`error::entry`]). Behind them, a
//! [`pair::Pair`] sends or receives the messages of one connection in a direct job of two ranks, or a
//! [`tcp::TcpPair`] over TCP; a [`group::Group`] does the collective operations of a job. Communicators and
//! requests are numbers in the form of pointers ([`sumac_client::boundary`]): a closed or wrong one is an
//! error and not undefined behaviour.

pub mod abi;
mod address;
mod arguments;
mod background;
mod closing;
mod coll;
mod comm;
mod counters;
mod daemon;
mod device;
mod endpoint;
mod error;
pub mod export;
mod group;
mod joining;
mod link;
mod log;
mod memory;
mod net;
mod opening;
mod pair;
mod staging;
mod tcp;
