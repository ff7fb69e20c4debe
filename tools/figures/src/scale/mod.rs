//! The growth of an allreduce's cost with workers, elements, jobs and operations in flight, in time, memory
//! and CPU, beside Gloo.

pub mod command;
mod load;
mod report;
mod usage;
