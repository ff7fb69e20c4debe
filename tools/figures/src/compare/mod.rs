//! Sumac and other libraries in the same lab, with the same tensor size, clock and checks; one row for each.

pub mod command;
pub mod comparison;
pub mod contender;
pub mod library;
pub mod offloads;
mod rank;
mod table;
