//! A connection to a control plane: TCP, TLS and the stream of messages.

use std::{io, net::SocketAddr, time::Duration};

use rustls::{AlertDescription, pki_types::ServerName};
use thiserror::Error;
use tokio::{
    net::TcpStream,
    sync::mpsc,
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_rustls::TlsConnector;

use crate::{
    Secret,
    coordinator::SILENCE_TIMEOUT,
    frames::{self, ALPN, FrameError, Inbound},
    message::{ClientMessage, Denial, Hello, ServerMessage},
    tls::{self, TlsError, Trust},
    wake_times,
};

/// Time between a connection that failed and the next.
pub const RETRY: Duration = Duration::from_millis(200);
/// The time between an attempt to connect to one address and that to the next.
const ATTEMPT_DELAY: Duration = Duration::from_millis(250);
/// Interval of a side's keepalives.
pub const ALIVE_INTERVAL: Duration = Duration::from_millis(500);

/// The address of an aggregator's control plane, and what it takes to be let in.
#[derive(Clone, Debug)]
pub struct Endpoint {
    pub address: SocketAddr,
    /// Further addresses of its name, which are tried where the first does not answer soon.
    pub others: Vec<SocketAddr>,
    pub trust: Trust,
    pub secret: Secret,
}

#[derive(Clone, Debug, Error)]
pub enum ConnectError {
    /// No answer, or no more. Another attempt may help.
    #[error("{0}")]
    Unreachable(String),
    /// The host answers, and no program listens there. Another attempt may help.
    #[error("{0}")]
    Refused(String),
    /// The handshake failed as one does whose bytes were damaged on the way. Another attempt may help.
    #[error("{0}")]
    Handshake(String),
    #[error("{0}")]
    NotTrusted(String),
    #[error("{}", .0.message)]
    Denied(Denial),
    #[error("{0}")]
    Protocol(String),
}

pub struct Connection {
    pub outbound: mpsc::Sender<ClientMessage>,
    inbound: Inbound<ServerMessage>,
    /// They write messages and keepalives until dropped.
    tasks: JoinSet<()>,
}

impl Connection {
    /// Connects, and sends the first messages. Within [`SILENCE_TIMEOUT`].
    pub async fn open(endpoint: &Endpoint, first: Vec<ClientMessage>) -> Result<Connection, ConnectError> {
        let mut connection = Connection::open_relay(endpoint, first).await?;
        connection.tasks.spawn(keep_alive(connection.outbound.clone()));
        Ok(connection)
    }

    /// Connects without keepalives, for a worker's messages: its own are among them.
    pub async fn open_relay(
        endpoint: &Endpoint,
        first: Vec<ClientMessage>,
    ) -> Result<Connection, ConnectError> {
        let opening = Connection::open_unbounded(endpoint, first);
        timeout(SILENCE_TIMEOUT, opening).await.unwrap_or_else(|_| Err(no_answer()))
    }

    async fn open_unbounded(
        endpoint: &Endpoint,
        first: Vec<ClientMessage>,
    ) -> Result<Connection, ConnectError> {
        let stream = connect(endpoint).await?;
        let mut tasks = JoinSet::new();
        let (mut inbound, outbound) = frames::open(stream, &mut tasks);
        // A server refuses a client's certificate after the client's side of the handshake (TLS 1.3). It
        // speaks first, so that its answer comes here, where the reason is not lost yet.
        match inbound.next().await {
            Some(Ok(ServerMessage::Hello(_))) => {}
            Some(Err(FrameError::Io(error))) => return Err(handshake_failed(&error)),
            Some(_) => return Err(no_control_plane()),
            None => return Err(ended()),
        }
        // There is room for them.
        for message in [ClientMessage::Hello(Hello::own())].into_iter().chain(first) {
            let _ = outbound.try_send(message);
        }
        Ok(Connection { outbound, inbound, tasks })
    }

    /// The next message; an error when the other side is silent for too long.
    pub async fn receive(&mut self) -> Result<ServerMessage, ConnectError> {
        match timeout(SILENCE_TIMEOUT, self.inbound.next()).await {
            Err(_) => Err(no_answer()),
            Ok(Some(Ok(ServerMessage::Denied(denial)))) => Err(ConnectError::Denied(denial)),
            Ok(Some(Ok(ServerMessage::Unavailable(why)))) => Err(ConnectError::Unreachable(why)),
            Ok(Some(Ok(message))) => Ok(message),
            Ok(None | Some(Err(FrameError::Truncated))) => Err(ended()),
            Ok(Some(Err(FrameError::Io(error)))) => Err(unreachable(&error)),
            Ok(Some(Err(error))) => Err(ConnectError::Protocol(error.to_string())),
        }
    }

    pub async fn send(&self, message: ClientMessage) -> Result<(), ConnectError> {
        let sent = timeout(SILENCE_TIMEOUT, self.outbound.send(message)).await;
        sent.map_err(|_| no_answer())?
            .map_err(|_| ConnectError::Unreachable("the connection has ended".into()))
    }
}

/// Lets the other side know twice a second that this one is alive, also while it waits for something else.
async fn keep_alive(outbound: mpsc::Sender<ClientMessage>) {
    let mut ticks = wake_times::ticks(ALIVE_INTERVAL);
    loop {
        ticks.tick().await;
        // One in a full queue is as good as this one.
        let _ = outbound.try_send(ClientMessage::Alive { received: 0 });
    }
}

async fn connect(
    Endpoint { address, others, trust, .. }: &Endpoint,
) -> Result<tokio_rustls::client::TlsStream<TcpStream>, ConnectError> {
    let (address, tcp) = connect_to_any(*address, others).await?;
    tcp.set_nodelay(true).map_err(|error| unreachable(&error))?;
    let config = trust.client().map_err(|error: TlsError| ConnectError::NotTrusted(error.to_string()))?;
    let name = ServerName::IpAddress(address.ip().into());
    let connecting = TlsConnector::from(config).connect(name, tcp);
    let stream = connecting.await.map_err(|error| handshake_failed(&error))?;
    match stream.get_ref().1.alpn_protocol() {
        Some(ALPN) => Ok(stream),
        _ => Err(no_control_plane()),
    }
}

/// Connects to the first address that answers. Each is tried a little after the one before (RFC 8305).
async fn connect_to_any(
    first: SocketAddr,
    others: &[SocketAddr],
) -> Result<(SocketAddr, TcpStream), ConnectError> {
    if others.is_empty() {
        let tcp = TcpStream::connect(first).await;
        return tcp.map(|tcp| (first, tcp)).map_err(|error| unreachable(&error));
    }
    let mut attempts = JoinSet::new();
    for (number, address) in (0..).zip([first].into_iter().chain(others.iter().copied())) {
        attempts.spawn(async move {
            sleep(ATTEMPT_DELAY * number).await;
            (address, TcpStream::connect(address).await)
        });
    }
    let mut refusals = Vec::new();
    while let Some(attempt) = attempts.join_next().await {
        match attempt {
            Ok((address, Ok(tcp))) => return Ok((address, tcp)),
            Ok((address, Err(error))) => refusals.push(format!("{address}: {error}")),
            Err(error) => refusals.push(error.to_string()),
        }
    }
    Err(ConnectError::Unreachable(refusals.join("; ")))
}

fn handshake_failed(error: &io::Error) -> ConnectError {
    match error.get_ref().and_then(|inner| inner.downcast_ref()) {
        Some(rustls::Error::AlertReceived(AlertDescription::NoApplicationProtocol)) => no_control_plane(),
        Some(reason) if tls::may_be_damage(reason) => ConnectError::Handshake(tls::explain(error)),
        Some(_) => ConnectError::NotTrusted(tls::explain(error)),
        None => unreachable(error),
    }
}

fn no_control_plane() -> ConnectError {
    ConnectError::Protocol("it is no Sumac control plane of this release: install the same on both".into())
}

fn ended() -> ConnectError {
    ConnectError::Unreachable("the control plane ended the connection".into())
}

pub fn no_answer() -> ConnectError {
    ConnectError::Unreachable("no answer".into())
}

fn unreachable(error: &io::Error) -> ConnectError {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => ConnectError::Refused(error.to_string()),
        _ => ConnectError::Unreachable(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::{TcpListener, TcpSocket};

    #[tokio::test]
    async fn the_second_address_is_tried_where_the_first_refuses_or_is_silent() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let good = listener.local_addr().unwrap();
        let unused = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let refusing = unused.local_addr().unwrap();
        drop(unused);
        // The kernel drops further SYNs while the one connection fills the queue.
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let full = socket.listen(0).unwrap();
        let silent = full.local_addr().unwrap();
        let _queued = TcpStream::connect(silent).await.unwrap();
        for bad in [refusing, silent] {
            let (address, _) = connect_to_any(bad, &[good]).await.unwrap();
            assert_eq!(address, good);
        }
        let refused = connect_to_any(refusing, &[refusing]).await.unwrap_err().to_string();
        assert!(refused.contains(&format!("{refusing}: ")), "{refused}");
    }
}
