//! The daemon's configuration: a TOML file. Errors name the file and the key.

mod access;
mod tracing;

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sumac_control::secret::check_private;
use sumac_control::{Credential, Endpoint, Identity, SecretError, TlsError, Trust};
use sumac_hostprog::HostMode;
use sumac_netutil::Steer;
use sumac_wire::{DEFAULT_BASE_PORT, DEFAULT_PATHS, MAX_ELEMENTS, MAX_PATHS};

pub use self::access::{AccessRule, Principal};
pub use self::tracing::TracingConfig;
pub use sumac_control::HostPort;

/// The least default of `buffers_mib`, in bytes.
const MIN_BUFFERS: u64 = 512 << 20;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum BackendChoice {
    /// AF_XDP where its sockets can be bound, with zero-copy or without; else UDP, with a warning. The reason
    /// is logged and reported. Over AF_XDP a job that measures its path measures UDP sockets, too, and uses
    /// the faster.
    #[default]
    Auto,
    /// AF_XDP, or the daemon does not start.
    Xdp,
    /// UDP sockets, which need no privilege.
    Udp,
}

/// The keys of `daemon.toml`. Their comments are the text of `docs/reference/configuration.md`, in Markdown.
///
/// Every key but `aggregator` has a default; a daemon that is only a parameter host needs only that table.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The control plane, as `host:port`, of jobs whose trainers name none. A host name is resolved when the
    /// daemon starts; all its IPv4 addresses are tried.
    #[schemars(with = "Option<String>")]
    pub aggregator: Option<HostPort>,
    /// The join token (`sumac-agg token`) of `aggregator`, for jobs without one of their own, and for no
    /// other control plane. A configuration with a secret in it must be its owner's alone (`chmod 600`), and
    /// the owner root or the daemon's user.
    pub secret: Option<String>,
    /// The file with that token, instead of `secret`. The same rule holds for it.
    pub secret_file: Option<PathBuf>,
    /// Further control planes that a trainer may name in `open`, by name or address. There are no others.
    #[serde(default)]
    pub control_planes: BTreeMap<String, ControlPlaneConfig>,
    /// The users that may open jobs under the daemon's secrets, besides root and the daemon's own.
    #[serde(default)]
    pub allow: Vec<AccessRule>,
    /// The authorities that sign the certificates of control planes, PEM; absent: the token's fingerprint
    /// counts.
    pub tls_ca: Option<PathBuf>,
    /// This host's own certificate, PEM, for control planes that ask for one.
    pub tls_cert: Option<PathBuf>,
    /// Its private key, PEM.
    pub tls_key: Option<PathBuf>,
    /// The socket at which trainers connect.
    #[serde(default = "default_socket")]
    pub socket: PathBuf,
    /// The socket's permissions, octal digits in a string.
    #[serde(default = "default_socket_mode")]
    pub socket_mode: String,
    /// The socket's group, by name or number, whose members connect as `socket_mode` permits; absent: that of
    /// the daemon's process.
    pub socket_group: Option<Principal>,
    /// The users that may connect besides root and the daemon's own; absent: all that `socket_mode` permits.
    pub allow_uids: Option<Vec<u32>>,
    /// The backend that moves packets.
    #[serde(default)]
    pub backend: BackendChoice,
    /// The interface towards the aggregator (XDP); absent: that of the route to `aggregator`.
    pub interface: Option<String>,
    /// The mode in which the program and the sockets are bound (XDP), if the daemon attaches the program.
    #[serde(default)]
    pub mode: HostMode,
    /// Whether rules in the NIC steer packets to queues (XDP), if the daemon attaches the program; as `sumac
    /// attach --steer`.
    #[serde(default)]
    pub steer: Steer,
    /// The receive queues to bind (XDP), which shards take in ascending order; absent: all.
    pub queues: Option<Vec<u32>>,
    /// The directory in which the host's program is pinned (XDP).
    #[serde(default = "default_pin_root")]
    pub pin_root: PathBuf,
    /// This host's address in the data plane; absent: that of the route to the aggregator.
    pub address: Option<Ipv4Addr>,
    /// The UDP port of shard 0; absent: 48700 over XDP, any free one with `backend = "udp"`. An attached
    /// program keeps its own ports, with a warning; `sumac detach` first to change them.
    pub base_port: Option<u16>,
    /// The number of ports from `base_port` on that are Sumac's (XDP), one for each shard.
    #[serde(default = "one")]
    pub shards: u16,
    /// The CPUs of the data path's threads, in the order of the queues (over UDP, of the shards); empty: not
    /// pinned.
    #[serde(default)]
    pub cpus: Vec<usize>,
    /// Paths of packets, 1 to 256: UDP source ports, by which ECMP chooses routes. Over UDP each is a socket,
    /// and a batch is sent by one system call for each. Absent: 64, and over UDP 1. An aggregator's results
    /// come from as many ports, at most 16.
    pub paths: Option<u16>,
    /// Explicit paths of packets, by next hop and VLAN (XDP): path number *p* takes entry *p* modulo how many
    /// there are. Empty: the kernel's route alone.
    #[serde(default)]
    pub routes: Vec<RouteConfig>,
    /// The default of jobs: slots of each lane, a power of two; absent: measured.
    pub slots: Option<u32>,
    /// The default of jobs: 32-bit words per packet; absent: the most that MTU and aggregator allow.
    pub elements: Option<u16>,
    /// The default of jobs: the factor for floats; a power of two loses nothing. Absent: block floating
    /// point.
    pub scale: Option<f32>,
    /// Whether packets have a UDP checksum (XDP); the same on all workers of a job.
    #[serde(default = "yes")]
    pub checksum: bool,
    /// The most memory that trainers may register in all, in MiB; a user at most half of it. Absent: the
    /// host's memory.
    pub memory_mib: Option<u64>,
    /// The most memory of its own that the daemon holds for trainers, in MiB: connections, jobs, queued
    /// operations; for a user at most half of it. Absent: an eighth of the host's memory, at least 512.
    pub buffers_mib: Option<u64>,
    /// The time that a job waits for its workers, in seconds.
    #[serde(default = "default_join_timeout")]
    pub join_timeout_s: f64,
    /// The address, such as `"127.0.0.1:9402"`, at which Prometheus scrapes metrics; absent: none.
    #[schemars(with = "Option<String>")]
    pub metrics: Option<SocketAddr>,
    /// The destination of operations' spans; absent: they are off.
    pub tracing: Option<TracingConfig>,
    /// Whether system calls are restricted to those that the daemon uses (seccomp). `sumac status` shows it.
    #[serde(default = "yes")]
    pub seccomp: bool,
    /// Makes this daemon a parameter host of dynamic jobs, besides its service to trainers; `sumac daemon
    /// --parameter-host` does the same.
    pub parameter_host: Option<ParameterHost>,
}

/// A parameter host of dynamic jobs.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ParameterHost {
    /// Its control plane, as `host:port`; absent: `aggregator`.
    #[schemars(with = "Option<String>")]
    pub control: Option<HostPort>,
    /// Its name; absent: the host's.
    pub name: Option<String>,
    /// The output of `sumac-agg token --racks`.
    pub secret: Option<String>,
    /// The file with that output, instead of `secret`.
    pub secret_file: Option<PathBuf>,
}

/// An explicit path of packets. Each entry has `via` or `vlan`, or both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RouteConfig {
    /// The next hop, a neighbour on the interface or on a VLAN of it; absent: that of the kernel's route.
    pub via: Option<Ipv4Addr>,
    /// The 802.1Q tag's VLAN, 1 to 4094; absent: no tag.
    pub vlan: Option<u16>,
}

/// A control plane besides `aggregator`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ControlPlaneConfig {
    /// Its address, as `host:port`.
    #[schemars(with = "String")]
    pub address: HostPort,
    /// The secret for this control plane; without one trainers bring their own.
    pub secret: Option<String>,
    /// The file with that secret, instead of `secret`.
    pub secret_file: Option<PathBuf>,
}

fn default_socket() -> PathBuf {
    sumac_api::DEFAULT_SOCKET.into()
}
fn default_socket_mode() -> String {
    "0660".into()
}
fn default_pin_root() -> PathBuf {
    "/sys/fs/bpf/sumac".into()
}
fn one() -> u16 {
    1
}
fn yes() -> bool {
    true
}
fn default_join_timeout() -> f64 {
    60.0
}

#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("cannot read the configuration {file}: {source}; give an existing file to --config")]
    Read { file: PathBuf, source: std::io::Error },
    /// Not TOML, an unknown key or a wrong type; the message shows the line.
    #[error("{file}: {source}")]
    Parse { file: PathBuf, source: Box<toml::de::Error> },
    /// It has secrets in it.
    #[error("{0}")]
    Secret(#[from] SecretError),
    #[error("{file}: {key}: {problem}")]
    Value { file: PathBuf, key: &'static str, problem: String },
}

#[derive(Debug, thiserror::Error)]
pub enum EndpointError {
    /// A secret alone.
    #[error(
        "the secret has no fingerprint of the aggregator: give the join token that `sumac-agg token` prints \
        there, or set tls_ca in the daemon's configuration"
    )]
    NoFingerprint,
    #[error("the control plane has no address")]
    NoAddress,
    #[error(transparent)]
    Tls(#[from] TlsError),
}

impl Config {
    pub fn load(file: &Path) -> Result<Config, ConfigError> {
        let text = std::fs::read_to_string(file)
            .map_err(|source| ConfigError::Read { file: file.to_owned(), source })?;
        let config = Config::parse(&text, file)?;
        if config.has_inline_secret() {
            check_private(file)?;
        }
        Ok(config)
    }

    /// Returns the UDP port of shard 0 of a host program that is to be attached.
    #[must_use]
    pub fn program_port(&self) -> u16 {
        self.base_port.unwrap_or(DEFAULT_BASE_PORT)
    }

    /// Returns the keys with their types, defaults and meanings, as a JSON schema.
    #[must_use]
    pub fn schema() -> schemars::Schema {
        schemars::schema_for!(Config)
    }

    fn has_inline_secret(&self) -> bool {
        self.secret.is_some()
            || self.control_planes.values().any(|plane| plane.secret.is_some())
            || self.parameter_host.as_ref().is_some_and(|host| host.secret.is_some())
    }

    /// Parses and checks the text of a file; messages name `file`.
    pub fn parse(text: &str, file: &Path) -> Result<Config, ConfigError> {
        let config: Config = toml::from_str(text)
            .map_err(|source| ConfigError::Parse { file: file.to_owned(), source: Box::new(source) })?;
        config.check(file)?;
        Ok(config)
    }

    /// Checks a configuration that was changed after it was read; messages name `file`.
    pub fn check(&self, file: &Path) -> Result<(), ConfigError> {
        let refused = |(key, problem)| ConfigError::Value { file: file.to_owned(), key, problem };
        self.check_keys().map_err(refused)
    }

    /// Returns the socket's permission bits; `None` when they are invalid.
    pub fn mode_bits(&self) -> Option<u32> {
        u32::from_str_radix(&self.socket_mode, 8).ok().filter(|bits| *bits <= 0o777)
    }

    pub fn join_timeout(&self) -> Duration {
        Duration::try_from_secs_f64(self.join_timeout_s).unwrap_or(Duration::from_secs(60))
    }

    pub fn memory_bytes(&self) -> u64 {
        match self.memory_mib {
            Some(mib) => mib.saturating_mul(1 << 20),
            None => sumac_datapath::host_memory(),
        }
    }

    pub fn buffer_bytes(&self) -> u64 {
        match self.buffers_mib {
            Some(mib) => mib.saturating_mul(1 << 20),
            None => (sumac_datapath::host_memory() / 8).max(MIN_BUFFERS),
        }
    }

    pub fn default_credential(&self) -> Result<Option<Credential>, SecretError> {
        credential(self.secret.as_deref(), self.secret_file.as_deref())
    }

    /// A control plane with what it takes to be let in.
    /// `addresses`: all that it has, at least one.
    pub fn endpoint(
        &self,
        addresses: &[SocketAddr],
        credential: Credential,
    ) -> Result<Endpoint, EndpointError> {
        let identity = match (&self.tls_cert, &self.tls_key) {
            (Some(certificate), Some(key)) => Some((certificate, key)),
            _ => None,
        };
        let identity = || identity.map(|(certificate, key)| Identity::from_files(certificate, key, None));
        let trust = match (&self.tls_ca, credential.fingerprint) {
            (Some(authorities), _) => Trust::from_file(authorities, identity().transpose()?)?,
            (None, Some(fingerprint)) => Trust::Pinned(fingerprint),
            (None, None) => return Err(EndpointError::NoFingerprint),
        };
        let (&address, others) = addresses.split_first().ok_or(EndpointError::NoAddress)?;
        Ok(Endpoint { address, others: others.to_vec(), trust, secret: credential.secret })
    }

    /// Returns the control plane of jobs without one of their own, or of the parameter host.
    pub fn control(&self) -> Option<&HostPort> {
        self.aggregator.as_ref().or_else(|| self.parameter_host.as_ref()?.control.as_ref())
    }

    /// Returns the first invalid key with its problem as an error.
    fn check_keys(&self) -> Result<(), (&'static str, String)> {
        let Config { socket_mode, shards, join_timeout_s, .. } = self;
        let problem = format!("{socket_mode:?} is no permission; write it like \"0660\"");
        ensure!(self.mode_bits().is_some(), ("socket_mode", problem));
        let both = self.secret.is_some() && self.secret_file.is_some();
        ensure!(!both, ("secret", "is given beside secret_file; keep one of the two".into()));
        let is_pair = self.tls_cert.is_some() == self.tls_key.is_some();
        ensure!(is_pair, ("tls_cert", "and tls_key belong together; give both".into()));
        let first = self.program_port();
        let has_room = first > 0 && first.checked_add(*shards).is_some();
        ensure!(has_room, ("base_port", format!("{first} leaves no room for {shards} ports")));
        ensure!(*shards > 0, ("shards", "must be at least 1".into()));
        let slots = self.slots.unwrap_or(1);
        ensure!(slots.is_power_of_two(), ("slots", format!("{slots} is not a power of two")));
        let elements = self.elements.unwrap_or(1);
        let problem = format!("{elements} is not between 1 and {MAX_ELEMENTS}");
        ensure!((1..=MAX_ELEMENTS).contains(&elements.into()), ("elements", problem));
        let scale = self.scale.unwrap_or(1.0);
        let is_scale = scale.is_normal() && scale > 0.0;
        ensure!(is_scale, ("scale", format!("{scale} is not a positive number")));
        let is_time = Duration::try_from_secs_f64(*join_timeout_s).is_ok();
        ensure!(is_time, ("join_timeout_s", format!("{join_timeout_s} is no time in seconds")));
        let paths = self.paths.unwrap_or(1);
        let problem = format!("{paths} is not between 1 and {MAX_PATHS}");
        ensure!((1..=MAX_PATHS).contains(&paths), ("paths", problem));
        self.check_routes().map_err(|problem| ("routes", problem))?;
        let queues = self.queues.as_deref().unwrap_or(&[0]);
        let are_queues = !queues.is_empty() && !has_duplicates(queues);
        ensure!(are_queues, ("queues", "names no queue, or one twice; leave it out for all".into()));
        for (name, plane) in &self.control_planes {
            plane.check(name).map_err(|problem| ("control_planes", problem))?;
        }
        for (place, rule) in self.allow.iter().enumerate() {
            rule.check().map_err(|problem| ("allow", format!("rule {}: {problem}", place + 1)))?;
        }
        if let Some(tracing) = &self.tracing {
            tracing.check().map_err(|problem| ("tracing", problem))?;
        }
        match &self.parameter_host {
            Some(host) => {
                host.check(self.aggregator.as_ref()).map_err(|problem| ("parameter_host", problem.into()))
            }
            None => Ok(()),
        }
    }
}

impl Config {
    fn check_routes(&self) -> Result<(), String> {
        let (count, paths) = (self.routes.len(), self.paths.unwrap_or(DEFAULT_PATHS));
        if count == 0 {
            return Ok(());
        }
        ensure!(
            self.backend == BackendChoice::Xdp,
            "are for backend = \"xdp\" alone: over UDP the kernel chooses next hop and VLAN. Set the \
            backend, or leave them out"
                .into()
        );
        ensure!(
            count <= paths.into(),
            format!("{count} of them take no turns on {paths} paths; raise `paths`")
        );
        for (place, route) in (1..).zip(&self.routes) {
            route.check().map_err(|problem| format!("entry {place} {problem}"))?;
        }
        let tagged = self.routes.iter().filter(|route| route.vlan.is_some()).count();
        ensure!([0, count].contains(&tagged), "give each of them a `vlan`, or none".into());
        Ok(())
    }
}

impl RouteConfig {
    fn check(&self) -> Result<(), String> {
        ensure!(self.via.is_some() || self.vlan.is_some(), "names neither `via` nor `vlan`; give one".into());
        let vlan = self.vlan.unwrap_or(1);
        ensure!((1..=4094).contains(&vlan), format!("has VLAN {vlan}, which is not between 1 and 4094"));
        Ok(())
    }
}

impl ParameterHost {
    pub fn credential(&self) -> Result<Option<Credential>, SecretError> {
        credential(self.secret.as_deref(), self.secret_file.as_deref())
    }

    /// Checks the table in a configuration with or without `aggregator`.
    fn check(&self, aggregator: Option<&HostPort>) -> Result<(), &'static str> {
        ensure!(
            self.control.as_ref().or(aggregator).is_some(),
            "has no `control`, and there is no `aggregator`; name the control plane's address:port"
        );
        match (&self.secret, &self.secret_file) {
            (Some(_), Some(_)) => Err("has `secret` beside `secret_file`; keep one of the two"),
            (None, None) => Err("has no secret; give in `secret_file` what `sumac-agg token --racks` prints"),
            _ => Ok(()),
        }
    }
}

impl ControlPlaneConfig {
    pub fn credential(&self) -> Result<Option<Credential>, SecretError> {
        credential(self.secret.as_deref(), self.secret_file.as_deref())
    }

    fn check(&self, name: &str) -> Result<(), String> {
        let is_name = !name.is_empty() && !name.contains(|c: char| c == ':' || c.is_control());
        ensure!(is_name, format!("{name:?} is no name: it is empty, or has a colon as addresses have"));
        let both = self.secret.is_some() && self.secret_file.is_some();
        ensure!(!both, format!("{name} has `secret` beside `secret_file`; keep one of the two"));
        Ok(())
    }
}

/// A secret that is given, or in a file.
fn credential(given: Option<&str>, file: Option<&Path>) -> Result<Option<Credential>, SecretError> {
    match (given, file) {
        (Some(secret), _) => Credential::new(secret.as_bytes()).map(Some),
        (None, Some(file)) => Credential::from_file(file).map(Some),
        (None, None) => Ok(None),
    }
}

fn has_duplicates(numbers: &[u32]) -> bool {
    let mut seen = std::collections::HashSet::new();
    !numbers.iter().all(|number| seen.insert(number))
}

#[cfg(test)]
mod tests;
