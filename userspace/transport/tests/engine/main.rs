//! One engine whose frames the test sees and answers.
#![allow(clippy::expect_used, reason = "a test that cannot go on")]

mod direct;
mod direct_halves;
mod direct_network;
mod direct_paths;
mod dynamic;
mod empty;
mod exponents;
mod hostile;
mod numbers;
mod operations;
mod passes;
mod path;
mod ranks;
mod recovery;
mod streams;
mod support;
mod transfers;
mod window;
