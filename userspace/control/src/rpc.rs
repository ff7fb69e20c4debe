//! The one gRPC method of the control channel: a stream of JSON messages in each direction.

use std::{marker::PhantomData, pin::Pin};

use serde::{Serialize, de::DeserializeOwned};
use tokio::sync::mpsc;
use tokio_stream::{Stream, wrappers::ReceiverStream};
use tonic::{
    Request, Response, Status, Streaming,
    body::Body,
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
    server::Grpc,
};

use crate::message::{ClientMessage, ServerMessage};

pub const PATH: &str = "/sumac.Control/Session";
/// The longest message: a report of as many operations as are outstanding.
pub const MAX_MESSAGE: usize = 2 << 20;
/// Messages that may wait to be sent.
pub const QUEUE_LEN: usize = 256;

pub type Inbound = Pin<Box<dyn Stream<Item = Result<ClientMessage, Status>> + Send>>;
pub type Queue = mpsc::Sender<Result<ServerMessage, Status>>;

pub struct JsonCodec<E, D>(PhantomData<fn(E) -> D>);

impl<E, D> Default for JsonCodec<E, D> {
    fn default() -> JsonCodec<E, D> {
        JsonCodec(PhantomData)
    }
}

impl<E, D> Codec for JsonCodec<E, D>
where
    E: Serialize + Send + 'static,
    D: DeserializeOwned + Send + 'static,
{
    type Encode = E;
    type Decode = D;
    type Encoder = JsonCodec<E, D>;
    type Decoder = JsonCodec<E, D>;

    fn encoder(&mut self) -> Self::Encoder {
        JsonCodec::default()
    }

    fn decoder(&mut self) -> Self::Decoder {
        JsonCodec::default()
    }
}

impl<E: Serialize, D> Encoder for JsonCodec<E, D> {
    type Item = E;
    type Error = Status;

    fn encode(&mut self, item: E, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        serde_json::to_writer(bytes::BufMut::writer(buffer), &item)
            .map_err(|error| Status::internal(error.to_string()))
    }
}

impl<E, D: DeserializeOwned> Decoder for JsonCodec<E, D> {
    type Item = D;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<D>, Status> {
        let read = serde_json::from_reader(bytes::Buf::reader(buffer));
        read.map(Some).map_err(|error| {
            Status::invalid_argument(format!("not understood ({error}): are both sides of the same release?"))
        })
    }
}

/// Answers an HTTP request; `begin` takes its stream.
pub async fn answer(
    request: hyper::Request<hyper::body::Incoming>,
    begin: impl Fn(Inbound, Queue) -> Result<(), Status> + Send + Sync,
) -> hyper::Response<Body> {
    if request.uri().path() != PATH {
        return Status::unimplemented("no such method").into_http();
    }
    let codec = JsonCodec::<ServerMessage, ClientMessage>::default();
    let mut grpc = Grpc::new(codec).apply_max_message_size_config(Some(MAX_MESSAGE), None);
    let session = tower::service_fn(|request: Request<Streaming<ClientMessage>>| {
        let (outbound, queue) = mpsc::channel(QUEUE_LEN);
        let begun = begin(Box::pin(request.into_inner()), outbound);
        std::future::ready(begun.map(|()| Response::new(ReceiverStream::new(queue))))
    });
    grpc.streaming(session, request).await
}
