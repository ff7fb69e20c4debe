//! A trainer's request to open a job, checked and completed from the configuration.

use std::net::SocketAddr;
use std::time::Duration;

use sumac_api::{Code, Failure, JobSpec, Mode, Open, OperationOrder, Scale};
use sumac_control::coordinator::DYNAMIC_SCALE;
use sumac_control::{Credential, Endpoint, JOB_NAME_LEN};
use sumac_transport::limits::MAX_WORLD;

use super::mode::{check, fits_slot};
use crate::config::Config;

/// The request to the control plane, checked.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(super) endpoint: Endpoint,
    pub(super) spec: JobSpec,
    pub(super) checksum: bool,
}

impl Plan {
    pub(crate) fn new(config: &Config, open: &Open) -> Result<Plan, Failure> {
        let bad = |problem: String| Failure::new(Code::BadField, format!("open: {problem}"));
        let asked = &open.spec;
        if asked.job.is_empty() || asked.job.len() > JOB_NAME_LEN || asked.job.contains(char::is_control) {
            return Err(bad(format!(
                "the job's name must have 1 to {JOB_NAME_LEN} bytes and no control characters"
            )));
        }
        if asked.world == 0 || asked.world > MAX_WORLD {
            return Err(bad(format!("world {} is not between 1 and {MAX_WORLD}", asked.world)));
        }
        if asked.rank >= asked.world {
            return Err(bad(format!("rank {} is not below world {}", asked.rank, asked.world)));
        }
        if let Some(seconds) =
            asked.timeout_s.filter(|seconds| Duration::try_from_secs_f64(*seconds).is_err())
        {
            return Err(bad(format!("timeout_s {seconds} is no time in seconds")));
        }
        check(asked).map_err(bad)?;
        let is_dynamic = asked.mode == Some(Mode::Dynamic);
        let usual = if is_dynamic { Scale::Fixed(DYNAMIC_SCALE) } else { Scale::Block };
        let scale = asked.scale.or(config.scale.map(Scale::Fixed)).unwrap_or(usual);
        if let Scale::Fixed(scale) = scale
            && (!scale.is_normal() || scale < 0.0)
        {
            return Err(bad(format!("scale {scale} is not a positive number")));
        }
        let spec = JobSpec {
            elements: asked
                .elements
                .or(config.elements.filter(|elements| !is_dynamic || fits_slot(*elements))),
            slots: asked.slots.or(config.slots.filter(|_| !is_dynamic)),
            scale: Some(scale),
            timeout_s: asked.timeout_s.or(Some(config.join_timeout().as_secs_f64())),
            ..asked.clone()
        };
        Ok(Plan { endpoint: endpoint(config, open)?, spec, checksum: config.checksum })
    }

    pub(super) fn order(&self) -> OperationOrder {
        self.spec.order.unwrap_or_default()
    }
}

/// The control plane, and the credentials for it.
fn endpoint(config: &Config, open: &Open) -> Result<Endpoint, Failure> {
    let bad = |problem: String| Failure::new(Code::BadField, format!("open: {problem}"));
    let given = open.secret.as_ref().map(|secret| Credential::new(secret.0.as_bytes())).transpose();
    let given = given.map_err(|error| bad(error.to_string()))?;
    let own = config.default_credential().map_err(|error| bad(error.to_string()))?;
    let fingerprint = own.as_ref().and_then(|own| own.fingerprint);
    let mut credential = given.or(own).ok_or_else(|| {
        bad("neither the job nor the daemon has a secret".into()).hint(
            "give `secret`, or secret_file in the daemon's configuration: what `sumac-agg token` prints",
        )
    })?;
    credential.fingerprint = credential.fingerprint.or(fingerprint);
    config.endpoint(address(config, open)?, credential).map_err(|error| {
        Failure::new(Code::BadField, format!("open: {error}")).hint("see `secret` in docs/api.md")
    })
}

fn address(config: &Config, open: &Open) -> Result<SocketAddr, Failure> {
    match &open.aggregator {
        Some(text) => text.parse().map_err(|_| {
            Failure::new(Code::BadField, format!("open: aggregator {text:?} is not address:port"))
                .hint("write it like 10.77.0.1:48600")
        }),
        None => config.aggregator.ok_or_else(|| {
            Failure::new(Code::BadField, "open: neither the job nor the daemon has an aggregator")
                .hint("give `aggregator`, or set it in the daemon's configuration")
        }),
    }
}
