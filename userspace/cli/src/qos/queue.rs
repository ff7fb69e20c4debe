//! The queues of a switch for Sumac's packets.

use sumac_wire::tos::{DATA_CLASSES, QUEUES, dropping_threshold, queue_of};

/// A queue of a switch, in the order of priority.
pub struct Queue {
    pub name: String,
    /// Higher ones are served first.
    pub number: u8,
    pub dscp: Vec<u8>,
    /// The bytes from which packets that are not ECN-capable are dropped; `None`: only a full buffer drops.
    pub threshold: Option<u32>,
}

/// The queues from the highest on: control, then the classes of data. The last takes all other traffic too.
pub fn queues(buffer_kb: u32) -> Vec<Queue> {
    (0..QUEUES).rev().map(|number| Queue::new(number, buffer_kb * 1024)).collect()
}

impl Queue {
    fn new(number: u8, buffer: u32) -> Queue {
        let name = match number {
            DATA_CLASSES => "control".into(),
            class => format!("class {class}"),
        };
        // All traffic that has no other is in queue 0, which names its own class only.
        let is_here = |dscp: &u8| queue_of(dscp << 2) == number && (number > 0 || *dscp == 0);
        let threshold = (number < DATA_CLASSES).then(|| dropping_threshold(number, buffer));
        Queue { name, number, dscp: (0..64).filter(is_here).collect(), threshold }
    }
}
