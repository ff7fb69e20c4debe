//! Options of jobs and operations.

use std::time::Duration;

use sumac_api::{
    Importance, JobSpec, MissingValues, Mode, NonFinitePolicy, Open, OperationOrder, Reduction, Scale,
    Secret, Topology, WireFormat,
};

/// The options of a job.
#[derive(Clone, Debug)]
pub struct JobOptions {
    pub(crate) open: Open,
}

impl JobOptions {
    /// Worker `rank` of the `world` workers of the job `name`, with the daemon's defaults for all else.
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

    /// A fixed factor for floats, applied before they are rounded.
    #[must_use]
    pub fn scale(mut self, scale: f32) -> JobOptions {
        self.open.spec.scale = Some(Scale::Fixed(scale));
        self
    }

    /// Block floating point: each packet has the largest scale that its values allow.
    #[must_use]
    pub fn block(mut self) -> JobOptions {
        self.open.spec.scale = Some(Scale::Block);
        self
    }

    /// The time to wait for the other workers.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> JobOptions {
        self.open.spec.timeout_s = Some(timeout.as_secs_f64());
        self
    }
}

/// Defines the options that set the parameter of their name.
macro_rules! parameters {
    ($($(#[$doc:meta])* $parameter:ident: $type:ty,)*) => {
        impl JobOptions {
            $($(#[$doc])*
            #[must_use]
            pub fn $parameter(mut self, $parameter: $type) -> JobOptions {
                self.open.spec.$parameter = Some($parameter);
                self
            })*
        }
    };
}

parameters! {
    /// The job's ranks on this host, at this daemon; without it one. All hosts have as many.
    local_world: u16,
    /// 32-bit words per packet, instead of the path's maximum.
    elements: u16,
    /// The use of the aggregators' slots.
    mode: Mode,
    /// Packets that a lane of a dynamic job may be ahead of its oldest without a result, a power of two;
    /// packets of a direct job in flight to one worker.
    window: u32,
    /// The maximum of shared slots of each shard for a dynamic job, instead of all.
    dynamic_slots: u32,
    /// The way of a direct job's values: by the owners of blocks, or around the ring.
    topology: Topology,
    /// The number of a direct job's workers that own blocks, instead of all.
    owners: u16,
    /// Ranks of a direct job, from rank 0 on, that are parameter servers: they own all blocks, and contribute
    /// nothing.
    servers: u16,
    /// The number of parameter hosts for a dynamic job's shards.
    parameter_hosts: u16,
    /// Whether a dynamic or static job uses a congestion window; the default is true for dynamic ones, false
    /// for static ones.
    congestion_control: bool,
    /// Slots of each lane of a static job, a power of two, instead of the measured number.
    slots: u32,
    /// The wire format of floats.
    wire: WireFormat,
    /// The policy for NaN and infinity.
    not_finite: NonFinitePolicy,
    /// The rule by which the workers' operations are matched.
    order: OperationOrder,
    /// The number of shards for a tensor.
    shards: u16,
}

/// Uses the daemon's secret and aggregator.
impl From<JobSpec> for JobOptions {
    fn from(spec: JobSpec) -> JobOptions {
        JobOptions { open: spec.into() }
    }
}

/// The options of an operation.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct OpOptions<'a> {
    /// The reduction, for kinds that reduce.
    pub reduction: Reduction,
    /// The operation's name, the same on all workers; required with [`OperationOrder::Name`].
    pub name: Option<&'a str>,
    /// The priority, 0 (lowest) to 7; from 4 on the operation is urgent and overtakes those below.
    pub priority: u8,
    /// The way in which packets are distinguished by importance, so that routers drop unimportant ones first.
    pub importance: Importance,
    /// The fraction of its elements that each worker may be left out with; 0 for exact results. For sums and
    /// means of floats in static jobs.
    pub loss_bound: f32,
    /// Whether [`Pending::wait_polled`](crate::Pending::wait_polled) can poll for the end.
    pub polled: bool,
    /// Whether [`Pending::timing`](crate::Pending::timing) has the times of its steps.
    pub timed: bool,
}

/// The options of [`Job::post_send`](crate::Job::post_send).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SendOptions {
    /// The priority, 0 (lowest) to 7: the order of the transfers to one worker, and the class of the packets.
    pub priority: u8,
    /// The way in which packets are distinguished by importance, so that routers drop unimportant ones first.
    pub importance: Importance,
}

/// The options of [`Job::post_recv`](crate::Job::post_recv).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RecvOptions {
    /// The fraction of the tensor that may be missing, below 1; 0 for all of it. For floats.
    pub loss_bound: f32,
    /// The values of elements that are missing.
    pub missing: MissingValues,
}

impl<'a> OpOptions<'a> {
    /// Options with a name.
    #[must_use]
    pub fn named(name: &'a str) -> OpOptions<'a> {
        OpOptions { name: Some(name), ..OpOptions::default() }
    }
}
