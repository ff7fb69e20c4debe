//! The messages and clients of P4Runtime and BFRuntime, generated from its published definitions.
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

pub mod p4 {
    pub mod v1 {
        include!(concat!(env!("OUT_DIR"), "/p4.v1.rs"));
    }

    pub mod config {
        pub mod v1 {
            include!(concat!(env!("OUT_DIR"), "/p4.config.v1.rs"));
        }
    }
}

pub mod bfrt_proto {
    include!(concat!(env!("OUT_DIR"), "/bfrt_proto.rs"));
}
