//! The listener's connections: at most so many in all and of one address, and none for long that is not authenticated, so
//! that strangers cannot use up memory or file descriptors. A new connection replaces the oldest one of the address with
//! the most that are not authenticated: strangers do not lock members out.

use std::{
    collections::{HashMap, VecDeque},
    convert::Infallible,
    future::{Future, pending},
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use hyper::{server::conn::http2, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::graceful::GracefulShutdown,
};
use rustls::ServerConfig;
use tokio::{
    net::TcpListener,
    sync::{Semaphore, oneshot, watch},
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_rustls::TlsAcceptor;
use tonic::Status;

use super::{STOP_TIMEOUT, stats::ServerStats};
use crate::{
    rate_limiter::RateLimiter,
    rpc::{Inbound, Queue, answer},
};

const MAX_CONNECTIONS: usize = 1024;
const MAX_OF_ONE_ADDRESS: usize = 128;
/// Connections that are not authenticated yet.
const MAX_STRANGERS: usize = 256;
/// Streams at once on a connection.
const MAX_STREAMS: usize = 4;
/// Further ones on that of a rack: its workers'.
const MAX_RELAYED: usize = 256;
const AUTHENTICATION_TIMEOUT: Duration = Duration::from_secs(10);
const KEEPALIVE: Duration = Duration::from_secs(5);
/// Pause after the system could not accept: out of file descriptors, it would fail again at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A connection.
#[derive(Clone)]
pub struct Peer {
    /// Its address, and the server's own.
    pub ends: [Ipv4Addr; 2],
    pub ticket: Arc<Ticket>,
}

pub trait SessionHandler: Send + Sync + 'static {
    /// Serves a stream until one side ends it.
    fn serve(&self, peer: Peer, inbound: Inbound, outbound: Queue) -> impl Future<Output = ()> + Send;
}

/// Serves streams until `stop` is ready, and a moment more for connections that do not end by themselves. The port is
/// free when this returns.
pub async fn serve<H: SessionHandler>(
    listener: TcpListener,
    tls: Arc<ServerConfig>,
    table: Arc<Table>,
    handler: H,
    stop: impl Future<Output = ()>,
) {
    let (tls, handler) = (TlsAcceptor::from(tls), Arc::new(handler));
    let [refused, failed] = [(); 2].map(|()| RateLimiter::new(Instant::now()));
    // Sessions end when this sender is dropped.
    let (closing, closed) = watch::channel(());
    let graceful = GracefulShutdown::new();
    let mut connections = JoinSet::new();
    tokio::pin!(stop);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = connections.join_next() => continue,
            () = &mut stop => break,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                if let Some(suppressed) = failed.allow(Instant::now()) {
                    tracing::warn!(%error, suppressed, "cannot accept a connection; allow more open files (`ulimit -n`)?");
                }
                sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let Some((ticket, evicted)) = table.admit(peer.ip().to_canonical()) else {
            if let Some(suppressed) = refused.allow(Instant::now()) {
                tracing::warn!(%peer, suppressed, "too many connections; this one is closed");
            }
            continue;
        };
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%peer, %error, "connection stays without TCP_NODELAY");
        }
        let ends = ipv4(Some(peer)).zip(ipv4(stream.local_addr().ok())).map(|(peer, own)| [peer, own]);
        let (handler, closed) = (handler.clone(), closed.clone());
        let begin = move |inbound, outbound| {
            let what = "the control plane needs IPv4 addresses on both ends";
            let ends = ends.ok_or_else(|| Status::failed_precondition(what))?;
            let permit = ticket.streams.clone().try_acquire_owned();
            let permit = permit.map_err(|_| Status::unavailable("too many streams on one connection"))?;
            let peer = Peer { ends, ticket: ticket.clone() };
            let (handler, mut closed) = (handler.clone(), closed.clone());
            tokio::spawn(async move {
                let _permit = permit;
                tokio::select! {
                    () = handler.serve(peer, inbound, outbound) => {}
                    _ = closed.changed() => {}
                }
            });
            Ok(())
        };
        let (tls, watcher) = (tls.clone(), graceful.watcher());
        let served = async move {
            let stream = tls.accept(stream).await?;
            let service = service_fn(move |request| {
                let begin = begin.clone();
                async move { Ok::<_, Infallible>(answer(request, begin).await) }
            });
            let mut server = http2::Builder::new(TokioExecutor::new());
            server.timer(TokioTimer::new()).max_concurrent_streams((MAX_STREAMS + MAX_RELAYED) as u32);
            server.keep_alive_interval(Some(KEEPALIVE)).keep_alive_timeout(KEEPALIVE);
            let connection = server.serve_connection(TokioIo::new(stream), service);
            watcher.watch(connection).await.map_err(io::Error::other)
        };
        connections.spawn(async move {
            let ended = tokio::select! {
                ended = served => ended.map_err(|error| error.to_string()),
                why = overdue(evicted) => Err(why.to_owned()),
            };
            if let Err(why) = ended {
                tracing::debug!(%peer, why, "connection ended");
            }
        });
    }
    drop((listener, closing));
    // Dropping the set aborts the connections that are still open.
    let _ = timeout(STOP_TIMEOUT, graceful.shutdown()).await;
}

fn ipv4(address: Option<SocketAddr>) -> Option<Ipv4Addr> {
    match address?.ip().to_canonical() {
        IpAddr::V4(ip) => Some(ip),
        IpAddr::V6(_) => None,
    }
}

/// Returns the reason once a connection is to end: not when it is authenticated.
async fn overdue(evicted: oneshot::Receiver<()>) -> &'static str {
    match timeout(AUTHENTICATION_TIMEOUT, evicted).await {
        Ok(Ok(())) => pending().await,
        Ok(Err(_)) => "a newer connection takes its place",
        Err(_) => "it was not authenticated in time",
    }
}

/// The open connections, with their limits.
#[derive(Default)]
pub struct Table(Mutex<Open>);

#[derive(Default)]
struct Open {
    by_address: HashMap<IpAddr, usize>,
    total: usize,
    /// The connections that were admitted so far, and those that were not.
    next: u64,
    rejected: u64,
    /// Connections that are not authenticated, the oldest first; dropping its sender closes one.
    strangers: VecDeque<(u64, IpAddr, oneshot::Sender<()>)>,
}

impl Open {
    /// Closes the oldest connection of an address that is not authenticated. `false`: it has none.
    fn evict(&mut self, peer: IpAddr) -> bool {
        let at = self.strangers.iter().position(|(_, address, _)| *address == peer);
        at.and_then(|at| self.strangers.remove(at)).is_some()
    }

    /// The address with the most connections that are not authenticated.
    fn busiest(&self) -> Option<IpAddr> {
        let mut counts: HashMap<IpAddr, usize> = HashMap::new();
        self.strangers.iter().for_each(|(_, address, _)| *counts.entry(*address).or_default() += 1);
        counts.into_iter().max_by_key(|(_, count)| *count).map(|(address, _)| address)
    }
}

impl Table {
    fn lock(&self) -> MutexGuard<'_, Open> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Fills in the counts of connections.
    pub fn fill(&self, stats: &mut ServerStats) {
        let open = self.lock();
        (stats.connections, stats.strangers) = (open.total as u64, open.strangers.len() as u64);
        (stats.accepted, stats.rejected) = (open.next, open.rejected);
    }

    /// Admits a connection, which is to end when the receiver is closed before it receives.
    fn admit(self: &Arc<Table>, peer: IpAddr) -> Option<(Arc<Ticket>, oneshot::Receiver<()>)> {
        let admitted = self.try_admit(peer);
        self.lock().rejected += u64::from(admitted.is_none());
        admitted
    }

    fn try_admit(self: &Arc<Table>, peer: IpAddr) -> Option<(Arc<Ticket>, oneshot::Receiver<()>)> {
        let mut open = self.lock();
        if open.by_address.get(&peer).is_some_and(|own| *own >= MAX_OF_ONE_ADDRESS) && !open.evict(peer) {
            return None;
        }
        if open.total >= MAX_CONNECTIONS || open.strangers.len() >= MAX_STRANGERS {
            let busiest = open.busiest()?;
            open.evict(busiest);
        }
        *open.by_address.entry(peer).or_default() += 1;
        (open.total, open.next) = (open.total + 1, open.next + 1);
        let (keep, evicted) = oneshot::channel();
        let number = open.next;
        open.strangers.push_back((number, peer, keep));
        let streams = Arc::new(Semaphore::new(MAX_STREAMS));
        Some((Arc::new(Ticket { table: self.clone(), number, peer, streams }), evicted))
    }
}

/// The place of one connection in the table; free again when dropped.
pub struct Ticket {
    table: Arc<Table>,
    number: u64,
    peer: IpAddr,
    streams: Arc<Semaphore>,
}

impl Ticket {
    /// The connection is a rack's, which relays its workers' streams.
    pub fn admit_relayed(&self) {
        self.streams.add_permits(MAX_RELAYED);
    }

    /// The connection is a member's, a rack's or a parameter host's.
    pub fn authenticate(&self) {
        let mut open = self.table.lock();
        if let Some(at) = open.strangers.iter().position(|(number, ..)| *number == self.number)
            && let Some((_, _, keep)) = open.strangers.remove(at)
        {
            // The connection may have ended.
            let _ = keep.send(());
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut open = self.table.lock();
        open.strangers.retain(|(number, ..)| *number != self.number);
        open.total -= 1;
        if let Some(count) = open.by_address.get_mut(&self.peer) {
            *count -= 1;
            if *count == 0 {
                open.by_address.remove(&self.peer);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_is_not_authenticated_ends() {
        let table = Arc::new(Table::default());
        let (stranger, its_end) = table.admit(PEER).unwrap();
        let (worker, workers_end) = table.admit(PEER).unwrap();
        assert_eq!(table.lock().total, 2);
        worker.authenticate();
        let ended = timeout(AUTHENTICATION_TIMEOUT * 2, overdue(its_end)).await.expect("it goes on");
        assert_eq!(ended, "it was not authenticated in time");
        drop(stranger);
        assert_eq!(table.lock().total, 1);
        let ended = timeout(AUTHENTICATION_TIMEOUT * 9, overdue(workers_end)).await;
        assert!(ended.is_err(), "an authenticated one");
    }

    #[tokio::test]
    async fn a_new_connection_replaces_the_oldest_stranger_and_no_member() {
        let table = Arc::new(Table::default());
        let mut all: Vec<_> = (0..MAX_OF_ONE_ADDRESS).map(|_| table.admit(PEER).unwrap()).collect();
        all.iter().take(MAX_OF_ONE_ADDRESS - 1).for_each(|(ticket, _)| ticket.authenticate());
        let (next, _end) = table.admit(PEER).expect("the stranger makes room");
        let (_ticket, evicted) = all.pop().unwrap();
        assert_eq!(overdue(evicted).await, "a newer connection takes its place");
        next.authenticate();
        assert!(table.admit(PEER).is_none(), "members do not");
    }
}
