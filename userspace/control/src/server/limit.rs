//! At most so many connections in all and of one address, so that strangers cannot use up memory or
//! file descriptors.

use std::{
    collections::HashMap,
    io,
    net::IpAddr,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
    time::Instant,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
};
use tokio_stream::Stream;
use tonic::transport::server::{Connected, TcpConnectInfo};

use super::noise::Noise;

const MOST_CONNECTIONS: usize = 1024;
const MOST_OF_ONE_ADDRESS: usize = 128;

type Counts = Arc<Mutex<HashMap<IpAddr, usize>>>;

/// The listener's connections, those over the limit closed at once.
pub struct Limited {
    listener: TcpListener,
    counts: Counts,
    closed: Noise,
}

impl Limited {
    pub fn new(listener: TcpListener) -> Limited {
        Limited { listener, counts: Counts::default(), closed: Noise::new(Instant::now()) }
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
        Some(Connection { stream, _place: Place { peer, counts: self.counts.clone() } })
    }
}

impl Stream for Limited {
    type Item = io::Result<Connection>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            match self.listener.poll_accept(context) {
                Poll::Ready(Ok((stream, peer))) => {
                    if let Some(connection) = self.admit(stream, peer.ip().to_canonical()) {
                        return Poll::Ready(Some(Ok(connection)));
                    }
                }
                Poll::Ready(Err(error)) => return Poll::Ready(Some(Err(error))),
                Poll::Pending => return Poll::Pending,
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

/// A connection that holds its place.
pub struct Connection {
    stream: TcpStream,
    _place: Place,
}

impl Connected for Connection {
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> TcpConnectInfo {
        self.stream.connect_info()
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
