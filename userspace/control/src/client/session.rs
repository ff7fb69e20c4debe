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
    Assignment, JobFailure, Refused, convert,
    coordinator::{Event, Grant, Outcome, Post},
    rpc::{self, control_client::ControlClient, status_reply},
    seal::{Key, NONCE_LEN, Purpose},
};

/// What a request was turned away for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DenialKind {
    /// Its MAC was made with another secret.
    Secret,
    /// It came too late, or twice: a new one is good.
    Stale,
    /// It is of a conversation that nobody knows there.
    Unknown,
    /// It was not understood, or cannot be served here.
    Request,
}

/// Why a call brought no authentic answer.
#[derive(Debug, Error)]
pub enum CallError {
    /// Nobody there, or no answer in time.
    #[error("{0}")]
    Unreachable(String),
    /// Turned away. Anybody could have said so: the answer has no MAC.
    #[error("{why}")]
    Denied {
        /// What is to be done about it.
        kind: DenialKind,
        /// What was said.
        why: String,
    },
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

/// How things stand, and what has happened since the last answer.
#[derive(Debug)]
pub struct Answer {
    /// How things stand.
    pub news: News,
    /// What was not heard before, in order.
    pub events: Vec<Event>,
}

/// A membership's conversation.
pub struct Session {
    client: ControlClient<Channel>,
    key: Key,
    id: u64,
    counter: u64,
    revision: u64,
    heard: u64,
    /// Whom it is with.
    pub endpoint: SocketAddr,
}

impl Session {
    /// Connects, asks for a cookie, and joins with it; with what this worker `had`, when it comes from a control plane that
    /// is no more.
    pub async fn enter(
        endpoint: SocketAddr,
        spec: &JoinSpec,
        deadline: Duration,
        nonce: [u8; NONCE_LEN],
        had: Option<&Assignment>,
    ) -> Result<(Session, News), CallError> {
        let mut client = connect(endpoint).await?;
        let asked = client.challenge(rpc::ChallengeRequest { version: crate::PROTOCOL_VERSION }).await;
        let cookie = asked.map_err(call_error)?.into_inner().cookie;
        let key = Key::session(&spec.secret, &spec.job, &cookie, &nonce);
        let mut request = join_request(spec, deadline, cookie, nonce);
        request.resumes = had.map(|had| convert::assigned(&key, had));
        let body = request.encode_to_vec();
        let sealed = Key::join(&spec.secret, &spec.job).seal(Purpose::Join, body);
        let reply = client.join(sealed).await.map_err(call_error)?;
        let mut session = Session { client, key, id: 0, counter: 0, revision: 0, heard: 0, endpoint };
        let reply = session.open(Purpose::Reply, &reply.into_inner())?;
        session.id = reply.session;
        let answer = session.read(reply)?;
        Ok((session, answer.news))
    }

    /// A sign of life. Answered as soon as there is news, or after half a second.
    pub async fn heartbeat(&mut self, patience: Duration) -> Result<Answer, CallError> {
        let sealed = self.request(Purpose::Heartbeat, None);
        let call = timeout(patience, self.client.heartbeat(sealed)).await;
        let reply = call.map_err(|_| no_answer())?.map_err(call_error)?;
        let reply = self.open(Purpose::HeartbeatReply, &reply.into_inner())?;
        self.read(reply)
    }

    /// What sends posts beside the heartbeats.
    pub fn speaker(&self) -> Speaker {
        let Session { client, key, id, .. } = self;
        Speaker { client: client.clone(), key: key.clone(), id: *id, counter: 0, posted: 0 }
    }

    /// Leaves.
    pub async fn leave(&mut self, outcome: &Outcome, patience: Duration) -> Result<(), CallError> {
        let reason = match outcome {
            Outcome::Done => String::new(),
            Outcome::Failed(reason) | Outcome::Died(reason) | Outcome::Mismatch(reason) => match &**reason {
                "" => "for no stated reason".into(),
                reason => reason.to_owned(),
            },
        };
        let mismatch = matches!(outcome, Outcome::Mismatch(_));
        let died = matches!(outcome, Outcome::Died(_));
        let sealed = self.request(Purpose::Leave, Some(rpc::Leave { reason, mismatch, died }));
        let call = timeout(patience, self.client.leave(sealed)).await;
        let reply = call.map_err(|_| no_answer())?.map_err(call_error)?;
        self.open(Purpose::LeaveReply, &reply.into_inner()).map(|_| ())
    }

    fn request(&mut self, purpose: Purpose, leave: Option<rpc::Leave>) -> Request<rpc::Sealed> {
        self.counter += 1;
        let request = rpc::SessionRequest {
            session: self.id,
            counter: self.counter,
            revision: self.revision,
            heard: self.heard,
            leave,
            ..Default::default()
        };
        Request::new(self.key.seal(purpose, request.encode_to_vec()))
    }

    /// Checks that an answer is authentic and to the last request.
    fn open(&self, purpose: Purpose, sealed: &rpc::Sealed) -> Result<rpc::StatusReply, CallError> {
        opened(&self.key, purpose, self.counter, sealed)
    }

    fn read(&mut self, reply: rpc::StatusReply) -> Result<Answer, CallError> {
        self.revision = reply.revision;
        let known = self.heard.saturating_sub(reply.first_event);
        self.heard = self.heard.max(reply.first_event.saturating_add(reply.events.len() as u64));
        let fresh = reply.events.into_iter().skip(usize::try_from(known).unwrap_or(usize::MAX));
        let events = fresh.filter_map(convert::read_event).collect();
        let news = match reply.status.ok_or(CallError::Nonsense("no status"))? {
            status_reply::Status::Waiting(waiting) => News::Waiting(convert::narrow(&waiting.missing)),
            status_reply::Status::Running(running) => {
                let grant = convert::grant(&self.key, running);
                News::Running(grant.ok_or(CallError::Nonsense("a grant with a field out of range"))?)
            }
            status_reply::Status::Refused(refusal) => News::Refused(convert::read_refusal(refusal)),
            status_reply::Status::Failed(failure) => News::Failed(convert::read_failure(failure)),
            status_reply::Status::Left(_) => News::Left,
        };
        Ok(Answer { news, events })
    }
}

/// Sends what a member has to say.
pub struct Speaker {
    client: ControlClient<Channel>,
    key: Key,
    id: u64,
    counter: u64,
    /// Posts that the aggregator has taken.
    posted: u64,
}

impl Speaker {
    /// Sends posts that were not taken before. When this fails the same shall be sent again, and first.
    pub async fn say(&mut self, posts: &[Post], patience: Duration) -> Result<(), CallError> {
        self.counter += 1;
        let request = rpc::SessionRequest {
            session: self.id,
            counter: self.counter,
            first_post: self.posted,
            posts: posts.iter().map(convert::write_post).collect(),
            ..Default::default()
        };
        let sealed = self.key.seal(Purpose::Post, request.encode_to_vec());
        let call = timeout(patience, self.client.post(sealed)).await;
        let reply = call.map_err(|_| no_answer())?.map_err(call_error)?;
        opened(&self.key, Purpose::PostReply, self.counter, &reply.into_inner())?;
        self.posted += posts.len() as u64;
        Ok(())
    }
}

/// Checks that an answer is authentic and to this request.
fn opened(
    key: &Key,
    purpose: Purpose,
    counter: u64,
    sealed: &rpc::Sealed,
) -> Result<rpc::StatusReply, CallError> {
    let body = key.open(purpose, sealed).map_err(|_| CallError::NotAuthentic)?;
    let reply = rpc::StatusReply::decode(body).map_err(|_| CallError::Nonsense("cannot be decoded"))?;
    if reply.counter != counter {
        return Err(CallError::NotAuthentic);
    }
    Ok(reply)
}

/// How an aggregator is connected to.
pub fn endpoint(address: SocketAddr) -> Result<Endpoint, CallError> {
    let endpoint = Endpoint::from_shared(format!("http://{address}"))
        .map_err(|error| CallError::Unreachable(with_causes(&error)))?;
    Ok(endpoint.tcp_nodelay(true).connect_timeout(Duration::from_secs(1)))
}

/// Connects to an aggregator.
pub async fn connect(address: SocketAddr) -> Result<ControlClient<Channel>, CallError> {
    let channel = endpoint(address)?.connect().await;
    channel.map(ControlClient::new).map_err(|error| CallError::Unreachable(with_causes(&error)))
}

fn join_request(
    spec: &JoinSpec,
    deadline: Duration,
    cookie: Vec<u8>,
    nonce: [u8; NONCE_LEN],
) -> rpc::JoinRequest {
    let request = rpc::JoinRequest {
        version: crate::PROTOCOL_VERSION,
        cookie,
        nonce: nonce.to_vec(),
        job: spec.job.clone(),
        rank: spec.rank.into(),
        data_ip: spec.data_ip.to_bits(),
        data_port: spec.data_port.into(),
        mac: spec.mac.to_vec(),
        deadline_ms: deadline.as_millis().try_into().unwrap_or(u64::MAX),
        ..Default::default()
    };
    convert::write_wishes(&spec.wishes(), request)
}

pub fn call_error(status: tonic::Status) -> CallError {
    let denied = |kind| CallError::Denied { kind, why: status.message().into() };
    match status.code() {
        Code::Unauthenticated => denied(DenialKind::Secret),
        Code::PermissionDenied => denied(DenialKind::Stale),
        Code::NotFound => denied(DenialKind::Unknown),
        Code::InvalidArgument | Code::FailedPrecondition => denied(DenialKind::Request),
        Code::Unimplemented => CallError::Denied {
            kind: DenialKind::Request,
            why: "it is no Sumac control plane of this version".into(),
        },
        _ => CallError::Unreachable(with_causes(&status)),
    }
}

pub fn no_answer() -> CallError {
    CallError::Unreachable("no answer".into())
}

/// The innermost cause says most: "connection refused" stands below two "transport error"s.
fn with_causes(error: &dyn std::error::Error) -> String {
    let innermost = std::iter::successors(Some(error), |error| error.source()).last();
    innermost.unwrap_or(error).to_string()
}
