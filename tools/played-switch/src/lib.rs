//! A played server of BFRuntime: it speaks the protocol of bf_switchd, holds entries and counters, and is no
//! switch. No packet passes, and no chip or model of one is behind it.
//!
//! It answers as the server of the SDE does where the client depends on it: subscription, one client of a
//! program, an error of each update in the details of the call's status, counters that are copied from the
//! chip by an operation.
#![forbid(unsafe_code)]

mod definitions;
mod proto;
mod tables;

use std::{
    collections::BTreeMap,
    io,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use prost::Message as _;
use prost_types::Any;
use tokio::{net::TcpListener, runtime::Runtime, sync::mpsc};
use tokio_stream::{Stream, wrappers::ReceiverStream};
use tonic::{
    Code, Request, Response, Status, Streaming, async_trait,
    transport::{Server, server::TcpIncoming},
};

pub use self::tables::Row;
use self::tables::Tables;
use crate::proto::{
    bfrt_proto::{
        Entity, Error, ForwardingPipelineConfig, GetForwardingPipelineConfigRequest,
        GetForwardingPipelineConfigResponse, NonP4Config, ReadRequest, ReadResponse,
        SetForwardingPipelineConfigRequest, SetForwardingPipelineConfigResponse,
        SetForwardingPipelineConfigResponseType, StreamMessageRequest, StreamMessageResponse, Subscribe,
        WriteRequest, WriteResponse,
        bf_runtime_server::{BfRuntime, BfRuntimeServer},
        entity,
        forwarding_pipeline_config::Profile,
        set_forwarding_pipeline_config_request::Action,
        stream_message_request, stream_message_response,
    },
    google::rpc,
};

/// The tables of the aggregator's program (p4/) that the control plane writes and reads, as the compiler
/// lists them.
pub const PROGRAM: &[u8] = include_bytes!("program.json");

/// The tables of a device that belong to no program: those of multicast and, in part, of queues.
const DEVICE: &[u8] = include_bytes!("device.json");

/// The memory of a played switch. It outlives its server, as that of a chip does when a connection breaks.
#[derive(Clone, Default)]
pub struct PlayedSwitch(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    programs: Vec<ForwardingPipelineConfig>,
    tables: Tables,
    /// Subscribed clients, and the program that each is bound to.
    clients: BTreeMap<u32, Option<String>>,
    /// The subscriptions of clients.
    streams: BTreeMap<u32, mpsc::Sender<Result<StreamMessageResponse, Status>>>,
    loaded: usize,
}

impl PlayedSwitch {
    /// Returns a switch that was started with a program of this name and bf-rt.json.
    ///
    /// # Errors
    /// When the file is none.
    pub fn with_program(name: &str, schema: &[u8]) -> Result<PlayedSwitch, serde_json::Error> {
        let profile = |name: &str, pipe_scope: &[u32]| Profile {
            profile_name: name.to_owned(),
            pipe_scope: pipe_scope.to_vec(),
            ..Profile::default()
        };
        let program = ForwardingPipelineConfig {
            p4_name: name.to_owned(),
            bfruntime_info: schema.to_vec(),
            profiles: vec![profile("front", &[0, 2, 3]), profile("slots", &[1])],
        };
        let switch = PlayedSwitch::default();
        switch.state().start(vec![program])?;
        Ok(switch)
    }

    /// Returns the entries of a table, by the last component of its name.
    #[must_use]
    pub fn rows(&self, table: &str) -> Vec<Row> {
        self.state().tables.rows(table)
    }

    /// Plays packets that a counter of the chip counts.
    pub fn count(&self, counter: &str, index: u32, packets: u64) {
        self.state().tables.count(counter, index, packets);
    }

    /// Returns how often a program was loaded through the protocol.
    #[must_use]
    pub fn loaded(&self) -> usize {
        self.state().loaded
    }

    /// Plays a load of the same programs by another client, which loses what the tables hold.
    ///
    /// # Errors
    /// When their files are none.
    pub fn load_again(&self) -> Result<(), serde_json::Error> {
        let mut state = self.state();
        let programs = state.programs.clone();
        state.start(programs)?;
        state.announce_load();
        Ok(())
    }

    /// Returns the numbers of the subscribed clients.
    #[must_use]
    pub fn clients(&self) -> Vec<u32> {
        self.state().clients.keys().copied().collect()
    }

    /// Subscribes a client of another control plane and binds it to a program.
    pub fn bind_another(&self, program: &str) {
        self.state().clients.insert(0, Some(program.to_owned()));
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn start(&mut self, programs: Vec<ForwardingPipelineConfig>) -> Result<(), serde_json::Error> {
        self.tables = Tables::default();
        self.tables.add(DEVICE)?;
        for program in &programs {
            self.tables.add(&program.bfruntime_info)?;
        }
        self.programs = programs;
        Ok(())
    }

    fn bind(&mut self, client: u32, configs: &[ForwardingPipelineConfig]) -> Result<(), Status> {
        let [config] = configs else {
            return Err(Status::invalid_argument("Exactly one config message required."));
        };
        let name = &config.p4_name;
        if let Some((other, _)) = self.clients.iter().find(|(_, program)| program.as_ref() == Some(name)) {
            let what =
                format!("Client ID {client} trying to bind but Client ID {other} already owns this P4");
            return Err(Status::already_exists(what));
        }
        if !self.programs.iter().any(|program| program.p4_name == *name) {
            return Err(Status::not_found(format!("Failed to find BfRtInfo for program {name}")));
        }
        *self.subscribed(client)? = Some(name.clone());
        Ok(())
    }

    fn load(&mut self, client: u32, configs: &[ForwardingPipelineConfig]) -> Result<(), Status> {
        self.subscribed(client)?;
        let is_whole = |config: &ForwardingPipelineConfig| {
            let profile = config.profiles.first();
            profile.is_some_and(|it| {
                !it.binary.is_empty() && !it.context.is_empty() && !it.pipe_scope.is_empty()
            })
        };
        if !configs.iter().all(is_whole) {
            return Err(Status::invalid_argument("Invalid device config sent"));
        }
        self.start(configs.to_vec()).map_err(|error| Status::invalid_argument(error.to_string()))?;
        self.loaded += 1;
        self.announce_load();
        Ok(())
    }

    /// Sends all clients, that which has loaded them too, that programs were loaded.
    fn announce_load(&self) {
        use SetForwardingPipelineConfigResponseType::{WarmInitFinished, WarmInitStarted};
        for (stream, kind) in
            self.streams.values().flat_map(|stream| [(stream, WarmInitStarted), (stream, WarmInitFinished)])
        {
            let finished = SetForwardingPipelineConfigResponse {
                set_forwarding_pipeline_config_response_type: kind.into(),
            };
            let update = Some(stream_message_response::Update::SetForwardingPipelineConfigResponse(finished));
            // A client that has gone needs none.
            let _ = stream.try_send(Ok(StreamMessageResponse { update }));
        }
    }

    fn subscribed(&mut self, client: u32) -> Result<&mut Option<String>, Status> {
        self.clients
            .get_mut(&client)
            .ok_or_else(|| Status::unavailable(format!("Unknown client. Client_id:{client}")))
    }

    fn bound(&mut self, client: u32) -> Result<&mut Tables, Status> {
        if self.subscribed(client)?.is_none() {
            return Err(Status::unknown("Unable to get bound_program Unexpected error"));
        }
        Ok(&mut self.tables)
    }
}

/// A running server of a played switch.
pub struct PlayedServer {
    address: SocketAddr,
    runtime: Option<Runtime>,
}

impl PlayedServer {
    /// Serves a switch on a local address; port 0: any.
    ///
    /// # Errors
    /// When there is no such socket.
    pub fn start(address: SocketAddr, switch: &PlayedSwitch) -> io::Result<PlayedServer> {
        // Clients of an earlier server are gone.
        switch.state().clients.retain(|client, _| *client == 0);
        switch.state().streams.clear();
        let runtime = Runtime::new()?;
        let listener = runtime.block_on(TcpListener::bind(address))?;
        let address = listener.local_addr()?;
        let server = Server::builder().add_service(BfRuntimeServer::new(switch.clone()));
        runtime.spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
        Ok(PlayedServer { address, runtime: Some(runtime) })
    }

    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for PlayedServer {
    /// Ends it at once, and with it all connections.
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(Duration::from_secs(5));
        }
    }
}

#[async_trait]
impl BfRuntime for PlayedSwitch {
    async fn write(&self, request: Request<WriteRequest>) -> Result<Response<WriteResponse>, Status> {
        let request = request.into_inner();
        let pipe = request.target.as_ref().map_or(0, |target| target.pipe_id);
        let mut state = self.state();
        let tables = state.bound(request.client_id)?;
        let results = request.updates.iter().map(|update| {
            match update.entity.as_ref().and_then(|it| it.entity.as_ref()) {
                Some(entity::Entity::TableEntry(entry)) => tables.change(pipe, update.r#type(), entry),
                Some(entity::Entity::TableOperation(operation)) => {
                    tables.operate(operation.table_id, &operation.table_operations_type)
                }
                None => Err(Error { canonical_code: Code::Unimplemented.into(), ..Error::default() }),
            }
        });
        report("Write Error Status", results.collect())?;
        Ok(Response::new(WriteResponse::default()))
    }

    type ReadStream = Box<dyn Stream<Item = Result<ReadResponse, Status>> + Send + Unpin>;

    async fn read(&self, request: Request<ReadRequest>) -> Result<Response<Self::ReadStream>, Status> {
        let request = request.into_inner();
        let mut state = self.state();
        let tables = state.bound(request.client_id)?;
        let mut entities = Vec::new();
        let results = request.entities.iter().map(|entity| {
            let Some(entity::Entity::TableEntry(entry)) = &entity.entity else {
                return Err(Error { canonical_code: Code::InvalidArgument.into(), ..Error::default() });
            };
            let found = tables.read(entry)?.into_iter();
            entities.extend(found.map(|entry| Entity { entity: Some(entity::Entity::TableEntry(entry)) }));
            Ok(())
        });
        let status = report("Read Error Status", results.collect());
        // It sends what it found, and the errors after it.
        let answer = Ok(ReadResponse { entities, status: Vec::new() });
        let answers: Vec<_> = [answer].into_iter().chain(status.err().map(Err)).collect();
        Ok(Response::new(Box::new(tokio_stream::iter(answers))))
    }

    async fn set_forwarding_pipeline_config(
        &self,
        request: Request<SetForwardingPipelineConfigRequest>,
    ) -> Result<Response<SetForwardingPipelineConfigResponse>, Status> {
        let request = request.into_inner();
        let mut state = self.state();
        match request.action() {
            Action::Bind => state.bind(request.client_id, &request.config)?,
            Action::VerifyAndWarmInitBeginAndEnd => state.load(request.client_id, &request.config)?,
            _ => return Err(Status::unimplemented("this played server binds and loads only")),
        }
        Ok(Response::new(SetForwardingPipelineConfigResponse::default()))
    }

    async fn get_forwarding_pipeline_config(
        &self,
        _: Request<GetForwardingPipelineConfigRequest>,
    ) -> Result<Response<GetForwardingPipelineConfigResponse>, Status> {
        let config = self.state().programs.clone();
        let non_p4_config = Some(NonP4Config { bfruntime_info: DEVICE.to_vec() });
        Ok(Response::new(GetForwardingPipelineConfigResponse { config, non_p4_config }))
    }

    type StreamChannelStream = ReceiverStream<Result<StreamMessageResponse, Status>>;

    async fn stream_channel(
        &self,
        request: Request<Streaming<StreamMessageRequest>>,
    ) -> Result<Response<Self::StreamChannelStream>, Status> {
        let (answers, messages) = mpsc::channel(4);
        let (switch, mut requests) = (self.clone(), request.into_inner());
        tokio::spawn(async move {
            let mut subscribed = None;
            while let Ok(Some(request)) = requests.message().await {
                let Some(stream_message_request::Update::Subscribe(_)) = request.update else { continue };
                if switch.state().clients.contains_key(&request.client_id) {
                    let refused = Status::invalid_argument("Can't have two clients with the same client id");
                    let _ = answers.send(Err(refused)).await;
                    break;
                }
                switch.state().clients.insert(request.client_id, None);
                switch.state().streams.insert(request.client_id, answers.clone());
                subscribed = Some(request.client_id);
                let status = Some(rpc::Status::default());
                let answer = Subscribe { status, ..Subscribe::default() };
                let update = Some(stream_message_response::Update::Subscribe(answer));
                let _ = answers.send(Ok(StreamMessageResponse { update })).await;
            }
            if let Some(client) = subscribed {
                switch.state().clients.remove(&client);
                switch.state().streams.remove(&client);
            }
        });
        Ok(Response::new(ReceiverStream::new(messages)))
    }
}

/// The status of a call: all errors as its details, up to the last, with success between them.
fn report(message: &str, results: Vec<Result<(), Error>>) -> Result<(), Status> {
    let Some(last) = results.iter().rposition(Result::is_err) else { return Ok(()) };
    let details = results.into_iter().take(last + 1).map(|result| Any {
        type_url: "type.googleapis.com/bfrt_proto.Error".into(),
        value: result.err().unwrap_or_default().encode_to_vec(),
    });
    let code = Code::Unknown;
    let status = rpc::Status { code: code.into(), message: message.into(), details: details.collect() };
    Err(Status::with_details(code, message, status.encode_to_vec().into()))
}
