//! A trainer's request to open a job, with the control plane and the secret for it.

use std::sync::Arc;

use sumac_api::{Failure, JobSpec, Open, OperationOrder};
use sumac_control::{Endpoint, Secret};
use sumac_host::Credentials;
use sumac_host::plan::{JobDefaults, complete};

use crate::config::Config;
use crate::control_planes::{self, ControlPlanes};

/// The request to the control plane, checked.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// The control plane. None for a job whose ranks are all on this host, and for a rank whose worker
    /// another rank has joined.
    pub(crate) endpoint: Option<Endpoint>,
    /// The job's secret.
    pub(crate) secret: Option<Secret>,
    pub(crate) spec: JobSpec,
    pub(crate) checksum: bool,
    /// The user whose trainer opens the job.
    pub(crate) user: u32,
}

impl Plan {
    pub(crate) fn order(&self) -> OperationOrder {
        self.spec.order.unwrap_or_default()
    }
}

/// Plans jobs from the configuration.
#[derive(Debug)]
pub(crate) struct Planner {
    pub(crate) config: Arc<Config>,
    pub(crate) control_planes: ControlPlanes,
}

impl Planner {
    pub(crate) fn plan(&self, open: &Open, credentials: &Credentials) -> Result<Plan, Failure> {
        let Planner { config, control_planes } = self;
        let defaults = JobDefaults {
            scale: config.scale,
            elements: config.elements,
            slots: config.slots,
            join_timeout_s: config.join_timeout().as_secs_f64(),
        };
        let spec = complete(&open.spec, &defaults)?;
        let (endpoint, secret) = if spec.is_local() || spec.is_follower() {
            (None, control_planes::given_secret(open)?)
        } else {
            let endpoint = control_planes.endpoint(config, open, credentials)?;
            let secret = endpoint.secret.clone();
            (Some(endpoint), Some(secret))
        };
        Ok(Plan { endpoint, secret, spec, checksum: config.checksum, user: credentials.uid })
    }
}
