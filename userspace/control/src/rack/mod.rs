//! The aggregator of a rack: its workers join through it, and a root decides (SwitchML section 7). A parameter host is
//! below the root in the same way, without workers of its own.

mod agent;
mod relay;

use std::{future::Future, net::SocketAddr, sync::Arc};

use tokio::{net::TcpListener, task::JoinSet};

use self::{agent::RackAgent, relay::Relay};
use crate::{
    DataPlane, Endpoint, Identity,
    server::{ServeError, bind, connections},
};

pub use self::agent::ParameterHostAgent;

/// A rack's control plane that listens already; [`RackServer::serve`] runs it.
pub struct RackServer<P> {
    listener: TcpListener,
    address: SocketAddr,
    identity: Identity,
    agent: RackAgent<P>,
}

impl<P: DataPlane> RackServer<P> {
    pub async fn open(
        address: SocketAddr,
        plane: Arc<P>,
        identity: Identity,
        parent: Endpoint,
        name: String,
    ) -> Result<RackServer<P>, ServeError> {
        let (listener, address) = bind(address).await?;
        let agent = RackAgent::new(plane, parent, name, false);
        Ok(RackServer { listener, address, identity, agent })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until `stop` is ready. The root notices the end by its silence, and ends the rack's jobs by name.
    pub async fn serve(self, stop: impl Future<Output = ()> + Send) -> Result<(), ServeError> {
        let tls = self.identity.server()?;
        let agent = Arc::new(self.agent);
        let mut running = JoinSet::new();
        running.spawn({
            let agent = agent.clone();
            async move { agent.run().await }
        });
        connections::serve(self.listener, tls, Relay::new(agent.uplink()), stop).await;
        drop(running);
        // Its jobs are to leave no packets unanswered: the root removes them elsewhere.
        agent.remove_all().await
    }
}
