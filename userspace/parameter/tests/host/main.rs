//! A parameter host whose packets the test sends.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on")]

mod answers;
mod flushes;
mod hostile;
mod splits;
mod support;
