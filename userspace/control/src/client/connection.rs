//! A connection to a control plane: TCP, TLS and the stream of messages.

use std::{io, net::SocketAddr, time::Duration};

use hyper::http::uri::PathAndQuery;
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use thiserror::Error;
use tokio::{
    io::AsyncBufReadExt as _,
    net::TcpStream,
    sync::mpsc,
    task::JoinSet,
    time::{interval, timeout},
};
use tokio_rustls::TlsConnector;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{
    Code, Streaming,
    client::Grpc,
    transport::{self, Channel},
};

use crate::{
    Secret,
    coordinator::SILENCE_TIMEOUT,
    message::{ClientMessage, Denial, Hello, ServerMessage},
    rpc::{JsonCodec, MAX_MESSAGE, PATH, QUEUE_LEN},
    tls::{self, TlsError, Trust},
};

/// Interval of a side's keepalives.
pub const ALIVE_INTERVAL: Duration = Duration::from_millis(500);

/// The address of an aggregator's control plane, and what it takes to be let in.
#[derive(Clone, Debug)]
pub struct Endpoint {
    pub address: SocketAddr,
    pub trust: Trust,
    pub secret: Secret,
}

#[derive(Clone, Debug, Error)]
pub enum ConnectError {
    /// No answer, or no more. Another attempt may help.
    #[error("{0}")]
    Unreachable(String),
    #[error("{0}")]
    NotTrusted(String),
    #[error("{}", .0.message)]
    Denied(Denial),
    #[error("{0}")]
    Protocol(String),
}

#[derive(Debug)]
pub struct Connection {
    pub outbound: mpsc::Sender<ClientMessage>,
    pub channel: Channel,
    inbound: Streaming<ServerMessage>,
    /// Sends keep-alive messages until dropped.
    _alive: JoinSet<()>,
}

impl Connection {
    /// Connects, and sends the first messages. Within [`SILENCE_TIMEOUT`].
    pub async fn open(endpoint: &Endpoint, first: Vec<ClientMessage>) -> Result<Connection, ConnectError> {
        let opening = Connection::open_unbounded(endpoint, first);
        timeout(SILENCE_TIMEOUT, opening).await.unwrap_or_else(|_| Err(no_answer()))
    }

    async fn open_unbounded(
        endpoint: &Endpoint,
        first: Vec<ClientMessage>,
    ) -> Result<Connection, ConnectError> {
        let io = TokioIo::new(connect(endpoint.address, &endpoint.trust).await?);
        let mut io = Some(io);
        let connector = tower::service_fn(move |_| {
            let io = io.take().ok_or_else(|| io::Error::from(io::ErrorKind::NotConnected));
            async { io }
        });
        let uri = format!("https://{}", endpoint.address);
        let channel = transport::Endpoint::from_shared(uri).map_err(|error| unreachable(&error))?;
        let channel = channel.connect_with_connector(connector).await.map_err(|error| unreachable(&error))?;
        let (outbound, inbound) = open_stream(&channel, first).await.map_err(|status| failed(&status))?;
        let mut alive = JoinSet::new();
        alive.spawn(keep_alive(outbound.clone()));
        Ok(Connection { outbound, channel, inbound, _alive: alive })
    }

    /// The next message; an error when the other side is silent for too long.
    pub async fn receive(&mut self) -> Result<ServerMessage, ConnectError> {
        match timeout(SILENCE_TIMEOUT, self.inbound.message()).await {
            Err(_) => Err(no_answer()),
            Ok(Ok(Some(ServerMessage::Denied(denial)))) => Err(ConnectError::Denied(denial)),
            Ok(Ok(Some(message))) => Ok(message),
            Ok(Ok(None)) => Err(ConnectError::Unreachable("the control plane ended the connection".into())),
            Ok(Err(status)) => Err(failed(&status)),
        }
    }

    pub async fn send(&self, message: ClientMessage) -> Result<(), ConnectError> {
        let sent = timeout(SILENCE_TIMEOUT, self.outbound.send(message)).await;
        sent.map_err(|_| no_answer())?
            .map_err(|_| ConnectError::Unreachable("the connection has ended".into()))
    }
}

/// Opens a stream on a connection, and sends the first messages.
pub async fn open_stream(
    channel: &Channel,
    first: Vec<ClientMessage>,
) -> Result<(mpsc::Sender<ClientMessage>, Streaming<ServerMessage>), tonic::Status> {
    let (outbound, queue) = mpsc::channel(QUEUE_LEN);
    // There is room for them.
    for message in [ClientMessage::Hello(Hello::own())].into_iter().chain(first) {
        let _ = outbound.try_send(message);
    }
    let mut grpc = Grpc::new(channel.clone()).max_decoding_message_size(MAX_MESSAGE);
    grpc.ready().await.map_err(|error| tonic::Status::from_error(Box::new(error)))?;
    let codec = JsonCodec::<ClientMessage, ServerMessage>::default();
    let request = tonic::Request::new(ReceiverStream::new(queue));
    let response = grpc.streaming(request, PathAndQuery::from_static(PATH), codec).await?;
    Ok((outbound, response.into_inner()))
}

/// Lets the other side know twice a second that this one is alive, also while it waits for something else.
async fn keep_alive(outbound: mpsc::Sender<ClientMessage>) {
    let mut ticks = interval(ALIVE_INTERVAL);
    loop {
        ticks.tick().await;
        // One in a full queue is as good as this one.
        let _ = outbound.try_send(ClientMessage::Alive { received: 0 });
    }
}

async fn connect(
    address: SocketAddr,
    trust: &Trust,
) -> Result<tokio_rustls::client::TlsStream<TcpStream>, ConnectError> {
    let tcp = TcpStream::connect(address).await.map_err(|error| unreachable(&error))?;
    tcp.set_nodelay(true).map_err(|error| unreachable(&error))?;
    let config = trust.client().map_err(|error: TlsError| ConnectError::NotTrusted(error.to_string()))?;
    let name = ServerName::IpAddress(address.ip().into());
    let failed = |error: io::Error| match error.get_ref() {
        Some(inner) if inner.is::<rustls::Error>() => ConnectError::NotTrusted(tls::explain(&error)),
        _ => unreachable(&error),
    };
    let mut stream = TlsConnector::from(config).connect(name, tcp).await.map_err(failed)?;
    // A server refuses a client's certificate after the client's side of the handshake (TLS 1.3). In HTTP/2 it speaks
    // first, so that its answer comes here, where the reason is not lost yet.
    stream.fill_buf().await.map_err(failed)?;
    Ok(stream)
}

fn failed(status: &tonic::Status) -> ConnectError {
    match status.code() {
        Code::InvalidArgument | Code::OutOfRange | Code::ResourceExhausted => {
            ConnectError::Protocol(status.message().into())
        }
        Code::Unimplemented => ConnectError::Protocol(
            "it is no Sumac control plane of this release: install the same on both".into(),
        ),
        _ => unreachable(status),
    }
}

pub fn no_answer() -> ConnectError {
    ConnectError::Unreachable("no answer".into())
}

/// The innermost cause says most: "connection refused" is below two "transport error"s.
fn unreachable(error: &dyn std::error::Error) -> ConnectError {
    let innermost = std::iter::successors(Some(error), |error| error.source()).last();
    ConnectError::Unreachable(innermost.unwrap_or(error).to_string())
}
