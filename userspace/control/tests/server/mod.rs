//! A control plane on loopback, and workers for it.

use std::{net::Ipv4Addr, net::SocketAddr, time::Duration};

use sumac_control::{JoinSpec, Member, Mode, OperationOrder, Secret, Secrets, join, server::Listening};
use sumac_transport::{NonFinitePolicy, Scale, WireFormat};
use tokio::{sync::oneshot, task::JoinHandle, time::timeout};

use crate::plane::FakePlane;

pub const SECRET: &str = "a secret for these tests";
pub const RACKS: &str = "the racks' own secret";
/// Far above what anything here takes: it ends a hanging test, and says nothing about speed.
pub const HANGS: Duration = Duration::from_secs(60);

pub struct Server {
    pub address: SocketAddr,
    pub plane: FakePlane,
    stop: Option<oneshot::Sender<()>>,
    pub task: JoinHandle<()>,
}

impl Server {
    pub async fn start(plane: FakePlane) -> Server {
        Server::start_at("127.0.0.1:0".parse().unwrap(), plane).await
    }

    pub async fn start_at(address: SocketAddr, plane: FakePlane) -> Server {
        Server::start_with(address, plane, Duration::ZERO).await
    }

    pub async fn start_with(address: SocketAddr, plane: FakePlane, rejoin_grace: Duration) -> Server {
        let secrets = Secrets {
            default: Some(Secret::new(SECRET).unwrap()),
            racks: Some(Secret::new(RACKS).unwrap()),
            ..Secrets::default()
        };
        let listening = Listening::open(address, plane.clone(), secrets).await.unwrap();
        let listening = listening.with_rejoin_grace(rejoin_grace);
        let address = listening.address();
        let (stop, stopped) = oneshot::channel::<()>();
        let task = tokio::spawn(async move {
            listening.serve(async { drop(stopped.await) }).await.unwrap();
        });
        Server { address, plane, stop: Some(stop), task }
    }

    pub async fn stop(mut self) {
        drop(self.stop.take());
        timeout(HANGS, self.task).await.unwrap().unwrap();
    }

    /// All ranks join.
    pub async fn all(&self, spec: impl Fn(u16) -> JoinSpec, world: u16) -> Vec<Member> {
        let joins: Vec<_> = (0..world).map(|rank| tokio::spawn(join(self.address, spec(rank)))).collect();
        let mut members = Vec::new();
        for join in joins {
            members.push(timeout(HANGS, join).await.unwrap().unwrap().unwrap());
        }
        members
    }
}

/// Rank `rank` of the job `train`.
pub fn spec(rank: u16, world: u16) -> JoinSpec {
    JoinSpec {
        job: "train".into(),
        world,
        rank,
        secret: Secret::new(SECRET).unwrap(),
        data_ip: Ipv4Addr::new(10, 77, rank as u8, 2),
        data_port: 48700,
        mac: [2, 0, 0, 0, 0, rank as u8],
        elements: Some(256),
        max_elements: 352,
        slots: Some(32),
        shards: Some(1),
        max_shards: 1,
        scaling: Scale::Fixed(1000.0),
        wire: WireFormat::Int32,
        not_finite: NonFinitePolicy::Error,
        order: OperationOrder::Submission,
        checksum: true,
        mode: Mode::Static,
        deadline: Duration::from_secs(20),
    }
}

/// Why the job fails, as it shall.
pub async fn failure(member: &Member) -> sumac_control::JobFailure {
    timeout(HANGS, member.failed()).await.expect("the job does not fail")
}
