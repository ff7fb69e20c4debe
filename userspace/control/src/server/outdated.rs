//! Clients of control protocols up to 12 speak gRPC, over HTTP/2: they learn in these that they are of
//! another release.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

use crate::message::{Denial, DenialKind, Hello, ServerMessage};

const PREFACE_LEN: usize = 24;
const HEAD_LEN: usize = 9;
/// The longest frame that a client may send (RFC 9113, section 4.2).
const MAX_FRAME: usize = 16 << 10;
/// Frames that a client sends before the headers of its call; it has a few settings.
const MAX_FRAMES: usize = 16;
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;
/// `:status: 200` and `content-type: application/grpc` in HPACK (RFC 7541), names from its table, without
/// Huffman coding.
const RESPONSE: &[u8] = b"\x88\x0f\x10\x10application/grpc";

pub fn denial() -> Denial {
    let Hello { protocol, build } = Hello::own();
    let message = format!(
        "the client is of an earlier release (control protocol 12 or below), the aggregator of {build} \
        ({protocol}): install the same release on both"
    );
    Denial::new(DenialKind::Version, message)
}

/// Answers a client's call with a denial, as a server of its own release would.
pub async fn deny(stream: &mut (impl AsyncRead + AsyncWrite + Unpin), denial: Denial) -> io::Result<()> {
    // The client waits for it.
    stream.write_all(&frame(SETTINGS, 0, 0, &[])).await?;
    stream.flush().await?;
    stream.read_exact(&mut [0; PREFACE_LEN]).await?;
    let call = call(stream).await?;
    let message = serde_json::to_vec(&ServerMessage::Denied(denial))?;
    // Not compressed, and its length.
    let data = [&[0][..], &(message.len() as u32).to_be_bytes(), &message].concat();
    let answer = [
        frame(SETTINGS, ACK, 0, &[]),
        frame(HEADERS, END_HEADERS, call, RESPONSE),
        frame(DATA, END_STREAM, call, &data),
    ];
    stream.write_all(&answer.concat()).await?;
    // A call ends before its connection.
    stream.flush().await
}

/// Reads until the call's headers, and returns its stream.
async fn call(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<u32> {
    for _ in 0..MAX_FRAMES {
        let mut head = [0; HEAD_LEN];
        stream.read_exact(&mut head).await?;
        let [a, b, c, kind, _flags, call @ ..] = head;
        let len = u32::from_be_bytes([0, a, b, c]) as usize;
        if len > MAX_FRAME {
            break;
        }
        stream.read_exact(&mut vec![0; len]).await?;
        if kind == HEADERS {
            return Ok(u32::from_be_bytes(call));
        }
    }
    Err(io::ErrorKind::InvalidData.into())
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let [_, len @ ..] = (payload.len() as u32).to_be_bytes();
    [&len[..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}
