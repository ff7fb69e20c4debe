//! Messages in frames, in each direction of a TLS stream: four bytes of length, then one message in JSON.

use std::{io, marker::PhantomData};

use bytes::{Bytes, BytesMut};
use serde::{Serialize, de::DeserializeOwned};
use thiserror::Error;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    sync::mpsc,
    task::JoinSet,
    time::{Duration, Instant},
};
use tokio_util::codec::{Decoder as _, Encoder as _, LengthDelimitedCodec};

/// The name of these frames in the TLS handshake. The version of the messages is in the first of them.
pub const ALPN: &[u8] = b"sumac-control/1";
/// HTTP/2, for gRPC: what clients of control protocols up to 12 speak.
pub const GRPC_ALPN: &[u8] = b"h2";
/// The longest message: a report of as many operations as are outstanding.
pub const MAX_MESSAGE: usize = 2 << 20;
/// The longest message of a connection that is not authenticated. Its first messages are short, and all such
/// connections together hold few MiB of unfinished ones.
pub const MAX_UNAUTHENTICATED: usize = 32 << 10;
/// Messages that may wait to be sent.
const QUEUE_LEN: usize = 256;
/// Bytes that are read, or collected to be written, at once.
const BATCH: usize = 16 << 10;
/// A buffer that a long message has made larger than this is returned.
const MAX_KEPT: usize = 4 * BATCH;

#[derive(Debug, Error)]
pub enum FrameError {
    #[error("a message is longer than {0} bytes")]
    TooLong(usize),
    #[error("not understood ({0}): are both sides of the same release?")]
    NotUnderstood(#[from] serde_json::Error),
    #[error("the connection ended within a message")]
    Truncated,
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// The messages that come in.
pub struct Inbound<M> {
    stream: Box<dyn AsyncRead + Send + Sync + Unpin>,
    codec: LengthDelimitedCodec,
    buffer: BytesMut,
    heard: Instant,
    messages: PhantomData<fn() -> M>,
}

impl<M: DeserializeOwned> Inbound<M> {
    pub fn new(stream: impl AsyncRead + Send + Sync + Unpin + 'static) -> Inbound<M> {
        Inbound {
            stream: Box::new(stream),
            codec: LengthDelimitedCodec::builder().max_frame_length(MAX_MESSAGE).new_codec(),
            buffer: BytesMut::new(),
            heard: Instant::now(),
            messages: PhantomData,
        }
    }

    /// Limits the length of the messages from the next one on.
    pub fn limit(&mut self, longest: usize) {
        self.codec.set_max_frame_length(longest);
    }

    /// The next message; `None` once the other side has ended the stream. After an error there are no more.
    /// Dropping the future loses nothing.
    pub async fn next(&mut self) -> Option<Result<M, FrameError>> {
        loop {
            match self.codec.decode(&mut self.buffer) {
                Ok(Some(frame)) => {
                    if frame.len() > MAX_KEPT {
                        self.buffer = BytesMut::from(&self.buffer[..]);
                    }
                    return Some(serde_json::from_slice(&frame).map_err(FrameError::from));
                }
                Ok(None) => {}
                Err(_) => return Some(Err(FrameError::TooLong(self.codec.max_frame_length()))),
            }
            match self.read().await {
                Ok(0) => return (!self.buffer.is_empty()).then_some(Err(FrameError::Truncated)),
                Ok(_) => {}
                Err(error) => return Some(Err(error.into())),
            }
        }
    }

    /// The time since something came.
    pub fn silence(&self) -> Duration {
        self.heard.elapsed()
    }

    /// Discards what still comes, until the other side ends the stream.
    pub async fn drain(&mut self) {
        while let Ok(1..) = self.read().await {
            self.buffer.clear();
        }
    }

    async fn read(&mut self) -> io::Result<usize> {
        self.buffer.reserve(BATCH);
        let len = match self.stream.read_buf(&mut self.buffer).await {
            // It ended without saying so in TLS, as it does when it is killed. No message ends with the
            // stream.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => 0,
            read => read?,
        };
        self.heard = Instant::now();
        Ok(len)
    }
}

/// Divides a stream into the messages that come in and a queue for those that go out. A task of `tasks`
/// writes these, and ends the stream when the queue has no sender any more.
pub fn open<I: DeserializeOwned, O: Serialize + Send + 'static>(
    stream: impl AsyncRead + AsyncWrite + Send + Sync + Unpin + 'static,
    tasks: &mut JoinSet<()>,
) -> (Inbound<I>, mpsc::Sender<O>) {
    let (read, write) = tokio::io::split(stream);
    let (outbound, queue) = mpsc::channel(QUEUE_LEN);
    tasks.spawn(async move {
        if let Err(error) = write_all(queue, write).await {
            tracing::debug!(%error, "the connection takes no more messages");
        }
    });
    (Inbound::new(read), outbound)
}

async fn write_all<M: Serialize>(
    mut queue: mpsc::Receiver<M>,
    mut stream: impl AsyncWrite + Unpin,
) -> io::Result<()> {
    // It is the receiver that refuses what is too long: it can say so.
    let mut codec = LengthDelimitedCodec::builder().max_frame_length(u32::MAX as usize).new_codec();
    let mut buffer = BytesMut::new();
    while let Some(message) = queue.recv().await {
        codec.encode(Bytes::from(serde_json::to_vec(&message)?), &mut buffer)?;
        while buffer.len() < BATCH
            && let Ok(message) = queue.try_recv()
        {
            codec.encode(Bytes::from(serde_json::to_vec(&message)?), &mut buffer)?;
        }
        stream.write_all_buf(&mut buffer).await?;
        stream.flush().await?;
        if buffer.capacity() > MAX_KEPT {
            buffer = BytesMut::new();
        }
    }
    stream.shutdown().await
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads all of a stream that ends with these bytes.
    async fn read(bytes: &[u8]) -> Vec<Result<String, FrameError>> {
        let mut inbound = Inbound::new(io::Cursor::new(bytes.to_vec()));
        let mut all = Vec::new();
        while let Some(message) = inbound.next().await {
            let is_last = message.is_err();
            all.push(message);
            if is_last {
                break;
            }
        }
        all
    }

    #[tokio::test]
    async fn messages_come_one_by_one_however_they_are_cut() {
        let (near, far) = tokio::io::duplex(7);
        let mut tasks = JoinSet::new();
        let (mut inbound, _unused) = open::<String, String>(far, &mut tasks);
        let (_unused, outbound) = open::<String, String>(near, &mut tasks);
        let long = "x".repeat(MAX_MESSAGE - 2);
        for message in ["", "one", &long] {
            outbound.send(message.to_owned()).await.unwrap();
            assert_eq!(inbound.next().await.unwrap().unwrap(), message);
        }
        drop(outbound);
        assert!(inbound.next().await.is_none());
    }

    #[tokio::test]
    async fn a_limited_connection_holds_little_and_a_long_message_is_returned() {
        let long = "x".repeat(MAX_MESSAGE - 2);
        let (near, far) = tokio::io::duplex(BATCH);
        let mut tasks = JoinSet::new();
        let (mut inbound, _unused) = open::<String, String>(far, &mut tasks);
        let (_unused, outbound) = open::<String, String>(near, &mut tasks);
        inbound.limit(MAX_UNAUTHENTICATED);
        outbound.send("a first one".into()).await.unwrap();
        assert!(inbound.next().await.unwrap().is_ok());
        inbound.limit(MAX_MESSAGE);
        outbound.send(long.clone()).await.unwrap();
        assert_eq!(inbound.next().await.unwrap().unwrap(), long);
        assert!(inbound.buffer.capacity() <= MAX_KEPT, "{}", inbound.buffer.capacity());
        inbound.limit(MAX_UNAUTHENTICATED);
        outbound.send(long).await.unwrap();
        let refused = inbound.next().await.unwrap().unwrap_err();
        assert!(refused.to_string().contains("longer than 32768 bytes"), "{refused}");
        assert!(inbound.buffer.capacity() <= MAX_KEPT, "{}", inbound.buffer.capacity());
    }

    #[tokio::test]
    async fn what_is_no_message_is_refused_by_name() {
        let good = b"\0\0\0\x04\"ab\"";
        assert!(matches!(&read(good).await[..], [Ok(text)] if text == "ab"));
        let too_long = (MAX_MESSAGE as u32 + 1).to_be_bytes();
        for (bad, why) in [
            (&too_long[..], "longer than 2097152 bytes"),
            (b"\0\0\0\x04\"ab", "ended within a message"),
            (b"\0\0", "ended within a message"),
            (b"\0\0\0\x04nope", "not understood"),
            (b"\0\0\0\0", "not understood"),
            (b"GET / HTTP/1.1", "longer than"),
        ] {
            let all = read(&[&good[..], bad].concat()).await;
            let [Ok(_), Err(error)] = &all[..] else { panic!("{all:?}") };
            assert!(error.to_string().contains(why), "{error}");
        }
    }

    #[tokio::test]
    async fn one_that_does_not_read_fills_its_queue_and_no_more() {
        let (near, _far) = tokio::io::duplex(64);
        let mut tasks = JoinSet::new();
        let (_inbound, outbound) = open::<String, String>(near, &mut tasks);
        let mut queued = 0;
        while outbound.try_send("a message".into()).is_ok() {
            queued += 1;
            tokio::task::yield_now().await;
        }
        // Besides those in the queue, one batch on its way.
        assert!((QUEUE_LEN..QUEUE_LEN + BATCH / 8).contains(&queued), "{queued}");
    }
}
