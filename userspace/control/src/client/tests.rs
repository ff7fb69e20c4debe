//! A member whose connection leads through somebody who forges answers.
//!
//! ```text
//! worker 0 --- forger --- control plane --- worker 1
//! ```

use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
};

use prost::Message as _;
use tokio::{net::TcpListener, sync::mpsc};
use tonic::{
    Code, Request, Response, Status as Denial,
    transport::{Channel, Server, server::TcpIncoming},
};

use super::*;
use crate::{
    DataPlane, DynamicWishes, Notice, Secrets,
    plane::{Installed, JobInstall, LastEpoch, PlaneError, PlaneInfo, PlaneKind},
    rack::HostDuty,
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
struct Willing(PlaneKind);

impl DataPlane for Willing {
    fn info(&self) -> Result<PlaneInfo, PlaneError> {
        Ok(PlaneInfo {
            kind: self.0,
            slots: 1024,
            max_elements: 360,
            narrowest: None,
            base_port: 48700,
            shards: 1,
            dynamic_slots: 64,
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
            host_sides: vec![
                Ipv4Addr::LOCALHOST;
                job.dynamic.as_ref().map_or(0, |dynamic| dynamic.hosts.len())
            ],
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
    /// Nothing.
    None,
    /// It is kept back, and the answer to the heartbeat of the same number given for its own.
    SwappedAnswer,
    /// It is kept back, and denied.
    Denial,
}

/// Passes calls on, but for the first post, and heartbeats that are to be denied.
struct Forger {
    server: Mutex<ControlClient<Channel>>,
    forgery: Forgery,
    has_forged: AtomicBool,
    /// How the next heartbeat is denied.
    denial: Mutex<Option<Code>>,
    /// Answers to heartbeats, in order.
    answers: Mutex<Vec<rpc::Sealed>>,
    joins: AtomicUsize,
    /// Leaves that were answered.
    leaves: AtomicUsize,
}

impl Forger {
    fn server(&self) -> ControlClient<Channel> {
        self.server.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn answers(&self) -> MutexGuard<'_, Vec<rpc::Sealed>> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn denial(&self) -> MutexGuard<'_, Option<Code>> {
        self.denial.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until so many heartbeats were answered: gives the answer to the last of them.
    async fn answer(&self, number: usize) -> rpc::Sealed {
        loop {
            let answer = self.answers().get(number - 1).cloned();
            match answer {
                Some(answer) => return answer,
                None => sleep(Duration::from_millis(5)).await,
            }
        }
    }

    /// Waits until one more is answered.
    async fn next_answer(&self) {
        let answered = self.answers().len();
        self.answer(answered + 1).await;
    }

    /// Denies a heartbeat, and waits until the next is answered.
    async fn deny(&self, code: Code) {
        *self.denial() = Some(code);
        while self.denial().is_some() {
            sleep(Duration::from_millis(5)).await;
        }
        self.next_answer().await;
    }
}

type Answer = Result<Response<rpc::Sealed>, Denial>;

#[tonic::async_trait]
impl Control for Forger {
    async fn challenge(
        &self,
        request: Request<rpc::ChallengeRequest>,
    ) -> Result<Response<rpc::ChallengeReply>, Denial> {
        self.server().challenge(request.into_inner()).await
    }
    async fn join(&self, request: Request<rpc::Sealed>) -> Answer {
        self.joins.fetch_add(1, Relaxed);
        self.server().join(request.into_inner()).await
    }
    async fn heartbeat(&self, request: Request<rpc::Sealed>) -> Answer {
        let denial = self.denial().take();
        if let Some(code) = denial {
            return Err(Denial::new(code, "forged"));
        }
        let answer = self.server().heartbeat(request.into_inner()).await?;
        self.answers().push(answer.get_ref().clone());
        Ok(answer)
    }
    async fn post(&self, request: Request<rpc::Sealed>) -> Answer {
        if self.forgery == Forgery::None || self.has_forged.swap(true, Relaxed) {
            return self.server().post(request.into_inner()).await;
        }
        match self.forgery {
            Forgery::None => Err(Denial::internal("it was passed on")),
            Forgery::Denial => Err(Denial::not_found("unknown session")),
            Forgery::SwappedAnswer => {
                let answer = self.answer(1).await;
                let counter = rpc::StatusReply::decode(&answer.body[..]).unwrap().counter;
                let asked = rpc::SessionRequest::decode(&request.get_ref().body[..]).unwrap().counter;
                assert_eq!((asked, counter), (1, 1), "both are the first of their kind");
                Ok(Response::new(answer))
            }
        }
    }
    async fn leave(&self, request: Request<rpc::Sealed>) -> Answer {
        let answer = self.server().leave(request.into_inner()).await?;
        self.leaves.fetch_add(1, Relaxed);
        Ok(answer)
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
        scaling: Scale::Block,
        wire: WireFormat::Int32,
        not_finite: NonFinitePolicy::Error,
        order: OperationOrder::Submission,
        checksum: true,
        mode: crate::Mode::Static,
        deadline: Duration::from_secs(20),
    }
}

async fn control_plane() -> SocketAddr {
    let secret = Some(spec(0).secret);
    let secrets = Secrets { default: secret.clone(), racks: secret, ..Secrets::default() };
    let anywhere = "127.0.0.1:0".parse().unwrap();
    let listening = Listening::open(anywhere, Willing(PlaneKind::Host), secrets).await.unwrap();
    let address = listening.address();
    tokio::spawn(listening.serve(std::future::pending()));
    address
}

/// Two workers; worker 0 joins through the forger.
async fn pair(forgery: Forgery, spec: impl Fn(u16) -> JoinSpec) -> (Arc<Forger>, Member, Member) {
    let address = control_plane().await;
    // For jobs that need one.
    let host = HostDuty::new(Willing(PlaneKind::Parameter), address, "p".into(), spec(0).secret);
    tokio::spawn(host.run());
    let forger = Arc::new(Forger {
        server: Mutex::new(session::connect(address).await.unwrap()),
        forgery,
        has_forged: AtomicBool::new(false),
        denial: Mutex::default(),
        answers: Mutex::default(),
        joins: AtomicUsize::new(0),
        leaves: AtomicUsize::new(0),
    });
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let between = listener.local_addr().unwrap();
    let serving = Server::builder().add_service(ControlServer::from_arc(forger.clone()));
    tokio::spawn(serving.serve_with_incoming(TcpIncoming::from(listener)));
    let (zero, one) = tokio::join!(join(between, spec(0)), join(address, spec(1)));
    (forger, zero.unwrap(), one.unwrap())
}

/// What `from`, which is rank 0, says reaches another worker.
async fn is_heard(from: &Member, heard: &mut mpsc::UnboundedReceiver<(u16, Notice)>, text: &str) {
    from.post(Notice { key: 1, text: text.into() });
    let (rank, notice) = timeout(HANGS, heard.recv()).await.expect("it never arrives").unwrap();
    assert_eq!((rank, notice.text.as_str()), (0, text));
    assert_eq!(*from.watch().borrow(), MemberState::Running { departed: vec![] });
}

/// What worker 0 posts through the forger reaches worker 1.
async fn a_post_arrives_in_spite_of(forgery: Forgery) {
    let (_, zero, mut one) = pair(forgery, spec).await;
    let mut notices = one.notices();
    for text in ["first", "second"] {
        is_heard(&zero, &mut notices, text).await;
    }
}

fn dynamic(rank: u16, order: OperationOrder) -> JoinSpec {
    JoinSpec { mode: crate::Mode::Dynamic(DynamicWishes::default()), slots: None, order, ..spec(rank) }
}

#[tokio::test]
async fn the_answer_to_a_heartbeat_is_not_taken_for_that_to_a_post() {
    a_post_arrives_in_spite_of(Forgery::SwappedAnswer).await;
}

#[tokio::test]
async fn a_forged_denial_silences_nobody() {
    a_post_arrives_in_spite_of(Forgery::Denial).await;
}

/// Heartbeats are denied, and the job goes on. Worker 0 joins again so often.
async fn a_job_goes_on_in_spite_of_denials(order: OperationOrder, returns: usize) {
    let (forger, zero, mut one) = pair(Forgery::None, |rank| dynamic(rank, order)).await;
    let mut notices = one.notices();
    for code in [Code::InvalidArgument, Code::FailedPrecondition, Code::Unimplemented, Code::NotFound] {
        timeout(HANGS, forger.deny(code)).await.expect("it says no more");
        is_heard(&zero, &mut notices, &format!("after {code}")).await;
    }
    assert_eq!(forger.joins.load(Relaxed), 1 + returns);
    zero.leave(Outcome::Done).await.unwrap();
    let mut state = one.watch();
    let departed = state.wait_for(|state| *state == MemberState::Running { departed: vec![0] });
    timeout(HANGS, departed).await.expect("it has not left").unwrap();
}

#[tokio::test]
async fn a_forged_denial_brings_a_worker_back_to_its_own_place() {
    a_job_goes_on_in_spite_of_denials(OperationOrder::Submission, 1).await;
}

#[tokio::test]
async fn a_forged_denial_ends_no_job_in_order_of_names() {
    a_job_goes_on_in_spite_of_denials(OperationOrder::Name, 0).await;
}

#[tokio::test]
async fn who_leaves_while_it_comes_back_leaves_no_ghost() {
    let (forger, zero, _one) = pair(Forgery::None, |rank| dynamic(rank, OperationOrder::Submission)).await;
    let anew = session::connect(control_plane().await).await.unwrap();
    *forger.server.lock().unwrap() = anew;
    let has_place = async {
        while forger.joins.load(Relaxed) < 2 {
            sleep(Duration::from_millis(5)).await;
        }
        // It waits for the other one.
        forger.next_answer().await;
    };
    timeout(HANGS, has_place).await.expect("it does not come back");
    zero.leave(Outcome::Done).await.unwrap();
    assert_eq!(forger.leaves.load(Relaxed), 1);
}
