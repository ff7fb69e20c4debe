//! The simulations of MLT's evaluation (section 6.2 and figures 15 to 17): the engine of direct jobs beside a
//! model of DCTCP, on a leaf-spine network.
//!
//! | module | content |
//! | --- | --- |
//! | `model` | tensors and compute times of training, scaled |
//! | `pipeline` | a worker and a server of training, whatever carries their tensors |
//! | `fabric` | the network, and the hosts of each job |
//! | `gradients` | values in the engine's tensors |
//! | `direct`, `dctcp` | training over the engine, and over flows |
//! | `run` | one run, and its numbers |
//! | [`scale`], [`failures`], [`components`] | figures 14, 15, and 16 with 17 |

pub mod components;
mod dctcp;
mod direct;
mod fabric;
pub mod failures;
mod gradients;
mod model;
mod pipeline;
mod run;
pub mod scale;
