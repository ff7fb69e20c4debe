//! What a loss bound brings, in labs: the tail of an exchange under loss and beside stragglers, and the convergence of a training.

pub mod convergence;
pub mod exchange;
mod straggler;
