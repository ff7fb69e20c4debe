//! Tensors and compute times of training. Both are those of a real model, divided by a scale: the network is
//! as loaded as by the whole model, with fewer packets to simulate. The round trip is not scaled, as with the
//! paper's compressed gradients.

use sumac_sim::events::{MICRO, Nanos};
use sumac_wire::tos::layer_priority;

/// Most bytes of a part of a tensor before it is scaled; tensors are divided as BytePS does, so that all
/// servers have a part.
const PART: u64 = 1_000_000;

/// A part of a layer's tensor, which goes to one server.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    pub layer: usize,
    pub server: usize,
    /// Values, of 4 bytes.
    pub values: usize,
    pub priority: u8,
}

#[derive(Clone, Debug)]
pub struct Model {
    pub name: &'static str,
    /// From the front layer to the back.
    pub parts: Vec<Part>,
    pub layers: usize,
    /// The time of a layer in the forward pass; in the backward pass twice as much.
    pub forward: Nanos,
}

impl Model {
    /// Residual blocks as layers: 25.6 million parameters, 64 ms for a step.
    pub fn resnet50(servers: usize, scale: u64) -> Model {
        let thousands = [
            9, 75, 70, 70, 379, 280, 280, 280, 1_512, 1_117, 1_117, 1_117, 1_117, 1_117, 6_040, 4_462, 4_462,
            2_049,
        ];
        Model::new("ResNet50", &thousands, 64_000 * MICRO, (servers, scale))
    }

    /// Inception modules as layers: 7 million parameters, 25 ms for a step.
    pub fn googlenet(servers: usize, scale: u64) -> Model {
        let thousands = [9, 115, 164, 389, 376, 449, 510, 605, 868, 1_043, 1_444, 1_025];
        Model::new("GoogleNet", &thousands, 25_000 * MICRO, (servers, scale))
    }

    fn new(name: &'static str, thousands: &[u64], step: Nanos, (servers, scale): (usize, u64)) -> Model {
        let layers = thousands.len();
        let mut parts = Vec::new();
        for (layer, thousands) in thousands.iter().enumerate() {
            let bytes = thousands * 4_000;
            let count = bytes.div_ceil(PART);
            for _ in 0..count {
                let values = (bytes / count / 4 / scale).max(1) as usize;
                let priority = layer_priority(layer as u32, layers as u32);
                parts.push(Part { layer, server: parts.len() % servers, values, priority });
            }
        }
        Model { name, parts, layers, forward: step / scale / 3 / layers as Nanos }
    }

    /// The indices of a layer's parts.
    pub fn of_layer(&self, layer: usize) -> impl Iterator<Item = usize> {
        (0..self.parts.len()).filter(move |part| self.parts[*part].layer == layer)
    }

    /// The indices of a server's parts.
    pub fn of_server(&self, server: usize) -> impl Iterator<Item = usize> {
        (0..self.parts.len()).filter(move |part| self.parts[*part].server == server)
    }

    /// Bytes that a worker sends in a step.
    pub fn bytes(&self) -> usize {
        self.parts.iter().map(|part| part.values * 4).sum()
    }
}
