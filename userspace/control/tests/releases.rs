//! Peers of other releases, and peers that are no Sumac at all, over loopback TCP.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test ends by panicking")]

#[allow(dead_code, reason = "each test file uses a part")]
mod plane;
#[allow(dead_code, reason = "each test file uses a part")]
mod server;

use std::sync::Arc;

use plane::FakePlane;
use rustls::{
    ClientConfig, RootCertStore, ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject as _},
};
use server::{HANGS, SECRET, Server, StateDir, request, with};
use sumac_control::{
    DenialKind, JoinError, join,
    message::{ClientMessage, Hello, PROTOCOL_VERSION, ServerMessage},
};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    time::timeout,
};
use tokio_rustls::{TlsAcceptor, TlsConnector, client::TlsStream};

/// A client that has shaken hands with this server, for one protocol.
async fn connect(server: &Server, protocol: &[u8]) -> TlsStream<TcpStream> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(server.state_dir.0.join("certificate.pem")).unwrap()).unwrap();
    let mut config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![protocol.to_vec()];
    let tcp = TcpStream::connect(server.address).await.unwrap();
    let name = ServerName::try_from("sumac-agg").unwrap();
    TlsConnector::from(Arc::new(config)).connect(name, tcp).await.unwrap()
}

fn frame(payload: &[u8]) -> Vec<u8> {
    [&(payload.len() as u32).to_be_bytes()[..], payload].concat()
}

async fn read_message(stream: &mut TlsStream<TcpStream>) -> ServerMessage {
    let reading = async {
        let mut payload = vec![0; stream.read_u32().await.unwrap() as usize];
        stream.read_exact(&mut payload).await.unwrap();
        serde_json::from_slice(&payload).unwrap()
    };
    timeout(HANGS, reading).await.unwrap()
}

/// The reason for which a client that sends this after the handshake is denied, after which the connection
/// ends.
async fn denial(server: &Server, sent: &[u8]) -> (DenialKind, String) {
    let mut stream = connect(server, b"sumac-control/1").await;
    assert_eq!(
        read_message(&mut stream).await,
        ServerMessage::Hello(Hello::own()),
        "the server speaks first"
    );
    stream.write_all(sent).await.unwrap();
    stream.shutdown().await.unwrap();
    let ServerMessage::Denied(denial) = read_message(&mut stream).await else { panic!("not denied") };
    let mut rest = Vec::new();
    timeout(HANGS, stream.read_to_end(&mut rest)).await.unwrap().unwrap();
    assert_eq!(rest, b"", "the end");
    (denial.kind, denial.message)
}

#[tokio::test]
async fn what_is_no_message_is_denied_by_name() {
    let server = Server::start(FakePlane::new(1024)).await;
    let hello = |hello: Hello| frame(&serde_json::to_vec(&ClientMessage::Hello(hello)).unwrap());
    let own = hello(Hello::own());
    let later = Hello { protocol: PROTOCOL_VERSION + 1, build: "9.9.9".into() };
    let cases = [
        (hello(later), DenialKind::Version, "the client is of release 9.9.9"),
        (frame(b"GET / HTTP/1.1"), DenialKind::Request, "not understood"),
        ([&own[..], &frame(b"{\"Jump\":1}")].concat(), DenialKind::Request, "not understood"),
        ([&own[..], &[0, 0, 0x80, 1]].concat(), DenialKind::Request, "longer than 32768 bytes"),
        // One that a member may send, unfinished.
        ([&own[..], &[0, 0x20, 0, 0], b"{"].concat(), DenialKind::Request, "longer than 32768 bytes"),
        ([&own[..], b"\0\0\0\x09{\"Al"].concat(), DenialKind::Request, "ended within a message"),
        (own.clone(), DenialKind::Request, "no message came"),
        ([&own[..], &own[..]].concat(), DenialKind::Request, "first message is a join"),
        (frame(b"{\"Alive\":{\"received\":0}}"), DenialKind::Request, "the first message is no hello"),
    ];
    for (sent, kind, why) in cases {
        let (denied, message) = denial(&server, &sent).await;
        assert!(denied == kind && message.contains(why), "{why}: {denied:?} {message}");
    }
    assert!(server.plane.calls().is_empty());
    server.stop().await;
}

#[tokio::test]
async fn a_grpc_client_of_an_earlier_release_is_denied_in_grpc() {
    let server = Server::start(FakePlane::new(1024)).await;
    let mut stream = connect(&server, b"h2").await;
    // As those clients do: a refused certificate is heard of here.
    timeout(HANGS, stream.fill_buf()).await.unwrap().unwrap();
    let (client, connection) = h2::client::handshake(stream).await.unwrap();
    let connection = tokio::spawn(connection);
    let mut client = client.ready().await.unwrap();
    let call = http::Request::post("https://127.0.0.1/sumac.Control/Session").body(()).unwrap();
    let (answer, mut sending) = client.send_request(call, false).unwrap();
    // The hello of such a client, in a message of gRPC.
    let hello = br#"{"Hello":{"protocol":12,"build":"0.1.0"}}"#;
    sending.send_data([&[0, 0, 0, 0, hello.len() as u8], &hello[..]].concat().into(), false).unwrap();
    let answer = timeout(HANGS, answer).await.unwrap().unwrap();
    assert_eq!(
        (answer.status().as_u16(), &answer.headers()["content-type"]),
        (200, &"application/grpc".parse().unwrap())
    );
    let mut body = answer.into_body();
    let mut message = Vec::new();
    while let Some(data) = timeout(HANGS, body.data()).await.unwrap() {
        message.extend_from_slice(&data.unwrap());
    }
    let (head, json) = message.split_at(5);
    assert_eq!(head, [&[0][..], &(json.len() as u32).to_be_bytes()].concat());
    let ServerMessage::Denied(denial) = serde_json::from_slice(json).unwrap() else { panic!("not denied") };
    assert_eq!(denial.kind, DenialKind::Version);
    let own = format!("the aggregator of {} ({PROTOCOL_VERSION})", Hello::own().build);
    for part in ["control protocol 12 or below", &own, "install the same release on both"] {
        assert!(denial.message.contains(part), "{}", denial.message);
    }
    drop((client, sending, body));
    let _ = timeout(HANGS, connection).await.expect("the end of the connection");
    // Others than its calls, it does not wait for.
    let mut stream = connect(&server, b"h2").await;
    stream.write_all(&[0xff; 5000]).await.unwrap();
    let mut rest = Vec::new();
    let _ = timeout(HANGS, stream.read_to_end(&mut rest)).await.expect("the end of the connection");
    join(&server.endpoint(), request(0, 1)).await.unwrap();
    server.stop().await;
}

#[tokio::test]
async fn a_server_that_is_no_control_plane_is_reported_as_such() {
    for protocols in [vec![], vec![b"h2".to_vec()], vec![b"http/1.1".to_vec(), b"h2".to_vec()]] {
        let state_dir = StateDir::new();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = state_dir.endpoint(listener.local_addr().unwrap(), SECRET);
        let certificate = CertificateDer::from_pem_file(state_dir.0.join("certificate.pem")).unwrap();
        let key = PrivateKeyDer::from_pem_file(state_dir.0.join("key.pem")).unwrap();
        let config = ServerConfig::builder().with_no_client_auth().with_single_cert(vec![certificate], key);
        let mut config = config.unwrap();
        config.alpn_protocols = protocols.clone();
        let serving = tokio::spawn(async move {
            loop {
                let (tcp, _) = listener.accept().await.unwrap();
                // One that takes any protocol waits for the client to speak.
                if let Ok(mut stream) = TlsAcceptor::from(Arc::new(config.clone())).accept(tcp).await {
                    let _ = stream.read_to_end(&mut Vec::new()).await;
                }
            }
        });
        let hasty = with(request(0, 1), |spec| spec.timeout_s = Some(2.0));
        match timeout(HANGS, join(&endpoint, hasty)).await.unwrap() {
            Err(JoinError::Protocol { what, .. }) => {
                assert!(what.contains("no Sumac control plane of this release"), "{what}");
            }
            other => panic!("{protocols:?}: {other:?}"),
        }
        serving.abort();
    }
}
