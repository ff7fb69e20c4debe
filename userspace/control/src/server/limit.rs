//! At most so many connections in all and of one address, and none for long that says nothing authentic, so that strangers
//! cannot use up memory, file descriptors, or the places of those who know the secret.

use std::{
    collections::HashMap,
    future::Future as _,
    io,
    net::{IpAddr, SocketAddr},
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::{Context, Poll, ready},
    time::{Duration, Instant},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    time::{Sleep, sleep},
};
use tokio_stream::Stream;
use tonic::transport::server::Connected;

use super::noise::Noise;

const MOST_CONNECTIONS: usize = 1024;
const MOST_OF_ONE_ADDRESS: usize = 128;
/// How long a connection may be open before its first authentic message.
const TRIAL: Duration = Duration::from_secs(10);
/// How long nothing is accepted after the system could not: out of file descriptors, it would fail again at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

type Counts = Arc<Mutex<HashMap<IpAddr, usize>>>;

/// The listener's connections, those over the limit closed at once.
pub struct Limited {
    listener: TcpListener,
    counts: Counts,
    closed: Noise,
    failed: Noise,
    pause: Option<Pin<Box<Sleep>>>,
}

impl Limited {
    pub fn new(listener: TcpListener) -> Limited {
        let (closed, failed) = (Noise::new(Instant::now()), Noise::new(Instant::now()));
        Limited { listener, counts: Counts::default(), closed, failed, pause: None }
    }

    fn admit(&self, stream: TcpStream, peer: IpAddr) -> Option<Connection> {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let total: usize = counts.values().sum();
        let own = counts.get(&peer).copied().unwrap_or(0);
        if total >= MOST_CONNECTIONS || own >= MOST_OF_ONE_ADDRESS {
            if let Some(untold) = self.closed.tell(Instant::now()) {
                tracing::warn!(%peer, total, own, untold, "too many connections; this one is closed");
            }
            return None;
        }
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%peer, %error, "connection stays without TCP_NODELAY");
        }
        counts.insert(peer, own + 1);
        let place = Place { peer, counts: self.counts.clone() };
        let trial = Some(Box::pin(sleep(TRIAL)));
        Some(Connection { stream, proof: Proof::default(), trial, _place: place })
    }

    /// The system could not accept a connection: tells of it, and waits a little unless only that connection is at fault.
    fn fail(&mut self, error: &io::Error) {
        use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted};
        if matches!(error.kind(), ConnectionAborted | ConnectionReset | Interrupted) {
            return;
        }
        if let Some(untold) = self.failed.tell(Instant::now()) {
            tracing::warn!(%error, untold, "cannot accept a connection; allow more open files (`ulimit -n`)?");
        }
        self.pause = Some(Box::pin(sleep(ACCEPT_PAUSE)));
    }
}

impl Stream for Limited {
    type Item = io::Result<Connection>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let limited = self.get_mut();
        loop {
            if let Some(pause) = &mut limited.pause {
                ready!(pause.as_mut().poll(context));
                limited.pause = None;
            }
            match ready!(limited.listener.poll_accept(context)) {
                Ok((stream, peer)) => {
                    if let Some(connection) = limited.admit(stream, peer.ip().to_canonical()) {
                        return Poll::Ready(Some(Ok(connection)));
                    }
                }
                Err(error) => limited.fail(&error),
            }
        }
    }
}

/// One place among the connections; free again when dropped.
struct Place {
    peer: IpAddr,
    counts: Counts,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(&self.peer) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.peer);
            }
        }
    }
}

/// Whether a connection has brought an authentic message.
#[derive(Clone, Debug, Default)]
pub struct Proof(Arc<AtomicBool>);

impl Proof {
    /// An answer is proof: only what is authentic gets one.
    pub fn from<T, E>(&self, answered: Result<T, E>) -> Result<T, E> {
        self.0.fetch_or(answered.is_ok(), Relaxed);
        answered
    }
}

/// The two ends of a connection, and whom its calls prove to be there.
#[derive(Clone, Debug)]
pub struct Ends {
    pub peer: Option<SocketAddr>,
    pub local: Option<SocketAddr>,
    pub proof: Proof,
}

/// A connection that holds its place, on trial until its first authentic message.
pub struct Connection {
    stream: TcpStream,
    proof: Proof,
    trial: Option<Pin<Box<Sleep>>>,
    _place: Place,
}

impl Connected for Connection {
    type ConnectInfo = Ends;

    fn connect_info(&self) -> Ends {
        let (peer, local) = (self.stream.peer_addr().ok(), self.stream.local_addr().ok());
        Ends { peer, local, proof: self.proof.clone() }
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.proof.0.load(Relaxed) {
            self.trial = None;
        }
        if let Some(trial) = &mut self.trial
            && trial.as_mut().poll(context).is_ready()
        {
            let why = "no authentic message came over this connection";
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, why)));
        }
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
    use tokio_stream::StreamExt;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn who_says_nothing_authentic_gives_the_place_back() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut limited = Limited::new(listener);
        let counts = limited.counts.clone();
        let held = || counts.lock().unwrap().values().sum::<usize>();
        let (_stranger, _worker) =
            (TcpStream::connect(address).await.unwrap(), TcpStream::connect(address).await.unwrap());
        let mut stranger = limited.next().await.unwrap().unwrap();
        let mut worker = limited.next().await.unwrap().unwrap();
        assert_eq!(held(), 2);
        let denied: Result<(), ()> = Err(());
        assert_eq!(stranger.connect_info().proof.from(denied), denied, "a denial proves nothing");
        assert_eq!(worker.connect_info().proof.from::<_, ()>(Ok(())), Ok(()));
        let ended = timeout(TRIAL * 2, stranger.read_u8()).await.expect("it is kept for ever");
        assert_eq!(ended.unwrap_err().kind(), io::ErrorKind::TimedOut);
        drop(stranger);
        assert_eq!(held(), 1);
        assert!(timeout(TRIAL * 9, worker.read_u8()).await.is_err(), "who was authentic may be silent");
    }
}
