//! The listener's connections: at most so many in all and of one address, and none for long that is not
//! authenticated, so that strangers cannot use up memory or file descriptors. A new connection replaces the
//! oldest one of the address with the most that are not authenticated: strangers do not lock members out.

use std::{
    collections::{HashMap, VecDeque},
    future::{Future, pending},
    hash::Hash,
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::{Duration, Instant},
};

use rustls::ServerConfig;
use sumac_job::limits::MAX_SHARDS;
use sumac_wire::result_paths::RESULT_PATHS;
use tokio::{
    io::{copy, sink},
    net::{TcpListener, TcpStream},
    sync::{mpsc, oneshot, watch},
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_rustls::TlsAcceptor;

use super::{outdated, stats::ServerStats};
use crate::{
    MAX_OF_ONE_ADDRESS,
    coordinator::RackId,
    frames::{self, GRPC_ALPN, MAX_MESSAGE, MAX_UNAUTHENTICATED},
    message::{ClientMessage, Denial, Hello, ServerMessage},
    rate_limiter::RateLimiter,
};

/// The most connections, where the limit of open files permits them.
const MAX_CONNECTIONS: usize = 8192;
/// The files that are left for what this process opens itself: the journal, maps, and a socket for each shard
/// and path.
const RESERVED_FILES: u64 = 32 + MAX_SHARDS as u64 * RESULT_PATHS as u64;
/// Connections of one address beyond those of its workers: of racks and parameter hosts, and of workers
/// that are refused by name.
const BESIDE_WORKERS: usize = 8;
/// Connections that are not authenticated yet: at most this share of all, and no more than these, for the
/// memory of their messages.
const STRANGERS_SHARE: usize = 4;
const MAX_STRANGERS: usize = 1024;
/// Connections of a rack for its workers, besides those.
const MAX_RELAYED: usize = 1024;
const AUTHENTICATION_TIMEOUT: Duration = Duration::from_secs(10);
/// Time that the other side has to receive the last messages, and to end its side.
const LINGER: Duration = Duration::from_secs(1);
/// Time that members have, when the server ends, to receive the end of their jobs.
pub const STOP_TIMEOUT: Duration = Duration::from_millis(1200);
/// Pause after the system could not accept: out of file descriptors, it would fail again at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

pub type Inbound = frames::Inbound<ClientMessage>;
pub type Queue = mpsc::Sender<ServerMessage>;

/// The other side of a connection.
pub struct Peer {
    /// Its address, and the server's own.
    pub ends: [Ipv4Addr; 2],
    pub ticket: Ticket,
}

impl Peer {
    /// The connection is a member's, a rack's or a parameter host's: its messages may be long.
    pub fn authenticate(&self, inbound: &mut Inbound) {
        self.ticket.authenticate();
        inbound.limit(MAX_MESSAGE);
    }
}

pub trait SessionHandler: Send + Sync + 'static {
    /// Serves a connection until one side ends it.
    fn serve(&self, peer: &Peer, inbound: &mut Inbound, outbound: Queue) -> impl Future<Output = ()> + Send;

    /// A connection was denied before it could be served.
    fn on_denied(&self, peer: Ipv4Addr, denial: &Denial);
}

/// Serves connections until `stop` is ready, and a moment more for connections that do not end by themselves.
/// The port is free when this returns.
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
    table.limit(sumac_sandbox::raise_open_files());
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
                    tracing::warn!(%error, suppressed,
                        "cannot accept a connection; allow more open files (`ulimit -n`)?");
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
        let served = serve_connection(tls.clone(), handler.clone(), stream, ticket, closed.clone());
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
    let _ = timeout(STOP_TIMEOUT, async { while connections.join_next().await.is_some() {} }).await;
    connections.shutdown().await;
}

/// Serves a connection until one side ends it, or the sender of `closed` is dropped.
async fn serve_connection<H: SessionHandler>(
    tls: TlsAcceptor,
    handler: Arc<H>,
    stream: TcpStream,
    ticket: Ticket,
    mut closed: watch::Receiver<()>,
) -> io::Result<()> {
    let ends = ipv4(stream.peer_addr()).zip(ipv4(stream.local_addr()));
    let mut stream = tokio::select! {
        accepted = tls.accept(stream) => accepted?,
        _ = closed.changed() => return Ok(()),
    };
    if stream.get_ref().1.alpn_protocol() == Some(GRPC_ALPN) {
        let denial = outdated::denial();
        handler.on_denied(ends.map_or(Ipv4Addr::UNSPECIFIED, |(peer, _)| peer), &denial);
        outdated::deny(&mut stream, denial).await?;
        let _ = timeout(LINGER, copy(&mut stream, &mut sink())).await;
        return Ok(());
    }
    let mut writer = JoinSet::new();
    let (mut inbound, outbound) = frames::open(stream, &mut writer);
    inbound.limit(MAX_UNAUTHENTICATED);
    // There is room for it.
    let _ = outbound.try_send(ServerMessage::Hello(Hello::own()));
    if let Some((peer, own)) = ends {
        let peer = Peer { ends: [peer, own], ticket };
        tokio::select! {
            () = handler.serve(&peer, &mut inbound, outbound) => {}
            _ = closed.changed() => {}
        }
        linger(&mut writer, &mut inbound).await;
    } else {
        let why = "the control plane needs IPv4 addresses on both ends";
        let _ = outbound.try_send(ServerMessage::Unavailable(why.into()));
        drop(outbound);
        linger(&mut writer, &mut inbound).await;
    }
    Ok(())
}

/// Lets the other side receive the last messages: closing with something unread would make it lose them.
async fn linger(writer: &mut JoinSet<()>, inbound: &mut Inbound) {
    let ended = async {
        writer.join_next().await;
        inbound.drain().await;
    };
    let _ = timeout(LINGER, ended).await;
}

fn ipv4(address: io::Result<SocketAddr>) -> Option<Ipv4Addr> {
    match address.ok()?.ip().to_canonical() {
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

struct Open {
    /// The most connections.
    most: usize,
    by_address: HashMap<IpAddr, usize>,
    total: usize,
    /// The connections of racks for their workers; the others do not count them.
    relayed: HashMap<RackId, usize>,
    /// The connections that were admitted so far, and those that were not.
    next: u64,
    rejected: u64,
    /// Connections that are not authenticated, the oldest first; dropping its sender closes one.
    strangers: VecDeque<(u64, IpAddr, oneshot::Sender<()>)>,
}

impl Default for Open {
    fn default() -> Open {
        Open {
            most: MAX_CONNECTIONS,
            by_address: HashMap::new(),
            total: 0,
            relayed: HashMap::new(),
            next: 0,
            rejected: 0,
            strangers: VecDeque::new(),
        }
    }
}

/// Takes one from a count.
fn release<K: Hash + Eq>(counts: &mut HashMap<K, usize>, of: &K) {
    if let Some(count) = counts.get_mut(of) {
        *count -= 1;
        if *count == 0 {
            counts.remove(of);
        }
    }
}

impl Open {
    fn most_strangers(&self) -> usize {
        (self.most / STRANGERS_SHARE).min(MAX_STRANGERS)
    }

    /// A connection has ended, or counts among a rack's.
    fn leave(&mut self, peer: &IpAddr) {
        self.total -= 1;
        release(&mut self.by_address, peer);
    }

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

    /// Has the connections leave some of so many files.
    fn limit(&self, files: u64) {
        let most = usize::try_from(files.saturating_sub(RESERVED_FILES)).unwrap_or(MAX_CONNECTIONS);
        let most = most.clamp(STRANGERS_SHARE, MAX_CONNECTIONS);
        if most < MAX_CONNECTIONS {
            tracing::warn!(
                most,
                "few connections are possible: allow more open files (LimitNOFILE=, ulimit -n)"
            );
        }
        self.lock().most = most;
    }

    /// Fills in the counts of connections.
    pub fn fill(&self, stats: &mut ServerStats) {
        let open = self.lock();
        let connections = open.total + open.relayed.values().sum::<usize>();
        (stats.connections, stats.strangers) = (connections as u64, open.strangers.len() as u64);
        (stats.accepted, stats.rejected) = (open.next, open.rejected);
    }

    /// Admits a connection, which is to end when the receiver is closed before it receives.
    fn admit(self: &Arc<Table>, peer: IpAddr) -> Option<(Ticket, oneshot::Receiver<()>)> {
        let admitted = self.try_admit(peer);
        self.lock().rejected += u64::from(admitted.is_none());
        admitted
    }

    fn try_admit(self: &Arc<Table>, peer: IpAddr) -> Option<(Ticket, oneshot::Receiver<()>)> {
        let mut open = self.lock();
        let own = open.by_address.get(&peer).copied().unwrap_or(0);
        if own >= MAX_OF_ONE_ADDRESS + BESIDE_WORKERS && !open.evict(peer) {
            return None;
        }
        if open.total >= open.most || open.strangers.len() >= open.most_strangers() {
            let busiest = open.busiest()?;
            open.evict(busiest);
        }
        *open.by_address.entry(peer).or_default() += 1;
        (open.total, open.next) = (open.total + 1, open.next + 1);
        let (keep, evicted) = oneshot::channel();
        let number = open.next;
        open.strangers.push_back((number, peer, keep));
        Some((Ticket { table: self.clone(), number, peer, relays: OnceLock::new() }, evicted))
    }
}

/// The place of one connection in the table; free again when dropped.
pub struct Ticket {
    table: Arc<Table>,
    number: u64,
    peer: IpAddr,
    /// The rack that has it for one of its workers.
    relays: OnceLock<RackId>,
}

impl Ticket {
    /// The connection is a rack's, for one of its workers. `false`: it has as many as it may.
    pub fn relay(&self, rack: RackId) -> bool {
        self.authenticate();
        let mut open = self.table.lock();
        let of_rack = open.relayed.entry(rack).or_default();
        if *of_rack >= MAX_RELAYED {
            return false;
        }
        *of_rack += 1;
        open.leave(&self.peer);
        self.relays.set(rack).is_ok()
    }

    /// The connection counts among the unauthenticated ones no more.
    fn authenticate(&self) {
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
        match self.relays.get() {
            Some(rack) => release(&mut open.relayed, rack),
            None => open.leave(&self.peer),
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
        let most = MAX_OF_ONE_ADDRESS + BESIDE_WORKERS;
        let mut all: Vec<_> = (0..most).map(|_| table.admit(PEER).unwrap()).collect();
        all.iter().take(most - 1).for_each(|(ticket, _)| ticket.authenticate());
        let (next, _end) = table.admit(PEER).expect("the stranger makes room");
        let (_ticket, evicted) = all.pop().unwrap();
        assert_eq!(overdue(evicted).await, "a newer connection takes its place");
        next.authenticate();
        assert!(table.admit(PEER).is_none(), "members do not");
    }

    #[tokio::test]
    async fn where_few_files_can_be_open_strangers_leave_room_for_members() {
        let table = Arc::new(Table::default());
        table.limit(RESERVED_FILES + 8);
        let admit = |last: u8| table.admit(IpAddr::V4(Ipv4Addr::new(10, 0, 0, last)));
        let members: Vec<_> = (0..6).map(|last| admit(last).unwrap().0).collect();
        members.iter().for_each(Ticket::authenticate);
        let (_first, evicted) = admit(10).unwrap();
        let _second = admit(11).unwrap();
        let _third = admit(12).expect("a stranger makes room");
        let _fourth = admit(13).expect("a stranger makes room");
        assert!(timeout(AUTHENTICATION_TIMEOUT, overdue(evicted)).await.is_ok());
        assert_eq!(table.lock().strangers.len(), 2);
    }

    #[tokio::test]
    async fn strangers_are_at_most_so_many() {
        let table = Arc::new(Table::default());
        let admit = |last: u8| table.admit(IpAddr::V4(Ipv4Addr::new(10, 0, 0, last))).unwrap();
        let (_first, evicted) = admit(1);
        // Two of three are of the first one's address.
        let _others: Vec<_> =
            (1..MAX_STRANGERS).map(|index| admit(if index % 3 == 0 { 2 } else { 1 })).collect();
        assert_eq!(table.lock().strangers.len(), MAX_STRANGERS);
        let _one_more = admit(3);
        assert_eq!(table.lock().strangers.len(), MAX_STRANGERS);
        assert_eq!(overdue(evicted).await, "a newer connection takes its place");
    }

    #[tokio::test]
    async fn a_racks_workers_count_in_its_own_limit_only() {
        let table = Arc::new(Table::default());
        let [a, b] = [RackId(1), RackId(2)];
        let admit = || table.admit(PEER).expect("there is room").0;
        let workers: Vec<_> = (0..MAX_RELAYED).map(|_| admit()).inspect(|it| assert!(it.relay(a))).collect();
        assert!(!admit().relay(a), "one more");
        assert!(admit().relay(b), "another rack's");
        let most = MAX_OF_ONE_ADDRESS + BESIDE_WORKERS;
        let others: Vec<_> = (0..most).map(|_| admit()).collect();
        others.iter().for_each(Ticket::authenticate);
        assert!(table.admit(PEER).is_none(), "what is no rack's counts as before");
        let counted = |table: &Table| {
            let mut stats = ServerStats::default();
            table.fill(&mut stats);
            stats.connections
        };
        assert_eq!(counted(&table), (MAX_RELAYED + most) as u64);
        drop((workers, others));
        assert_eq!(counted(&table), 0);
        assert!(table.lock().relayed.is_empty() && table.lock().by_address.is_empty());
    }
}
