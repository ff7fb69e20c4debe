//! How a job is to be opened, and how an operation is to be done.

use std::time::Duration;

use sumac_api::{Mode, NonFinitePolicy, Open, OperationOrder, Reduction, Scale, Secret, WireFormat};

/// Which job to open, and as whom.
#[derive(Clone, Debug)]
pub struct JobOptions {
    pub(crate) open: Open,
}

impl JobOptions {
    /// Worker `rank` of the `world` workers of the job `name`, with the daemon's defaults for the rest.
    #[must_use]
    pub fn new(name: impl Into<String>, rank: u16, world: u16) -> JobOptions {
        JobOptions { open: Open::new(name, rank, world) }
    }

    /// The job's shared secret, instead of the daemon's.
    #[must_use]
    pub fn secret(mut self, secret: impl Into<String>) -> JobOptions {
        self.open.secret = Some(Secret(secret.into()));
        self
    }

    /// The aggregator's control plane, `address:port`, instead of the daemon's.
    #[must_use]
    pub fn aggregator(mut self, endpoint: impl Into<String>) -> JobOptions {
        self.open.aggregator = Some(endpoint.into());
        self
    }

    /// 32-bit words per packet, instead of what the path carries.
    #[must_use]
    pub fn elements(mut self, elements: u16) -> JobOptions {
        self.open.spec.elements = Some(elements);
        self
    }

    /// How the job uses its aggregators.
    #[must_use]
    pub fn mode(mut self, mode: Mode) -> JobOptions {
        self.open.spec.mode = Some(mode);
        self
    }

    /// Packets that a lane of a dynamic job may be ahead of its oldest without result, a power of two.
    #[must_use]
    pub fn window(mut self, window: u32) -> JobOptions {
        self.open.spec.window = Some(window);
        self
    }

    /// Shared slots of each shard that a dynamic job may take, instead of all.
    #[must_use]
    pub fn dynamic_slots(mut self, slots: u32) -> JobOptions {
        self.open.spec.dynamic_slots = Some(slots);
        self
    }

    /// Parameter hosts that a dynamic job's shards are spread over.
    #[must_use]
    pub fn parameter_hosts(mut self, hosts: u16) -> JobOptions {
        self.open.spec.parameter_hosts = Some(hosts);
        self
    }

    /// Whether a dynamic job yields to congestion; it does unless told not to.
    #[must_use]
    pub fn congestion_control(mut self, yields: bool) -> JobOptions {
        self.open.spec.congestion_control = Some(yields);
        self
    }

    /// Slots of each lane of a static job, a power of two, instead of what the measured path asks for.
    #[must_use]
    pub fn slots(mut self, slots: u32) -> JobOptions {
        self.open.spec.slots = Some(slots);
        self
    }

    /// A fixed number that floats are multiplied with before they are rounded.
    #[must_use]
    pub fn scale(mut self, scale: f32) -> JobOptions {
        self.open.spec.scale = Some(Scale::Fixed(scale));
        self
    }

    /// Block floating point: each packet's scale is the largest that its values allow.
    #[must_use]
    pub fn block(mut self) -> JobOptions {
        self.open.spec.scale = Some(Scale::Block);
        self
    }

    /// How floats are written into packets.
    #[must_use]
    pub fn wire(mut self, wire: WireFormat) -> JobOptions {
        self.open.spec.wire = Some(wire);
        self
    }

    /// What becomes of NaN and infinity.
    #[must_use]
    pub fn not_finite(mut self, not_finite: NonFinitePolicy) -> JobOptions {
        self.open.spec.not_finite = Some(not_finite);
        self
    }

    /// Which operations of the workers belong together.
    #[must_use]
    pub fn order(mut self, order: OperationOrder) -> JobOptions {
        self.open.spec.order = Some(order);
        self
    }

    /// Shards that a tensor is spread over.
    #[must_use]
    pub fn shards(mut self, shards: u16) -> JobOptions {
        self.open.spec.shards = Some(shards);
        self
    }

    /// How long to wait for the other workers.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> JobOptions {
        self.open.spec.timeout_s = Some(timeout.as_secs_f64());
        self
    }
}

/// How an operation is to be done.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct OpOptions<'a> {
    /// How values are reduced, where they are.
    pub reduction: Reduction,
    /// The operation's name, the same on all workers; necessary in a job in order of names.
    pub name: Option<&'a str>,
    /// 0 (least) to 7 (most urgent); from 4 on the operation overtakes those below.
    pub priority: u8,
    /// The fraction of contributions that may be missing; 0 for exact results.
    pub loss_bound: f32,
}

impl<'a> OpOptions<'a> {
    /// An operation with a name.
    #[must_use]
    pub fn named(name: &'a str) -> OpOptions<'a> {
        OpOptions { name: Some(name), ..OpOptions::default() }
    }
}
