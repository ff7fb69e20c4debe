//! The listener's connections: at most so many in all and of one address, and none for long that is not authenticated, so
//! that strangers cannot use up memory or file descriptors. A new connection replaces the oldest one of the address with
//! the most that are not authenticated: strangers do not lock members out.

use std::{
    collections::{HashMap, VecDeque},
    future::Future as _,
    io,
    net::{IpAddr, SocketAddr},
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
    time::{Duration, Instant},
};

use rustls::ServerConfig;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    sync::{mpsc, oneshot},
    task::JoinHandle,
    time::{Sleep, sleep},
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::Connected;

use crate::rate_limiter::RateLimiter;

const MAX_CONNECTIONS: usize = 1024;
const MAX_OF_ONE_ADDRESS: usize = 128;
/// Connections that are not authenticated yet.
const MAX_STRANGERS: usize = 256;
/// Time that a connection may be open before it is authenticated.
const AUTHENTICATION_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause after the system could not accept: out of file descriptors, it would fail again at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Accepts connections, each with its TLS handshake in a task of its own.
pub fn accept(
    listener: TcpListener,
    tls: Arc<ServerConfig>,
) -> (ReceiverStream<io::Result<Connection>>, JoinHandle<()>) {
    let (sender, receiver) = mpsc::channel(16);
    let accepting = tokio::spawn(run(listener, TlsAcceptor::from(tls), sender));
    (ReceiverStream::new(receiver), accepting)
}

async fn run(listener: TcpListener, tls: TlsAcceptor, sender: mpsc::Sender<io::Result<Connection>>) {
    let table = Arc::new(Table::default());
    let [refused, failed] = [(); 2].map(|()| RateLimiter::new(Instant::now()));
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = sender.closed() => return,
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
        let Some(stream) = table.admit(stream, peer.ip().to_canonical()) else {
            if let Some(suppressed) = refused.allow(Instant::now()) {
                tracing::warn!(%peer, suppressed, "too many connections; this one is closed");
            }
            continue;
        };
        let (tls, sender) = (tls.clone(), sender.clone());
        tokio::spawn(async move {
            let ticket = stream.ticket.clone();
            match tls.accept(stream).await {
                Ok(stream) => drop(sender.send(Ok(Connection { stream, ticket })).await),
                Err(error) => tracing::debug!(%peer, %error, "no TLS handshake"),
            }
        });
    }
}

/// The open connections.
#[derive(Default)]
struct Table(Mutex<Open>);

#[derive(Default)]
struct Open {
    by_address: HashMap<IpAddr, usize>,
    total: usize,
    next: u64,
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

    fn admit(self: &Arc<Table>, stream: TcpStream, peer: IpAddr) -> Option<Bounded> {
        let mut open = self.lock();
        if open.by_address.get(&peer).is_some_and(|own| *own >= MAX_OF_ONE_ADDRESS) && !open.evict(peer) {
            return None;
        }
        if open.total >= MAX_CONNECTIONS || open.strangers.len() >= MAX_STRANGERS {
            let busiest = open.busiest()?;
            open.evict(busiest);
        }
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%peer, %error, "connection stays without TCP_NODELAY");
        }
        *open.by_address.entry(peer).or_default() += 1;
        (open.total, open.next) = (open.total + 1, open.next + 1);
        let (keep, evicted) = oneshot::channel();
        let number = open.next;
        open.strangers.push_back((number, peer, keep));
        let ticket = Arc::new(Ticket { table: self.clone(), number, peer });
        Some(Bounded {
            stream,
            ticket,
            evicted: Some(evicted),
            timer: Box::pin(sleep(AUTHENTICATION_TIMEOUT)),
        })
    }
}

/// The place of one connection in the table; free again when dropped.
pub struct Ticket {
    table: Arc<Table>,
    number: u64,
    peer: IpAddr,
}

impl Ticket {
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

/// The two ends of a connection.
#[derive(Clone)]
pub struct Ends {
    pub peer: Option<SocketAddr>,
    pub local: Option<SocketAddr>,
    pub ticket: Arc<Ticket>,
}

/// A TCP connection that ends when it is evicted, or not authenticated in time.
struct Bounded {
    stream: TcpStream,
    ticket: Arc<Ticket>,
    evicted: Option<oneshot::Receiver<()>>,
    timer: Pin<Box<Sleep>>,
}

impl AsyncRead for Bounded {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if let Some(evicted) = &mut self.evicted {
            match Pin::new(evicted).poll(context) {
                Poll::Ready(Ok(())) => self.evicted = None,
                Poll::Ready(Err(_)) => return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into())),
                Poll::Pending if self.timer.as_mut().poll(context).is_ready() => {
                    let why = "the connection was not authenticated in time";
                    return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, why)));
                }
                Poll::Pending => {}
            }
        }
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Bounded {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, data)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// A connection inside TLS.
pub struct Connection {
    stream: TlsStream<Bounded>,
    ticket: Arc<Ticket>,
}

impl Connected for Connection {
    type ConnectInfo = Ends;

    fn connect_info(&self) -> Ends {
        let tcp = &self.stream.get_ref().0.stream;
        Ends { peer: tcp.peer_addr().ok(), local: tcp.local_addr().ok(), ticket: self.ticket.clone() }
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, data)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::{io::AsyncReadExt, time::timeout};

    use super::*;

    async fn admitted(table: &Arc<Table>, listener: &TcpListener) -> (TcpStream, Option<Bounded>) {
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (stream, peer) = listener.accept().await.unwrap();
        (client, table.admit(stream, peer.ip()))
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_is_not_authenticated_ends() {
        let (table, listener) = (Arc::new(Table::default()), TcpListener::bind("127.0.0.1:0").await.unwrap());
        let (_one, stranger) = admitted(&table, &listener).await;
        let (_other, worker) = admitted(&table, &listener).await;
        let (mut stranger, mut worker) = (stranger.unwrap(), worker.unwrap());
        assert_eq!(table.lock().total, 2);
        worker.ticket.authenticate();
        let ended = timeout(AUTHENTICATION_TIMEOUT * 2, stranger.read_u8()).await.expect("it goes on");
        assert_eq!(ended.unwrap_err().kind(), io::ErrorKind::TimedOut);
        drop(stranger);
        assert_eq!(table.lock().total, 1);
        assert!(timeout(AUTHENTICATION_TIMEOUT * 9, worker.read_u8()).await.is_err(), "an authenticated one");
    }

    #[tokio::test]
    async fn a_new_connection_replaces_the_oldest_stranger_and_no_member() {
        let (table, listener) = (Arc::new(Table::default()), TcpListener::bind("127.0.0.1:0").await.unwrap());
        let mut all = Vec::new();
        for number in 0..MAX_OF_ONE_ADDRESS {
            let (client, bounded) = admitted(&table, &listener).await;
            let bounded = bounded.unwrap();
            if number < MAX_OF_ONE_ADDRESS - 1 {
                bounded.ticket.authenticate();
            }
            all.push((client, bounded));
        }
        let (_client, next) = admitted(&table, &listener).await;
        assert!(next.is_some(), "the stranger makes room");
        let evicted = all.last_mut().unwrap().1.read_u8().await;
        assert_eq!(evicted.unwrap_err().kind(), io::ErrorKind::ConnectionAborted);
        next.as_ref().unwrap().ticket.authenticate();
        assert!(admitted(&table, &listener).await.1.is_none(), "members do not");
    }
}
