//! One authenticated conversation with an aggregator.

use std::{net::SocketAddr, time::Duration};

use prost::Message;
use thiserror::Error;
use tokio::time::timeout;
use tonic::{
    Code, Request,
    transport::{Channel, Endpoint},
};

use super::JoinSpec;
use crate::{
    JobFailure, Refused, convert,
    coordinator::{Grant, Outcome},
    rpc::{self, control_client::ControlClient, status_reply},
    seal::{Key, NONCE_LEN, Purpose},
};

/// Why a call brought no authentic answer.
#[derive(Debug, Error)]
pub enum CallError {
    /// Nobody there, or no answer in time.
    #[error("{0}")]
    Unreachable(String),
    /// Turned away. Anybody could have said so: the answer has no MAC.
    #[error("{0}")]
    Denied(String),
    /// An answer with a wrong MAC.
    #[error("the answer is not authentic")]
    NotAuthentic,
    /// An authentic answer that cannot be read.
    #[error("{0}")]
    Nonsense(&'static str),
}

/// How things stand.
#[derive(Debug)]
pub enum News {
    /// These ranks are missing.
    Waiting(Vec<u16>),
    /// Go.
    Running(Grant),
    /// It will not start.
    Refused(Refused),
    /// It has ended.
    Failed(JobFailure),
    /// This worker has left.
    Left,
}

/// A membership's conversation.
pub struct Session {
    client: ControlClient<Channel>,
    key: Key,
    id: u64,
    counter: u64,
    revision: u64,
    /// Whom it is with.
    pub endpoint: SocketAddr,
}

impl Session {
    /// Connects, asks for a cookie, and joins with it.
    pub async fn enter(
        endpoint: SocketAddr,
        spec: &JoinSpec,
        deadline: Duration,
        nonce: [u8; NONCE_LEN],
    ) -> Result<(Session, News), CallError> {
        let mut client = connect(endpoint).await?;
        let asked = client.challenge(rpc::ChallengeRequest { version: crate::PROTOCOL_VERSION }).await;
        let cookie = asked.map_err(call_error)?.into_inner().cookie;
        let key = Key::session(&spec.secret, &spec.job, &cookie, &nonce);
        let body = join_request(spec, deadline, cookie, nonce).encode_to_vec();
        let sealed = Key::join(&spec.secret, &spec.job).seal(Purpose::Join, body);
        let reply = client.join(sealed).await.map_err(call_error)?;
        let mut session = Session { client, key, id: 0, counter: 0, revision: 0, endpoint };
        let reply = session.open(&reply.into_inner())?;
        session.id = reply.session;
        let news = session.read(reply)?;
        Ok((session, news))
    }

    /// A sign of life. Answered as soon as there is news, or after half a second.
    pub async fn heartbeat(&mut self, patience: Duration) -> Result<News, CallError> {
        let sealed = self.request(Purpose::Heartbeat, None);
        let call = timeout(patience, self.client.heartbeat(sealed)).await;
        let reply = call.map_err(|_| no_answer())?.map_err(call_error)?;
        let reply = self.open(&reply.into_inner())?;
        self.read(reply)
    }

    /// Leaves.
    pub async fn leave(&mut self, outcome: &Outcome, patience: Duration) -> Result<(), CallError> {
        let reason = match outcome {
            Outcome::Done => String::new(),
            Outcome::Failed(reason) if reason.is_empty() => "for no stated reason".into(),
            Outcome::Failed(reason) => reason.clone(),
        };
        let sealed = self.request(Purpose::Leave, Some(rpc::Leave { reason }));
        let call = timeout(patience, self.client.leave(sealed)).await;
        let reply = call.map_err(|_| no_answer())?.map_err(call_error)?;
        self.open(&reply.into_inner()).map(|_| ())
    }

    fn request(&mut self, purpose: Purpose, leave: Option<rpc::Leave>) -> Request<rpc::Sealed> {
        self.counter += 1;
        let request =
            rpc::SessionRequest { session: self.id, counter: self.counter, revision: self.revision, leave };
        Request::new(self.key.seal(purpose, request.encode_to_vec()))
    }

    /// Checks that an answer is authentic and to the last request.
    fn open(&self, sealed: &rpc::Sealed) -> Result<rpc::StatusReply, CallError> {
        let body = self.key.open(Purpose::Reply, sealed).map_err(|_| CallError::NotAuthentic)?;
        let reply = rpc::StatusReply::decode(body).map_err(|_| CallError::Nonsense("cannot be decoded"))?;
        if reply.counter != self.counter {
            return Err(CallError::NotAuthentic);
        }
        Ok(reply)
    }

    fn read(&mut self, reply: rpc::StatusReply) -> Result<News, CallError> {
        self.revision = reply.revision;
        Ok(match reply.status.ok_or(CallError::Nonsense("no status"))? {
            status_reply::Status::Waiting(waiting) => News::Waiting(convert::narrow(&waiting.missing)),
            status_reply::Status::Running(running) => {
                let grant = convert::grant(&self.key, &running);
                News::Running(grant.ok_or(CallError::Nonsense("a grant with a field out of range"))?)
            }
            status_reply::Status::Refused(refusal) => News::Refused(convert::read_refusal(refusal)),
            status_reply::Status::Failed(failure) => News::Failed(convert::read_failure(failure)),
            status_reply::Status::Left(_) => News::Left,
        })
    }
}

async fn connect(endpoint: SocketAddr) -> Result<ControlClient<Channel>, CallError> {
    let channel = Endpoint::from_shared(format!("http://{endpoint}"))
        .map_err(|error| CallError::Unreachable(with_causes(&error)))?
        .tcp_nodelay(true)
        .connect_timeout(Duration::from_secs(1))
        .connect()
        .await
        .map_err(|error| CallError::Unreachable(with_causes(&error)))?;
    Ok(ControlClient::new(channel))
}

fn join_request(
    spec: &JoinSpec,
    deadline: Duration,
    cookie: Vec<u8>,
    nonce: [u8; NONCE_LEN],
) -> rpc::JoinRequest {
    rpc::JoinRequest {
        version: crate::PROTOCOL_VERSION,
        cookie,
        nonce: nonce.to_vec(),
        job: spec.job.clone(),
        rank: spec.rank.into(),
        world: spec.world.into(),
        elements: spec.elements.into(),
        slots: spec.slots,
        scale: spec.scale,
        checksum: spec.checksum,
        data_ip: spec.data_ip.to_bits(),
        data_port: spec.data_port.into(),
        mac: spec.mac.to_vec(),
        deadline_ms: deadline.as_millis().try_into().unwrap_or(u64::MAX),
    }
}

fn call_error(status: tonic::Status) -> CallError {
    match status.code() {
        Code::Unauthenticated
        | Code::PermissionDenied
        | Code::InvalidArgument
        | Code::NotFound
        | Code::FailedPrecondition => CallError::Denied(status.message().into()),
        Code::Unimplemented => CallError::Denied("it is no Sumac control plane of this version".into()),
        _ => CallError::Unreachable(with_causes(&status)),
    }
}

fn no_answer() -> CallError {
    CallError::Unreachable("no answer".into())
}

/// The innermost cause says most: "connection refused" stands below two "transport error"s.
fn with_causes(error: &dyn std::error::Error) -> String {
    let innermost = std::iter::successors(Some(error), |error| error.source()).last();
    innermost.unwrap_or(error).to_string()
}
