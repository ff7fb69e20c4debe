//! An aggregator and some hosts on this machine's loopback.
//!
//! ```text
//!  trainers --- daemon 127.0.0.10 ---+
//!  trainers --- daemon 127.0.0.11 ---+--- host aggregator 127.0.0.1 (control: TCP, data: UDP)
//!  ...
//! ```

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;

use sumac_agg_host::HostPlane;
use sumac_client::{Client, Job, JobOptions};
use sumac_control::server::Listening;
use sumac_control::{Secret, Secrets};
use sumac_daemon::Daemon;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;

use super::{SECRET, Scratch, daemon};

/// The aggregator's; a job has as many as its daemons have, one unless configured.
const SHARDS: u16 = 2;

/// A host aggregator with its control plane.
pub struct Aggregator {
    pub address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    runtime: Option<Runtime>,
}

impl Aggregator {
    pub fn start() -> Aggregator {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let plane = HostPlane::start(4096, 352, SHARDS, Ipv4Addr::LOCALHOST, 0).unwrap();
        let secrets = Secrets { default: Some(Secret::new(SECRET).unwrap()), ..Secrets::default() };
        let listening =
            runtime.block_on(Listening::open("127.0.0.1:0".parse().unwrap(), plane, secrets)).unwrap();
        let address = listening.address();
        let (stop, stopped) = oneshot::channel::<()>();
        runtime.spawn(listening.serve(async { drop(stopped.await) }));
        Aggregator { address, stop: Some(stop), runtime: Some(runtime) }
    }
}

impl Drop for Aggregator {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Hosts, each with a daemon.
pub struct Lab {
    pub scratch: Scratch,
    pub aggregator: Aggregator,
    pub hosts: Vec<(Option<Daemon>, PathBuf)>,
}

impl Lab {
    pub fn new(hosts: usize) -> Lab {
        Lab::with(hosts, "")
    }

    /// With further lines in the daemons' configurations.
    pub fn with(hosts: usize, further: &str) -> Lab {
        let scratch = Scratch::new();
        let aggregator = Aggregator::start();
        let hosts = (0..hosts)
            .map(|host| {
                let further = format!(
                    "address = \"127.0.0.{}\"\naggregator = \"{}\"\n{further}",
                    10 + host,
                    aggregator.address
                );
                let (daemon, socket) = daemon(&scratch, &format!("host{host}"), &further);
                (Some(daemon), socket)
            })
            .collect();
        Lab { scratch, aggregator, hosts }
    }

    pub fn client(&self, host: usize) -> Client {
        Client::connect(&self.hosts[host].1).unwrap()
    }

    /// One trainer per host runs `work` in a thread of its own, as the rank of its host.
    pub fn train<T: Send + 'static>(
        &self,
        name: &str,
        options: impl Fn(JobOptions) -> JobOptions,
        work: impl Fn(Client, Job, u16) -> T + Send + Sync + 'static,
    ) -> Vec<T> {
        let work = Arc::new(work);
        let world = self.hosts.len() as u16;
        let trainers: Vec<_> = (0..world)
            .map(|rank| {
                let client = self.client(usize::from(rank));
                let options = options(JobOptions::new(name, rank, world));
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
