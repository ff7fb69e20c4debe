//! Measurements of the loss bound in labs: the tail of an allreduce under loss and beside stragglers, and the
//! convergence of a training.

pub mod convergence;
pub mod exchange;
mod straggler;
