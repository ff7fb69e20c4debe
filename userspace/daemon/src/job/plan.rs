//! What a trainer asks for when it opens a job, checked and completed from the configuration.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use sumac_api::{Code, Failure, JobSpec, NonFinitePolicy, Open, OperationOrder, Scale, WireFormat};
use sumac_control::{JOB_NAME_LEN, JoinSpec, Mode, Secret};
use sumac_transport::params::MAX_WORLD;

use super::mode::{DYNAMIC_SCALE, fits_slot, mode};
use crate::config::Config;

/// What is asked of the control plane, checked.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(super) endpoint: SocketAddr,
    pub(super) spec: JoinSpec,
    pub(super) options: Options,
}

/// What the trainer is told again when the job is open.
#[derive(Clone, Copy, Debug)]
pub(super) struct Options {
    pub(super) scale: Scale,
    pub(super) wire: WireFormat,
    pub(super) not_finite: NonFinitePolicy,
    pub(super) order: OperationOrder,
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
        let deadline = match asked.timeout_s {
            None => config.join_timeout(),
            Some(seconds) => Duration::try_from_secs_f64(seconds)
                .map_err(|_| bad(format!("timeout_s {seconds} is no time in seconds")))?,
        };
        let mode = mode(asked).map_err(bad)?;
        let is_dynamic = matches!(mode, Mode::Dynamic(_));
        let options = Options::new(config, asked).map_err(bad)?;
        let spec = JoinSpec {
            job: asked.job.clone(),
            world: asked.world,
            rank: asked.rank,
            secret: secret(config, open)?,
            data_ip: Ipv4Addr::UNSPECIFIED,
            data_port: 0,
            mac: [0; 6],
            elements: asked
                .elements
                .or(config.elements.filter(|elements| !is_dynamic || fits_slot(*elements))),
            // What this host can carry is asked of the data path when the job is joined.
            max_elements: 0,
            slots: asked.slots.or(config.slots.filter(|_| !is_dynamic)),
            shards: asked.shards,
            max_shards: 0,
            scaling: options.scale,
            wire: options.wire,
            not_finite: options.not_finite,
            order: options.order,
            checksum: config.checksum,
            mode,
            deadline,
        };
        Ok(Plan { endpoint: endpoint(config, open)?, spec, options })
    }
}

impl Options {
    fn new(config: &Config, open: &JobSpec) -> Result<Options, String> {
        let usual = match open.mode.unwrap_or_default() {
            sumac_api::Mode::Static => Scale::Block,
            sumac_api::Mode::Dynamic => Scale::Fixed(DYNAMIC_SCALE),
        };
        let scale = open.scale.or(config.scale.map(Scale::Fixed)).unwrap_or(usual);
        if let Scale::Fixed(scale) = scale
            && (!scale.is_normal() || scale < 0.0)
        {
            return Err(format!("scale {scale} is not a positive number"));
        }
        Ok(Options {
            scale,
            wire: open.wire.unwrap_or_default(),
            not_finite: open.not_finite.unwrap_or_default(),
            order: open.order.unwrap_or_default(),
        })
    }
}

fn secret(config: &Config, open: &Open) -> Result<Secret, Failure> {
    let secret = match &open.secret {
        Some(secret) => Secret::new(secret.0.as_bytes()).map(Some),
        None => config.default_secret(),
    };
    match secret {
        Ok(Some(secret)) => Ok(secret),
        Ok(None) => Err(Failure::new(Code::BadField, "open: neither the job nor the daemon has a secret")
            .hint("give `secret`, or secret_file in the daemon's configuration")),
        Err(error) => Err(Failure::new(Code::BadField, format!("open: {error}"))),
    }
}

fn endpoint(config: &Config, open: &Open) -> Result<SocketAddr, Failure> {
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
