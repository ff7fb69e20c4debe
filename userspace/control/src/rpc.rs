//! The one gRPC method of the control channel: a stream of JSON messages in each direction.

use std::{convert::Infallible, marker::PhantomData, sync::Arc, task};

use serde::{Serialize, de::DeserializeOwned};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{
    Request, Response, Status, Streaming,
    body::Body,
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
    codegen::{BoxFuture, Service, StdError, http},
    server::{Grpc, NamedService, StreamingService},
};

use crate::message::{ClientMessage, ServerMessage};

/// The method's path.
pub const PATH: &str = "/sumac.Control/Session";
/// The longest message: a report of as many operations as are outstanding.
pub const MAX_MESSAGE: usize = 2 << 20;

/// The messages of one direction, as they are sent.
pub type Sending<T> = ReceiverStream<Result<T, Status>>;

/// JSON, with serde.
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

/// Serves sessions.
pub trait SessionHandler: Send + Sync + 'static {
    /// Accepts a stream, and returns the one in the other direction.
    fn session(&self, request: Request<Streaming<ClientMessage>>) -> Result<Sending<ServerMessage>, Status>;
}

/// A [`SessionHandler`] as a service.
pub struct SessionService<H>(pub Arc<H>);

impl<H> Clone for SessionService<H> {
    fn clone(&self) -> SessionService<H> {
        SessionService(self.0.clone())
    }
}

impl<H> NamedService for SessionService<H> {
    const NAME: &'static str = "sumac.Control";
}

impl<H: SessionHandler> StreamingService<ClientMessage> for SessionService<H> {
    type Response = ServerMessage;
    type ResponseStream = Sending<ServerMessage>;
    type Future = BoxFuture<Response<Self::ResponseStream>, Status>;

    fn call(&mut self, request: Request<Streaming<ClientMessage>>) -> Self::Future {
        let stream = self.0.session(request).map(Response::new);
        Box::pin(async { stream })
    }
}

impl<H, B> Service<http::Request<B>> for SessionService<H>
where
    H: SessionHandler,
    B: http_body::Body + Send + 'static,
    B::Error: Into<StdError> + Send + 'static,
{
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Infallible>;

    fn poll_ready(&mut self, _: &mut task::Context<'_>) -> task::Poll<Result<(), Infallible>> {
        task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        let service = self.clone();
        Box::pin(async move {
            if request.uri().path() != PATH {
                return Ok(Status::unimplemented("no such method").into_http());
            }
            let codec = JsonCodec::<ServerMessage, ClientMessage>::default();
            let mut grpc = Grpc::new(codec).apply_max_message_size_config(Some(MAX_MESSAGE), None);
            Ok(grpc.streaming(service, request).await)
        })
    }
}
