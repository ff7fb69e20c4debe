//! An aggregator and some hosts on this machine's loopback.
//!
//! ```text
//!  trainers --- daemon 127.0.0.10 ---+
//!  trainers --- daemon 127.0.0.11 ---+--- host aggregator 127.0.0.1 (control: TCP, data: UDP)
//!  ...
//! ```

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use sumac_agg_host::HostDataPlane;
use sumac_client::{Client, Job, JobOptions, Mode};
use sumac_control::server::{Listener, Listening, ServerOptions};
use sumac_control::{
    DataPlane, Endpoint, Identity, JoinLimits, JoinToken, NoDataPlane, Secret, Secrets, Trust,
};
use sumac_daemon::config::Config;
use sumac_daemon::{Daemon, Versions};
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;

use crate::common::{SECRET, scratch, text};
use crate::wait::eventually;

/// The aggregator's shards; a job has as many as its daemons, one unless configured.
const SHARDS: u16 = 4;

/// The age at which an unused shared slot may be taken.
const SLOT_TIMEOUT: Duration = Duration::from_secs(1);

/// The time in which a dead worker may be replaced.
const REJOIN_GRACE: Duration = Duration::from_secs(60);

/// The control plane's data plane.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// A host aggregator with this many shared slots in each shard.
    Host { shared: u32 },
    /// No data plane: dynamic jobs only.
    None,
}

/// The secret of parameter hosts.
const HOSTS_SECRET: &str = "another secret of some length";

/// The lines that make a daemon a parameter host.
fn role(name: &str, state_dir: &Path) -> String {
    format!("[parameter_host]\nname = {name:?}\nsecret = {:?}", token(state_dir, HOSTS_SECRET))
}

/// The join token of an aggregator.
fn token(state_dir: &Path, secret: &str) -> String {
    let fingerprint = Identity::of_state_dir(state_dir).unwrap().fingerprint();
    JoinToken { fingerprint, secret: Secret::new(secret).unwrap() }.to_string()
}

/// A host aggregator with its control plane.
pub struct Aggregator {
    pub address: SocketAddr,
    state_dir: PathBuf,
    /// The UDP port of shard 0.
    data_port: u16,
    stop: Option<oneshot::Sender<()>>,
    runtime: Option<Runtime>,
}

impl Aggregator {
    /// `grace`: the time in which a dead worker of a dynamic job may be replaced.
    pub fn start(kind: Kind, grace: Duration, state_dir: &Path) -> Aggregator {
        Aggregator::start_at("127.0.0.1:0".parse().unwrap(), 0, kind, (grace, state_dir))
    }

    fn start_at(address: SocketAddr, data_port: u16, kind: Kind, options: (Duration, &Path)) -> Aggregator {
        match kind {
            Kind::Host { shared } => {
                let start = || HostDataPlane::start(4096, 352, SHARDS, Ipv4Addr::LOCALHOST, data_port).ok();
                let plane = eventually("its data port", start).with_dynamic(shared, SLOT_TIMEOUT).unwrap();
                let data_port = plane.local().port();
                Aggregator::with(address, data_port, plane, options)
            }
            Kind::None => Aggregator::with(address, 0, NoDataPlane, options),
        }
    }

    /// At the same address, with its journal.
    pub fn start_again(&mut self, kind: Kind, grace: Duration) {
        self.stop();
        let state_dir = self.state_dir.clone();
        *self = Aggregator::start_at(self.address, self.data_port, kind, (grace, &state_dir));
    }

    /// The lines that make this aggregator a further control plane of a daemon.
    pub fn lines(&self, name: &str) -> String {
        let token = token(&self.state_dir, SECRET);
        format!("[control_planes.{name}]\naddress = \"{}\"\nsecret = {token:?}", self.address)
    }

    /// Returns the endpoint to join without a daemon.
    pub fn endpoint(&self) -> Endpoint {
        let fingerprint = Identity::of_state_dir(&self.state_dir).unwrap().fingerprint();
        let secret = Secret::new(SECRET).unwrap();
        Endpoint { address: self.address, others: Vec::new(), trust: Trust::Pinned(fingerprint), secret }
    }

    fn with(
        address: SocketAddr,
        data_port: u16,
        plane: impl DataPlane,
        (rejoin_grace, state_dir): (Duration, &Path),
    ) -> Aggregator {
        let plane = Arc::new(plane);
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let secrets = Secrets {
            default: Some(Secret::new(SECRET).unwrap()),
            jobs: HashMap::new(),
            racks: Secret::new(HOSTS_SECRET).unwrap(),
        };
        let options = ServerOptions {
            identity: Identity::of_state_dir(state_dir).unwrap(),
            secrets,
            state_dir: state_dir.to_owned(),
            stealing: true,
            rejoin_grace,
            longest_outage: Duration::from_secs(10),
            join_limits: JoinLimits::NONE,
            data_networks: Vec::new(),
        };
        let listen = || runtime.block_on(Listener::bind(address)).ok();
        let listening = Listening::on(eventually("its control port", listen), plane, options);
        let address = listening.address();
        let (stop, stopped) = oneshot::channel::<()>();
        runtime.spawn(listening.serve(async { drop(stopped.await) }));
        let state_dir = state_dir.to_owned();
        Aggregator { address, state_dir, data_port, stop: Some(stop), runtime: Some(runtime) }
    }
}

impl Aggregator {
    /// Stops control plane and data plane.
    pub fn stop(&mut self) {
        drop(self.stop.take());
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Drop for Aggregator {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Hosts, each with a daemon.
pub struct Lab {
    pub scratch: TempDir,
    pub aggregator: Aggregator,
    pub hosts: Vec<(Option<Daemon>, PathBuf)>,
    /// The ranks that each daemon has of the jobs that are opened on all hosts.
    pub ranks_per_host: u16,
    /// Daemons that are only parameter hosts: 127.0.0.40, 41, ...
    pub parameter_hosts: Vec<(Option<Daemon>, PathBuf)>,
}

impl Lab {
    pub fn new(hosts: usize) -> Lab {
        Lab::with(hosts, "")
    }

    /// Starts a lab with further lines in the daemons' configurations.
    pub fn with(hosts: usize, further: &str) -> Lab {
        Lab::start(Kind::Host { shared: 0 }, hosts, further, None, Duration::ZERO)
    }

    /// `first`: the name of the first daemon as a parameter host.
    fn start(kind: Kind, hosts: usize, further: &str, first: Option<&str>, grace: Duration) -> Lab {
        let scratch = scratch();
        let aggregator = Aggregator::start(kind, grace, &scratch.path().join("aggregator"));
        let mut lab =
            Lab { scratch, aggregator, hosts: Vec::new(), ranks_per_host: 1, parameter_hosts: Vec::new() };
        let role = first.map_or(String::new(), |name| role(name, &lab.aggregator.state_dir));
        let lines = |host| if host == 0 { format!("{further}\n{role}") } else { further.to_owned() };
        lab.hosts =
            (0..hosts).map(|host| lab.daemon(&format!("host{host}"), 10 + host, &lines(host))).collect();
        lab
    }

    /// The daemon of a host at 127.0.0.`number`.
    pub fn daemon(&self, name: &str, number: usize, further: &str) -> (Option<Daemon>, PathBuf) {
        let config = self.config(name, number, further);
        let socket = config.socket.clone();
        (Some(Daemon::start(config).unwrap()), socket)
    }

    /// The configuration of the daemon of a host.
    pub fn config_of(&self, host: usize, further: &str) -> Config {
        self.config(&format!("host{host}"), 10 + host, further)
    }

    /// Starts a lab of one host with all ranks.
    pub fn of_one_host(ranks: u16) -> Lab {
        Lab::with_ranks(1, ranks)
    }

    /// Starts a lab of hosts with several ranks each.
    pub fn with_ranks(hosts: usize, ranks: u16) -> Lab {
        Lab { ranks_per_host: ranks, ..Lab::new(hosts) }
    }

    /// As text.
    pub fn text_of(&self, host: usize, further: &str) -> String {
        self.text(&format!("host{host}"), 10 + host, further)
    }

    fn config(&self, name: &str, number: usize, further: &str) -> Config {
        Config::parse(&self.text(name, number, further), Path::new("test.toml")).unwrap()
    }

    fn text(&self, name: &str, number: usize, further: &str) -> String {
        let further = format!(
            "address = \"127.0.0.{number}\"\naggregator = \"{}\"\n{further}",
            self.aggregator.address
        );
        text(&self.scratch, name, &token(&self.aggregator.state_dir, SECRET), &further)
    }

    /// Replaces a host's daemon by a new one while it runs.
    pub fn upgrade(&mut self, host: usize, further: &str) {
        self.upgrade_after(host, further, |_| {});
    }

    /// As above; `between` runs with the path of the socket once the former daemon stands still.
    pub fn upgrade_after(&mut self, host: usize, further: &str, between: impl FnOnce(&Path)) {
        let config = self.config_of(host, further);
        let prepared = Daemon::prepare_takeover(config, Versions::own()).unwrap();
        between(&self.hosts[host].1);
        let new = prepared.start().unwrap();
        // The former one has handed over: nothing ends with it. It stays until trainers' memory is released.
        let former = self.hosts[host].0.replace(new);
        std::thread::spawn(move || drop(former));
    }

    /// Starts a lab for dynamic jobs, with dedicated parameter hosts, which have registered.
    pub fn dynamic(kind: Kind, hosts: usize, parameter_hosts: usize, further: &str) -> Lab {
        Lab::start(kind, hosts, further, None, Duration::ZERO).with_parameter_hosts(parameter_hosts, further)
    }

    /// As above; dead workers may be replaced.
    pub fn rejoining(kind: Kind, hosts: usize, parameter_hosts: usize, further: &str) -> Lab {
        Lab::start(kind, hosts, further, None, REJOIN_GRACE).with_parameter_hosts(parameter_hosts, further)
    }

    fn with_parameter_hosts(mut self, parameter_hosts: usize, further: &str) -> Lab {
        for host in 0..parameter_hosts {
            let further = format!("{further}\n{}", role(&format!("ph{host}"), &self.aggregator.state_dir));
            let daemon = self.daemon(&format!("ph{host}"), 40 + host, &further);
            self.parameter_hosts.push(daemon);
        }
        self.await_parameter_hosts(parameter_hosts);
        self
    }

    /// Starts a lab whose first host is also the parameter host.
    pub fn co_located(kind: Kind, hosts: usize) -> Lab {
        Lab::with_first_as_host(kind, hosts, Duration::ZERO)
    }

    /// As above; dead workers may be replaced.
    pub fn co_located_rejoining(kind: Kind, hosts: usize) -> Lab {
        Lab::with_first_as_host(kind, hosts, REJOIN_GRACE)
    }

    fn with_first_as_host(kind: Kind, hosts: usize, grace: Duration) -> Lab {
        let lab = Lab::start(kind, hosts, "", Some("both"), grace);
        lab.await_parameter_hosts(1);
        lab
    }

    /// Waits until this many parameter hosts have registered.
    fn await_parameter_hosts(&self, hosts: usize) {
        if hosts == 0 {
            return;
        }
        let client = self.client(0);
        let options = JobOptions::new("probe", 0, 1).mode(Mode::Dynamic).parameter_hosts(hosts as u16);
        eventually("the parameter hosts", || client.open(&options).ok()).close().unwrap();
    }

    /// Waits until a host's daemon has no job.
    pub fn await_no_job(&self, host: usize) {
        let client = self.client(host);
        eventually("the job's end", || client.stats().unwrap().jobs.is_empty().then_some(()));
    }

    pub fn client(&self, host: usize) -> Client {
        Client::connect(&self.hosts[host].1).unwrap()
    }

    /// Runs `work` in a thread for each host, as the rank of the host, and closes the job.
    pub fn train<T: Send + 'static>(
        &self,
        name: &str,
        options: impl Fn(JobOptions) -> JobOptions,
        work: impl Fn(&Client, &Job, u16) -> T + Send + Sync + 'static,
    ) -> Vec<T> {
        self.on_all(name, options, move |client, job, rank| {
            let outcome = work(&client, &job, rank);
            job.close().unwrap();
            outcome
        })
    }

    /// Opens a job on all hosts.
    pub fn open(&self, name: &str, options: impl Fn(JobOptions) -> JobOptions) -> Vec<(Client, Job)> {
        self.on_all(name, options, |client, job, _| (client, job))
    }

    fn on_all<T: Send + 'static>(
        &self,
        name: &str,
        options: impl Fn(JobOptions) -> JobOptions,
        work: impl Fn(Client, Job, u16) -> T + Send + Sync + 'static,
    ) -> Vec<T> {
        let work = Arc::new(work);
        let of_host = self.ranks_per_host;
        let world = self.hosts.len() as u16 * of_host;
        let trainers: Vec<_> = (0..world)
            .map(|rank| {
                let client = self.client(usize::from(rank / of_host));
                let asked = JobOptions::new(name, rank, world);
                let options = options(if of_host > 1 { asked.local_world(of_host) } else { asked });
                let work = work.clone();
                thread::spawn(move || {
                    let job = client.open(&options).unwrap();
                    work(client, job, rank)
                })
            })
            .collect();
        trainers.into_iter().map(|trainer| trainer.join().unwrap()).collect()
    }
}
