//! The aggregator of a rack: a data plane below a root's (SwitchML section 7).
//!
//! ```text
//! worker --- calls ---> station === relayed calls ===> root
//!                       station === reports =========> root
//!            data plane <- station <== orders ======== root
//! ```
//!
//! Workers talk to their rack as if it were the only aggregator. It passes their calls on unread, with where they came
//! from; the seals of workers and root are end to end. What the root decides comes back as orders for the rack's plane. A
//! rack that has lost its root removes all jobs and enters anew: the root has failed them by then.

mod duty;
mod relay;

use std::{
    future::Future,
    net::SocketAddr,
    sync::{Arc, PoisonError, RwLock},
};

use tokio::net::TcpListener;
use tonic::transport::Channel;

use self::{duty::Duty, relay::Relay};
use crate::{
    DataPlane, Secret,
    rpc::control_client::ControlClient,
    seal::Key,
    server::{self, ServeError, limit::Limited},
};

/// A rack's session with its root, while there is one.
#[derive(Clone)]
struct Uplink {
    /// For the rack's own reports.
    client: ControlClient<Channel>,
    /// For its workers' calls: on a connection of their own, so that no flood of them keeps reports from being heard.
    relay: ControlClient<Channel>,
    key: Key,
    id: u64,
}

/// Where the session is found by those who pass calls on.
#[derive(Default)]
struct Link(RwLock<Option<Uplink>>);

impl Link {
    fn get(&self) -> Option<Uplink> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, uplink: Option<Uplink>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = uplink;
    }
}

/// What keeps a parameter host below a control plane: it enters as racks do, with the same secret, and takes the jobs of
/// workers that join elsewhere.
pub struct HostDuty<P>(Duty<P>);

impl<P: DataPlane> HostDuty<P> {
    /// `name` is the parameter host's among those of the control plane at `root`; `secret` is the one that the control
    /// plane has for racks. The plane's kind is [`PlaneKind::Parameter`](crate::PlaneKind::Parameter).
    pub fn new(plane: P, root: SocketAddr, name: String, secret: Secret) -> HostDuty<P> {
        HostDuty(Duty { plane: Arc::new(plane), parent: root, name, secret, link: Arc::default() })
    }

    /// Is on duty until dropped. What goes wrong is logged, and tried again.
    pub async fn run(self) {
        self.0.run().await;
    }
}

/// A rack's control plane that listens already; [`Station::serve`] runs it.
pub struct Station<P> {
    listener: TcpListener,
    address: SocketAddr,
    duty: Duty<P>,
    link: Arc<Link>,
}

impl<P: DataPlane> Station<P> {
    /// Opens the socket for workers. `name` is the rack's among those of the root at `parent`; `secret` is the one that
    /// the root has for racks.
    ///
    /// # Errors
    /// When the address cannot be listened on.
    pub async fn open(
        listen: SocketAddr,
        plane: P,
        parent: SocketAddr,
        name: String,
        secret: Secret,
    ) -> Result<Self, ServeError> {
        let refused = |source| ServeError::Listen { address: listen, source };
        let listener = TcpListener::bind(listen).await.map_err(refused)?;
        let address = listener.local_addr().map_err(refused)?;
        let link = Arc::new(Link::default());
        let duty = Duty { plane: Arc::new(plane), parent, name, secret, link: link.clone() };
        Ok(Station { listener, address, duty, link })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until `stop` is ready. Then the plane has none of the root's jobs any more.
    ///
    /// # Errors
    /// When the data plane is not there at the start, or the server ends by itself.
    pub async fn serve(self, stop: impl Future<Output = ()> + Send) -> Result<(), ServeError> {
        self.duty.take_over().await?;
        let relay = server::service(Relay { link: self.link });
        let served = server::builder().add_service(relay).serve_with_incoming(Limited::new(self.listener));
        let result = tokio::select! {
            served = served => served,
            () = self.duty.run() => Ok(()),
            () = stop => Ok(()),
        };
        self.duty.take_over().await?;
        Ok(result?)
    }
}
