//! The session with a P4Runtime server: connection, arbitration, the program; again whenever the server comes
//! back.

use std::{error::Error, time::Duration};

use tokio::{
    sync::{mpsc, watch},
    time::{self, MissedTickBehavior},
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{
    Code, Status,
    transport::{Channel, Endpoint},
};

use super::program::Program;
use crate::{
    proto::p4::v1::{
        ForwardingPipelineConfig, GetForwardingPipelineConfigRequest, MasterArbitrationUpdate,
        SetForwardingPipelineConfigRequest, StreamMessageRequest, Uint128,
        forwarding_pipeline_config::Cookie, get_forwarding_pipeline_config_request::ResponseType,
        p4_runtime_client::P4RuntimeClient, set_forwarding_pipeline_config_request::Action,
        stream_message_request, stream_message_response,
    },
    target::{Binding, SwitchError},
};

pub type Client = P4RuntimeClient<Channel>;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The time that a server may take for a call.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(30);
/// Pause between two attempts.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);
/// A load of the program may take long: it is compiled on the way to some targets.
const LOAD_TIMEOUT: Duration = Duration::from_secs(120);
/// Between two calls that find out whether the server still answers. HTTP/2 pings would not do: gRPC's C++
/// servers end connections on which they come often.
const PROBE_INTERVAL: Duration = Duration::from_secs(10);
/// The largest answer: all entries of a table.
const LONGEST_ANSWER: usize = 64 << 20;

/// The server, and this control plane's place among those that would be its primary.
#[derive(Clone, Debug)]
pub struct Server {
    /// `http://HOST:PORT`.
    pub address: String,
    pub device: u64,
    /// The control plane with the largest number is the primary.
    pub election: u64,
}

impl Server {
    pub fn election_id(&self) -> Option<Uint128> {
        Some(Uint128 { high: 0, low: self.election })
    }

    fn away(&self, what: impl ToString) -> SwitchError {
        SwitchError::Away { address: self.address.clone(), what: what.to_string() }
    }

    /// Returns the error of a call that the server did not execute.
    pub fn refused(&self, doing: impl Into<String>, status: &Status) -> SwitchError {
        match status.code() {
            Code::Unavailable | Code::Cancelled | Code::DeadlineExceeded => self.away(status.message()),
            Code::PermissionDenied => self.not_primary(),
            // It is not the server's: the connection broke.
            _ if status.source().is_some() => self.away(status.message()),
            code => {
                SwitchError::Refused { doing: doing.into(), what: format!("{code:?}: {}", status.message()) }
            }
        }
    }

    fn not_primary(&self) -> SwitchError {
        SwitchError::NotPrimary { address: self.address.clone(), device: self.device }
    }
}

#[derive(Clone, Debug)]
pub enum State {
    Away(SwitchError),
    /// The server loads the program of this file.
    Loading(String),
    /// This control plane is the primary, and the program is loaded.
    Ready {
        client: Client,
        /// The instance is the cookie of the program's load.
        binding: Binding,
    },
}

/// Keeps a session, until the task is aborted.
pub async fn keep(server: Server, program: Program, state: watch::Sender<State>) {
    let mut session = 0;
    loop {
        let Err(error) = run(&server, &program, &state, &mut session).await;
        // Once, not at each attempt.
        let is_new = !matches!(&*state.borrow(), State::Away(known) if *known == error);
        if is_new {
            tracing::warn!(%error, "no session with the switch; trying again");
        }
        state.send_replace(State::Away(error));
        time::sleep(RETRY_INTERVAL).await;
    }
}

enum Never {}

/// Runs a session until it ends, which is an error. Increases `session` when this control plane becomes the
/// primary.
async fn run(
    server: &Server,
    program: &Program,
    state: &watch::Sender<State>,
    session: &mut u64,
) -> Result<Never, SwitchError> {
    let connecting = |error: tonic::transport::Error| SwitchError::Connect {
        address: server.address.clone(),
        what: with_sources(&error),
    };
    let endpoint = Endpoint::from_shared(server.address.clone()).map_err(connecting)?;
    let channel = endpoint.connect_timeout(CONNECT_TIMEOUT).connect().await.map_err(connecting)?;
    let mut client = Client::new(channel).max_decoding_message_size(LONGEST_ANSWER);

    let (requests, queue) = mpsc::channel(2);
    let ended = |_| server.away("the stream has ended");
    requests.send(arbitration(server)).await.map_err(ended)?;
    let stream = client.stream_channel(ReceiverStream::new(queue)).await;
    let mut answers = stream.map_err(|status| server.refused("opening the stream", &status))?.into_inner();
    let mut probes = time::interval(PROBE_INTERVAL);
    probes.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let answer = tokio::select! {
            answer = answers.message() => answer.map_err(|status| server.away(status.message()))?,
            _ = probes.tick() => {
                running(server, &mut client).await?;
                continue;
            }
        };
        let answer = answer.ok_or_else(|| server.away("the server has closed the stream"))?;
        let Some(stream_message_response::Update::Arbitration(update)) = answer.update else { continue };
        match update.status.map_or(0, |status| status.code) {
            0 => {
                let instance = load(server, program, &mut client, state).await?;
                *session += 1;
                tracing::info!(
                    address = server.address,
                    device = server.device,
                    instance,
                    "primary of the switch"
                );
                let binding = Binding { instance, session: *session };
                state.send_replace(State::Ready { client: client.clone(), binding });
            }
            code => {
                state.send_replace(State::Away(server.not_primary()));
                // There is no primary: the other has gone.
                if code == Code::NotFound as i32 {
                    time::sleep(RETRY_INTERVAL).await;
                    requests.send(arbitration(server)).await.map_err(ended)?;
                }
            }
        }
    }
}

fn arbitration(server: &Server) -> StreamMessageRequest {
    let update = MasterArbitrationUpdate {
        device_id: server.device,
        election_id: server.election_id(),
        ..MasterArbitrationUpdate::default()
    };
    StreamMessageRequest { update: Some(stream_message_request::Update::Arbitration(update)) }
}

/// Returns the cookie of the program that the switch runs; none: there is none.
async fn running(server: &Server, client: &mut Client) -> Result<Option<u64>, SwitchError> {
    let asked = GetForwardingPipelineConfigRequest {
        device_id: server.device,
        response_type: ResponseType::CookieOnly.into(),
    };
    let answer = time::timeout(CALL_TIMEOUT, client.get_forwarding_pipeline_config(asked)).await;
    let answer = answer.map_err(|_| server.away("it does not answer"))?;
    match answer {
        Ok(answer) => {
            Ok(answer.into_inner().config.and_then(|config| config.cookie).map(|cookie| cookie.cookie))
        }
        Err(status) if status.code() == Code::FailedPrecondition || status.code() == Code::NotFound => {
            Ok(None)
        }
        Err(status) => Err(server.refused("asking for the program", &status)),
    }
}

/// Loads the program, unless it is the one that runs: then jobs go on. Returns the cookie of its load.
async fn load(
    server: &Server,
    program: &Program,
    client: &mut Client,
    state: &watch::Sender<State>,
) -> Result<u64, SwitchError> {
    let fingerprint = program.fingerprint();
    let running = running(server, client).await?;
    if let Some(cookie) = running.filter(|cookie| (cookie >> 32) as u32 == fingerprint) {
        return Ok(cookie);
    }
    tracing::info!(address = server.address, file = program.file, "loading the program");
    state.send_replace(State::Loading(program.file.clone()));
    let cookie = u64::from(fingerprint) << 32 | u64::from(rand::random::<u32>());
    let config = ForwardingPipelineConfig {
        p4info: Some(program.info.clone()),
        p4_device_config: program.compiled.clone(),
        cookie: Some(Cookie { cookie }),
    };
    let request = SetForwardingPipelineConfigRequest {
        device_id: server.device,
        election_id: server.election_id(),
        action: Action::VerifyAndCommit.into(),
        config: Some(config),
        ..SetForwardingPipelineConfigRequest::default()
    };
    let refused = |what: String| SwitchError::PipelineRefused { file: program.file.clone(), what };
    let loaded = time::timeout(LOAD_TIMEOUT, client.set_forwarding_pipeline_config(request)).await;
    match loaded {
        Err(_) => {
            let (file, seconds) = (&program.file, LOAD_TIMEOUT.as_secs());
            Err(server.away(format!("it has not loaded the program of {file} within {seconds} s")))
        }
        Ok(Err(status)) => match server.refused("loading the program", &status) {
            SwitchError::Refused { what, .. } => Err(refused(what)),
            other => Err(other),
        },
        Ok(Ok(_)) => {
            tracing::info!(file = program.file, "the switch runs the program");
            Ok(cookie)
        }
    }
}

fn with_sources(error: &dyn Error) -> String {
    let sources = std::iter::successors(Some(error), |error| (*error).source());
    let mut texts: Vec<_> = sources.map(ToString::to_string).collect();
    // The transport repeats itself.
    texts.dedup();
    texts.join(": ")
}
