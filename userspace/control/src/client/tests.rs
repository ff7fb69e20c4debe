//! A member whose connection leads through somebody who forges answers.
//!
//! ```text
//! worker 0 --- forger --- control plane --- worker 1
//! ```

use std::sync::{
    Mutex, PoisonError,
    atomic::{AtomicBool, Ordering::Relaxed},
};

use prost::Message as _;
use tokio::net::TcpListener;
use tonic::{
    Request, Response, Status as Denial,
    transport::{Channel, Server, server::TcpIncoming},
};

use super::*;
use crate::{
    DataPlane, Notice, Secrets,
    plane::{Installed, JobInstall, LastEpoch, PlaneError, PlaneInfo, PlaneKind},
    rpc::{
        self,
        control_client::ControlClient,
        control_server::{Control, ControlServer},
    },
    server::Listening,
};

/// Far above what anything here takes.
const HANGS: Duration = Duration::from_secs(60);

/// Takes every job.
struct Willing;

impl DataPlane for Willing {
    fn info(&self) -> Result<PlaneInfo, PlaneError> {
        Ok(PlaneInfo {
            kind: PlaneKind::Host,
            slots: 1024,
            max_elements: 360,
            narrowest: None,
            base_port: 48700,
            shards: 1,
            dynamic_slots: 0,
            address: None,
            kept: Vec::new(),
        })
    }
    fn take_over(&self) -> Result<Vec<LastEpoch>, PlaneError> {
        Ok(Vec::new())
    }
    fn install(&self, job: &JobInstall) -> Result<Installed, PlaneError> {
        Ok(Installed {
            aggregator_ips: vec![Ipv4Addr::LOCALHOST; job.workers.len()],
            result_group: None,
            host_sides: Vec::new(),
        })
    }
    fn resize(&self, _: u16, _: u32, _: &str) -> Result<(), PlaneError> {
        Ok(())
    }
    fn remove(&self, _: u16) -> Result<(), PlaneError> {
        Ok(())
    }
    fn instance(&self) -> Result<u64, PlaneError> {
        Ok(1)
    }
}

/// What becomes of the first post.
#[derive(Clone, Copy, PartialEq)]
enum Forgery {
    /// It is kept back, and the answer to the heartbeat of the same number given for its own.
    SwappedAnswer,
    /// It is kept back, and denied.
    Denial,
}

/// Passes calls on, but for the first post.
struct Forger {
    server: ControlClient<Channel>,
    forgery: Forgery,
    has_forged: AtomicBool,
    /// Answers to heartbeats, by number.
    answers: Mutex<Vec<rpc::Sealed>>,
}

impl Forger {
    /// The answer to the first heartbeat, once there is one.
    async fn first_answer(&self) -> rpc::Sealed {
        loop {
            let first = self.answers.lock().unwrap_or_else(PoisonError::into_inner).first().cloned();
            match first {
                Some(answer) => return answer,
                None => sleep(Duration::from_millis(5)).await,
            }
        }
    }
}

type Answer = Result<Response<rpc::Sealed>, Denial>;

#[tonic::async_trait]
impl Control for Forger {
    async fn challenge(
        &self,
        request: Request<rpc::ChallengeRequest>,
    ) -> Result<Response<rpc::ChallengeReply>, Denial> {
        self.server.clone().challenge(request.into_inner()).await
    }
    async fn join(&self, request: Request<rpc::Sealed>) -> Answer {
        self.server.clone().join(request.into_inner()).await
    }
    async fn heartbeat(&self, request: Request<rpc::Sealed>) -> Answer {
        let answer = self.server.clone().heartbeat(request.into_inner()).await?;
        self.answers.lock().unwrap_or_else(PoisonError::into_inner).push(answer.get_ref().clone());
        Ok(answer)
    }
    async fn post(&self, request: Request<rpc::Sealed>) -> Answer {
        if self.has_forged.swap(true, Relaxed) {
            return self.server.clone().post(request.into_inner()).await;
        }
        match self.forgery {
            Forgery::Denial => Err(Denial::not_found("unknown session")),
            Forgery::SwappedAnswer => {
                let answer = self.first_answer().await;
                let counter = rpc::StatusReply::decode(&answer.body[..]).unwrap().counter;
                let asked = rpc::SessionRequest::decode(&request.get_ref().body[..]).unwrap().counter;
                assert_eq!((asked, counter), (1, 1), "both are the first of their kind");
                Ok(Response::new(answer))
            }
        }
    }
    async fn leave(&self, request: Request<rpc::Sealed>) -> Answer {
        self.server.clone().leave(request.into_inner()).await
    }
    async fn enter_rack(&self, _: Request<rpc::Sealed>) -> Answer {
        Err(Denial::unimplemented("no racks here"))
    }
    async fn serve_rack(&self, _: Request<rpc::Sealed>) -> Answer {
        Err(Denial::unimplemented("no racks here"))
    }
    async fn relay(&self, _: Request<rpc::Sealed>) -> Answer {
        Err(Denial::unimplemented("no racks here"))
    }
}

fn spec(rank: u16) -> JoinSpec {
    JoinSpec {
        job: "train".into(),
        world: 2,
        rank,
        secret: Secret::new("a secret for these tests").unwrap(),
        data_ip: Ipv4Addr::UNSPECIFIED,
        data_port: 48700 + rank,
        mac: [0; 6],
        elements: None,
        max_elements: 352,
        slots: Some(32),
        shards: None,
        max_shards: 1,
        scaling: Scaling::Block,
        wire: WireFormat::Int32,
        not_finite: NotFinite::Error,
        order: Order::Submission,
        checksum: true,
        mode: crate::Mode::Static,
        deadline: Duration::from_secs(20),
    }
}

/// What worker 0 posts through the forger reaches worker 1.
async fn a_post_arrives_in_spite_of(forgery: Forgery) {
    let anywhere: SocketAddr = "127.0.0.1:0".parse().unwrap();
    let secrets = Secrets { default: Some(spec(0).secret), ..Secrets::default() };
    let listening = Listening::open(anywhere, Willing, secrets).await.unwrap();
    let address = listening.address();
    tokio::spawn(listening.serve(std::future::pending()));
    let forger = Forger {
        server: session::connect(address).await.unwrap(),
        forgery,
        has_forged: AtomicBool::new(false),
        answers: Mutex::default(),
    };
    let listener = TcpListener::bind(anywhere).await.unwrap();
    let between = listener.local_addr().unwrap();
    let serving = Server::builder().add_service(ControlServer::new(forger));
    tokio::spawn(serving.serve_with_incoming(TcpIncoming::from(listener)));

    let (zero, one) = tokio::join!(join(between, spec(0)), join(address, spec(1)));
    let (zero, mut one) = (zero.unwrap(), one.unwrap());
    let mut notices = one.notices();
    for text in ["first", "second"] {
        zero.post(Notice { key: 1, text: text.into() });
        let (from, notice) = timeout(HANGS, notices.recv()).await.expect("it never arrives").unwrap();
        assert_eq!((from, notice.text.as_str()), (0, text));
    }
    assert!(matches!(*zero.watch().borrow(), MemberState::Running { .. }));
}

#[tokio::test]
async fn the_answer_to_a_heartbeat_is_not_taken_for_that_to_a_post() {
    a_post_arrives_in_spite_of(Forgery::SwappedAnswer).await;
}

#[tokio::test]
async fn a_forged_denial_silences_nobody() {
    a_post_arrives_in_spite_of(Forgery::Denial).await;
}
