//! The aggregator of a rack: its workers join through it, and a root decides (SwitchML section 7). A parameter host is
//! below the root in the same way, without workers of its own.

mod agent;
mod relay;

use std::{future::Future, net::SocketAddr, sync::Arc};

use tokio::{
    net::TcpListener,
    sync::{oneshot, watch},
};

use self::{agent::RackAgent, relay::Relay};
use crate::{
    DataPlane, Endpoint, Identity,
    server::{ServeError, bind, serve_until},
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
    /// Opens the socket for the workers of a rack of this name, below the root at `parent`.
    pub async fn open(
        address: SocketAddr,
        plane: P,
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
        let closing = Arc::new(watch::Sender::new(false));
        let relay = Relay::new(self.agent.uplink(), closing.clone());
        let agent = self.agent.clone();
        let running = AbortOnDrop(tokio::spawn(agent.run()), closing.clone());
        let (stopped, is_stopped) = oneshot::channel();
        let stopping = async {
            stop.await;
            closing.send_replace(true);
            let _ = stopped.send(());
        };
        let served = serve_until(self.listener, tls, relay, stopping, is_stopped).await;
        drop(running);
        // Its jobs are to leave no packets unanswered: the root removes them elsewhere.
        self.agent.remove_all().await?;
        served
    }
}

/// The tasks of a rack, which end with it.
struct AbortOnDrop(tokio::task::JoinHandle<()>, Arc<watch::Sender<bool>>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
        self.1.send_replace(true);
    }
}
