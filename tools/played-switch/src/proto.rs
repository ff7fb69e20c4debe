//! The messages and the server of BFRuntime, generated from its published definition.
#![allow(
    clippy::all,
    clippy::pedantic,
    clippy::restriction,
    dead_code,
    missing_docs,
    rustdoc::all,
    reason = "generated"
)]

pub mod google {
    pub mod rpc {
        include!(concat!(env!("OUT_DIR"), "/google.rpc.rs"));
    }
}

pub mod bfrt_proto {
    include!(concat!(env!("OUT_DIR"), "/bfrt_proto.rs"));
}
