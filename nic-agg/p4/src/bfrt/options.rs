//! The options of a connection to a switch.

use super::pipeline::Pipeline;

#[derive(Clone, Debug)]
pub struct Options {
    /// Of the switch's BFRuntime: host and port.
    pub address: String,
    pub device: u32,
    /// The name under which the switch runs the program; none: it runs no other.
    pub program: Option<String>,
    /// The program to load where the switch does not run it; none: it must be there.
    pub pipeline: Option<Pipeline>,
}
