//! A connection to BFRuntime, subscribed and bound to the program.

use std::{
    error::Error as _,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::mpsc,
    time::{self, Instant},
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request, Status, Streaming, transport::Channel};

use crate::{
    proto::bfrt_proto::{
        Entity, Error, ForwardingPipelineConfig, GetForwardingPipelineConfigRequest,
        GetForwardingPipelineConfigResponse, ReadRequest, SetForwardingPipelineConfigRequest,
        StreamMessageRequest, StreamMessageResponse, Subscribe, TableEntry, TargetDevice, Update,
        WriteRequest,
        bf_runtime_client::BfRuntimeClient,
        entity,
        set_forwarding_pipeline_config_request::{Action, DevInitMode},
        stream_message_request, stream_message_response,
    },
    sizes::Compiled,
    target::SwitchError,
};

use super::{
    options::Options,
    pipeline::{self, Pipeline},
    schema::Schema,
    status,
};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const CALL_TIMEOUT: Duration = Duration::from_secs(30);
/// Loading a program restarts the chip.
const LOAD_TIMEOUT: Duration = Duration::from_secs(120);
/// The server may not have noticed yet that the client before is gone.
const BIND_TIMEOUT: Duration = Duration::from_secs(2);
const BIND_INTERVAL: Duration = Duration::from_millis(50);
/// The switch sends the program's files as well.
const LARGEST_MESSAGE: usize = 256 << 20;
/// An error per update comes in the trailers of a call.
const LARGEST_HEADERS: u32 = 16 << 20;
/// Updates in a call, so that their errors fit its trailers.
const BATCH: usize = 512;
/// The server encodes a client's number in 24 bits of its cookies.
const CLIENT_IDS: std::ops::Range<u32> = 1..1 << 24;
/// All of a device: pipes, directions and parsers.
const PIPES: u32 = 0xffff;
const DIRECTIONS: u32 = 0xff;
const PARSERS: u32 = 0xff;

/// The reason that updates were not all applied.
pub enum WriteError {
    /// The switch refuses the update of this index.
    Update(usize, Error),
    Call(SwitchError),
}

impl WriteError {
    /// Returns the error of updates that are one to their caller.
    pub fn of_all(self, doing: &str) -> SwitchError {
        match self {
            WriteError::Update(_, error) => status::refused(doing, &error),
            WriteError::Call(error) => error,
        }
    }
}

pub struct Session {
    client: BfRuntimeClient<Channel>,
    id: u32,
    device: u32,
    address: String,
    /// The tables of the program, and of the device.
    pub schema: Arc<Schema>,
    /// The sizes that the program was compiled with.
    pub compiled: Compiled,
    /// The pipe through which what comes from the slots goes.
    pub front_pipe: Option<u32>,
    /// Whether the server has ended the subscription.
    ended: Arc<AtomicBool>,
    /// Open for as long as the client is subscribed.
    _subscription: mpsc::Sender<StreamMessageRequest>,
}

impl Session {
    /// Connects, subscribes, loads the program if it is not there and files are given, and binds to it.
    pub async fn open(options: &Options) -> Result<Session, SwitchError> {
        let (mut session, mut config) = Session::subscribed(options).await?;
        if let Some(pipeline) = options.pipeline.as_ref().filter(|pipeline| !pipeline.is_on(&config)) {
            // Another control plane may be bound to the program of this name: it keeps it.
            if pipeline.is_named_on(&config) {
                session.bind(pipeline.program()).await?;
            }
            session.load(pipeline).await?;
            // A load ends all sessions.
            drop(session);
            (session, config) = Session::subscribed(options).await?;
            if !pipeline.is_on(&config) {
                return Err(session.away(
                    "it lists other files of the program than those that it has just loaded; start its \
                    bf_switchd with the program, and leave --pipeline out"
                        .into(),
                ));
            }
        }
        let program = session.program_of(&config, options.program.as_deref())?;
        let schema = session.schema_of(&config, program)?;
        session.compiled = pipeline::compiled(program, &schema)?;
        // The file is sure to have the order of the pipes as it was written.
        let given = options.pipeline.as_ref().filter(|pipeline| pipeline.program() == program.p4_name);
        let given = given.and_then(Pipeline::front_pipe);
        session.front_pipe = given.or_else(|| pipeline::front_pipe(program));
        session.schema = Arc::new(schema);
        session.bind(&program.p4_name).await?;
        tracing::info!(switch = session.address, program = program.p4_name, "bound to the program");
        Ok(session)
    }

    /// Connects and subscribes, and returns the switch's programs.
    async fn subscribed(
        options: &Options,
    ) -> Result<(Session, GetForwardingPipelineConfigResponse), SwitchError> {
        let address = options.address.clone();
        let connect = |what: String| SwitchError::Connect { address: address.clone(), what };
        let endpoint = Channel::from_shared(format!("http://{address}"));
        let endpoint = endpoint.map_err(|error| connect(error.to_string()))?;
        // No HTTP/2 pings: gRPC's C++ servers take frequent ones for an attack.
        let endpoint = endpoint
            .connect_timeout(CONNECT_TIMEOUT)
            .tcp_keepalive(Some(CALL_TIMEOUT))
            .http2_max_header_list_size(LARGEST_HEADERS);
        let channel = endpoint.connect().await.map_err(|error| connect(status::chain(&error)))?;
        let client = BfRuntimeClient::new(channel)
            .max_decoding_message_size(LARGEST_MESSAGE)
            .max_encoding_message_size(LARGEST_MESSAGE);
        let id = rand::random_range(CLIENT_IDS);
        let (subscription, requests) = mpsc::channel(1);
        let mut session = Session {
            client,
            id,
            device: options.device,
            address,
            schema: Arc::default(),
            compiled: Compiled::default(),
            front_pipe: None,
            ended: Arc::default(),
            _subscription: subscription.clone(),
        };
        let messages = session.subscribe(&subscription, requests).await?;
        tokio::spawn(watch(messages, session.ended.clone()));
        let config = session.programs().await?;
        Ok((session, config))
    }

    pub fn is_open(&self) -> bool {
        !self.ended.load(Ordering::Acquire)
    }

    async fn subscribe(
        &mut self,
        subscription: &mpsc::Sender<StreamMessageRequest>,
        requests: mpsc::Receiver<StreamMessageRequest>,
    ) -> Result<Streaming<StreamMessageResponse>, SwitchError> {
        let subscribe = Subscribe { device_id: self.device, ..Subscribe::default() };
        let update = Some(stream_message_request::Update::Subscribe(subscribe));
        // The server answers when it has the message, so it is sent first.
        let _ = subscription.try_send(StreamMessageRequest { client_id: self.id, update });
        let first = async {
            let mut messages = self.client.stream_channel(ReceiverStream::new(requests)).await?.into_inner();
            let first = messages.message().await?;
            Ok::<_, Status>((messages, first))
        };
        let answer = time::timeout(CALL_TIMEOUT, first).await;
        let answer = answer.map_err(|_| self.away("it does not answer a subscription".into()))?;
        let (messages, first) = answer.map_err(|status| self.away(status::text(&status)))?;
        match first.and_then(|message| message.update) {
            Some(stream_message_response::Update::Subscribe(subscribed)) => match subscribed.status {
                Some(status) if status.code != 0 => Err(self.away(status.message)),
                _ => Ok(messages),
            },
            _ => Err(self.away("it answers a subscription with another message".into())),
        }
    }

    async fn programs(&mut self) -> Result<GetForwardingPipelineConfigResponse, SwitchError> {
        let request = GetForwardingPipelineConfigRequest { device_id: self.device, client_id: self.id };
        let answer = self.client.get_forwarding_pipeline_config(timed(request, CALL_TIMEOUT)).await;
        let answer = answer.map_err(|status| self.failed("reading the switch's programs", &status))?;
        Ok(answer.into_inner())
    }

    /// Loads the program in place of all of the device's. Its entries and registers are lost.
    async fn load(&mut self, pipeline: &Pipeline) -> Result<(), SwitchError> {
        tracing::info!(switch = self.address, file = pipeline.file(), "loading the program");
        let request = self.config_request(Action::VerifyAndWarmInitBeginAndEnd, pipeline.config());
        let answer = self.client.set_forwarding_pipeline_config(timed(request, LOAD_TIMEOUT)).await;
        answer.map(drop).map_err(|status| match self.failed("loading the program", &status) {
            SwitchError::Refused { what, .. } => {
                SwitchError::PipelineRefused { file: pipeline.file().to_owned(), what }
            }
            other => other,
        })
    }

    async fn bind(&mut self, program: &str) -> Result<(), SwitchError> {
        let config =
            ForwardingPipelineConfig { p4_name: program.to_owned(), ..ForwardingPipelineConfig::default() };
        let request = self.config_request(Action::Bind, config);
        let deadline = Instant::now() + BIND_TIMEOUT;
        loop {
            let answer =
                self.client.set_forwarding_pipeline_config(timed(request.clone(), CALL_TIMEOUT)).await;
            let Err(status) = answer else { return Ok(()) };
            if status.code() != Code::AlreadyExists {
                return Err(self.failed("binding to the program", &status));
            }
            if Instant::now() > deadline {
                let (address, program) = (self.address.clone(), program.to_owned());
                return Err(SwitchError::Bound { address, program, what: status::text(&status) });
            }
            time::sleep(BIND_INTERVAL).await;
        }
    }

    fn config_request(
        &self,
        action: Action,
        config: ForwardingPipelineConfig,
    ) -> SetForwardingPipelineConfigRequest {
        SetForwardingPipelineConfigRequest {
            device_id: self.device,
            client_id: self.id,
            action: action.into(),
            dev_init_mode: DevInitMode::FastReconfig.into(),
            base_path: String::new(),
            config: vec![config],
        }
    }

    /// Returns the program of this name, or the only one that the switch runs.
    fn program_of<'a>(
        &self,
        config: &'a GetForwardingPipelineConfigResponse,
        name: Option<&str>,
    ) -> Result<&'a ForwardingPipelineConfig, SwitchError> {
        // The server lists what belongs to no program under such a name, too.
        let programs: Vec<_> =
            config.config.iter().filter(|config| !config.p4_name.starts_with('$')).collect();
        match (name, &programs[..]) {
            (None, [only]) => return Ok(only),
            (None, _) => {}
            (Some(name), _) => {
                if let Some(named) = programs.iter().find(|config| config.p4_name == name) {
                    return Ok(named);
                }
            }
        }
        let names: Vec<&str> = programs.iter().map(|config| config.p4_name.as_str()).collect();
        let what = match name {
            Some(name) => format!("it runs {names:?} and not `{name}`"),
            None => format!("it runs {names:?}: say which with --program"),
        };
        let load = "start its bf_switchd with the program, or give its configuration with --pipeline FILE";
        Err(self.away(format!("{what}; {load}")))
    }

    /// Returns the tables of the program and of the device.
    fn schema_of(
        &self,
        config: &GetForwardingPipelineConfigResponse,
        program: &ForwardingPipelineConfig,
    ) -> Result<Schema, SwitchError> {
        let parse = |json: &[u8], of: &str| {
            Schema::parse(json)
                .map_err(|error| self.away(format!("its bf-rt.json of {of} cannot be read: {error}")))
        };
        let mut schema = parse(&program.bfruntime_info, &program.p4_name)?;
        if let Some(device) = &config.non_p4_config {
            schema.tables.extend(parse(&device.bfruntime_info, "the device")?.tables);
        }
        Ok(schema)
    }

    /// Applies updates in their order, and reports the first that the switch refuses; those behind it may be
    /// applied.
    pub async fn write(&mut self, updates: Vec<Update>) -> Result<(), WriteError> {
        self.write_to(PIPES, updates).await
    }

    /// Applies updates of tables that each pipe has for itself.
    pub async fn write_to(&mut self, pipe: u32, updates: Vec<Update>) -> Result<(), WriteError> {
        let mut done = 0;
        let mut updates = updates.into_iter();
        loop {
            let batch: Vec<Update> = updates.by_ref().take(BATCH).collect();
            if batch.is_empty() {
                return Ok(());
            }
            let length = batch.len();
            let request = WriteRequest {
                target: Some(self.target(pipe)),
                client_id: self.id,
                updates: batch,
                ..WriteRequest::default()
            };
            if let Err(status) = self.client.write(timed(request, CALL_TIMEOUT)).await {
                return Err(match status::first_refused(&status) {
                    Some((index, error)) => WriteError::Update(done + index, error),
                    None => WriteError::Call(self.failed("writing to the switch", &status)),
                });
            }
            done += length;
        }
    }

    /// Reads the entries of these keys, or all entries of a table for one without a key.
    pub async fn read(
        &mut self,
        entries: Vec<TableEntry>,
        doing: &str,
    ) -> Result<Vec<TableEntry>, SwitchError> {
        let entities =
            entries.into_iter().map(|entry| Entity { entity: Some(entity::Entity::TableEntry(entry)) });
        let request = ReadRequest {
            target: Some(self.target(PIPES)),
            client_id: self.id,
            entities: entities.collect(),
            p4_name: String::new(),
        };
        let stream = self.client.read(timed(request, CALL_TIMEOUT)).await;
        let mut stream = stream.map_err(|status| self.refused_read(doing, &status))?.into_inner();
        let mut found = Vec::new();
        while let Some(answer) = stream.message().await.map_err(|status| self.refused_read(doing, &status))? {
            found.extend(answer.entities.into_iter().filter_map(|entity| match entity.entity {
                // Not an entry that was written.
                Some(entity::Entity::TableEntry(entry)) if !entry.is_default_entry => Some(entry),
                _ => None,
            }));
        }
        Ok(found)
    }

    fn refused_read(&self, doing: &str, status: &Status) -> SwitchError {
        match status::first_refused(status) {
            Some((_, error)) => status::refused(doing, &error),
            None => self.failed(doing, status),
        }
    }

    /// The error of a call that failed as a whole. The next call is made on another connection if this one is
    /// broken.
    fn failed(&self, doing: &str, status: &Status) -> SwitchError {
        let what = status::text(status);
        match status.code() {
            Code::Unavailable | Code::Cancelled | Code::DeadlineExceeded => {
                self.away(format!("{doing}: {what}"))
            }
            // It is not the server's.
            _ if status.source().is_some() => self.away(format!("{doing}: {what}")),
            _ => SwitchError::Refused { doing: doing.to_owned(), what },
        }
    }

    fn away(&self, what: String) -> SwitchError {
        self.ended.store(true, Ordering::Release);
        SwitchError::Away { address: self.address.clone(), what }
    }

    fn target(&self, pipe_id: u32) -> TargetDevice {
        TargetDevice { device_id: self.device, pipe_id, direction: DIRECTIONS, prsr_id: PARSERS }
    }
}

/// Reads the subscription until the server ends it, or sends that a program is loaded: tables are then empty,
/// and have other numbers.
async fn watch(mut messages: Streaming<StreamMessageResponse>, ended: Arc<AtomicBool>) {
    while let Ok(Some(message)) = messages.message().await {
        if let Some(stream_message_response::Update::SetForwardingPipelineConfigResponse(_)) = message.update
        {
            break;
        }
    }
    ended.store(true, Ordering::Release);
}

fn timed<T>(message: T, timeout: Duration) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(timeout);
    request
}
