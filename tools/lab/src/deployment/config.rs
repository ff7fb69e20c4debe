//! The daemons' configuration files.

use std::path::PathBuf;

use serde::Serialize;

use super::daemons::DaemonSpec;
use super::{CONTROL_PORT, DeployError, Deployment};

/// A daemon's configuration, in the keys of `docs/operations.md`.
#[derive(Serialize)]
struct DaemonConfig {
    socket: PathBuf,
    socket_mode: &'static str,
    backend: &'static str,
    interface: &'static str,
    pin_root: PathBuf,
    aggregator: String,
    secret_file: PathBuf,
    shards: u16,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    cpus: Vec<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    slots: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    elements: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    scale: Option<f32>,
    checksum: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    parameter_host: Option<ParameterHost>,
}

/// The table of a daemon that is a parameter host.
#[derive(Serialize)]
struct ParameterHost {
    control: String,
    name: String,
    secret_file: PathBuf,
}

impl Deployment<'_> {
    /// Writes the configuration of the daemon of a spec, and returns where it is.
    pub(super) fn write_config(&self, spec: &DaemonSpec<'_>) -> Result<PathBuf, DeployError> {
        let control = format!("{}:{CONTROL_PORT}", spec.control);
        let parameter_host = spec.is_parameter_host.then(|| ParameterHost {
            // A worker's own control plane may be its rack's; parameter hosts register with the root's.
            control: format!("{}:{CONTROL_PORT}", spec.root),
            name: spec.host.name().to_owned(),
            secret_file: self.rack_token_file(),
        });
        let config = DaemonConfig {
            socket: spec.socket.clone(),
            socket_mode: "0660",
            backend: self.options.backend.name(),
            interface: self.lab.worker_interface(),
            pin_root: self.lab.pin_root(),
            aggregator: control,
            secret_file: spec.token_file.clone(),
            shards: self.lab.spec().queues,
            cpus: self.cpus(),
            // Of static jobs: those that dynamic ones share are the aggregator's.
            slots: self.options.slots,
            elements: self.options.chunk,
            scale: self.options.scale,
            checksum: self.options.checksum,
            parameter_host,
        };
        let path = spec.socket.with_extension("toml");
        let file = |source| DeployError::File { path: path.clone(), source };
        let text = toml::to_string(&config).map_err(|error| file(std::io::Error::other(error)))?;
        std::fs::write(&path, text).map_err(file)?;
        Ok(path)
    }

    /// The CPU of each shard's thread: the one that works on the queue of this number. A single one may run anywhere.
    fn cpus(&self) -> Vec<usize> {
        let queues = usize::from(self.lab.spec().queues);
        let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        if queues == 1 { Vec::new() } else { (0..queues).map(|queue| queue % cpus).collect() }
    }
}
