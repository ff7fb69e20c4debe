//! A rack's duty to its root: enter, report, and carry out orders.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use prost::Message;
use rand::{TryRngCore, rngs::OsRng};
use tokio::{
    sync::mpsc,
    time::{sleep, timeout},
};

use super::{Link, Uplink};
use crate::{
    DataPlane, Secret,
    client::{
        SILENCE,
        session::{CallError, call_error, connect, endpoint, no_answer},
    },
    convert::rack as messages,
    plane::{LastEpoch, PlaneError},
    rpc::{self, control_client::ControlClient, rack_answer, rack_order},
    seal::{Key, NONCE_LEN, Purpose},
    server::ServeError,
};

/// Between two attempts to enter.
const RETRY: Duration = Duration::from_millis(500);

/// What it takes.
pub struct Duty<P> {
    pub plane: Arc<P>,
    pub parent: SocketAddr,
    pub name: String,
    pub secret: Secret,
    pub(super) link: Arc<Link>,
}

/// A session's orders and answers.
struct Books {
    counter: u64,
    /// The last order that was fetched.
    taken: u64,
    /// Answers that the root has not confirmed.
    answers: Vec<rpc::RackAnswer>,
    orders: mpsc::UnboundedSender<rpc::RackOrder>,
    done: mpsc::UnboundedReceiver<rpc::RackAnswer>,
}

impl<P: DataPlane> Duty<P> {
    /// Empties the plane of jobs, and says which incarnations its slots remember.
    pub async fn take_over(&self) -> Result<Vec<LastEpoch>, ServeError> {
        let plane = self.plane.clone();
        Ok(tokio::task::spawn_blocking(move || plane.take_over()).await??)
    }

    /// Is on duty for ever.
    pub async fn run(&self) {
        let mut said = String::new();
        loop {
            match self.enter().await {
                Ok(uplink) => {
                    said.clear();
                    tracing::info!(root = %self.parent, name = self.name, "below the root");
                    self.link.set(Some(uplink.clone()));
                    let why = self.serve(uplink).await;
                    self.link.set(None);
                    tracing::warn!(root = %self.parent, why, "lost the root; entering again");
                }
                Err(why) if why != said => {
                    tracing::warn!(root = %self.parent, why, "cannot enter below the root; trying again");
                    said = why;
                }
                Err(_) => {}
            }
            sleep(RETRY).await;
        }
    }

    async fn enter(&self) -> Result<Uplink, String> {
        let last_epochs = self.take_over().await.map_err(|error| error.to_string())?;
        let plane = self.plane().await?;
        let call = self.call_enter(plane, &last_epochs);
        match timeout(SILENCE, call).await {
            Ok(entered) => entered.map_err(|error| error.to_string()),
            Err(_) => Err(no_answer().to_string()),
        }
    }

    async fn call_enter(&self, plane: rpc::RackPlane, last: &[LastEpoch]) -> Result<Uplink, CallError> {
        let mut nonce = [0; NONCE_LEN];
        OsRng.try_fill_bytes(&mut nonce).map_err(|error| CallError::Unreachable(error.to_string()))?;
        let mut client = connect(self.parent).await?;
        let asked = client.challenge(rpc::ChallengeRequest { version: crate::PROTOCOL_VERSION }).await;
        let cookie = asked.map_err(call_error)?.into_inner().cookie;
        let key = Key::rack_session(&self.secret, &self.name, &cookie, &nonce);
        let hello = rpc::RackHello {
            version: crate::PROTOCOL_VERSION,
            cookie,
            nonce: nonce.to_vec(),
            name: self.name.clone(),
            plane: Some(plane),
            last_epochs: messages::write_epochs(last),
        };
        let sealed = Key::rack(&self.secret, &self.name).seal(Purpose::EnterRack, hello.encode_to_vec());
        let reply = client.enter_rack(sealed).await.map_err(call_error)?.into_inner();
        let orders = opened(&key, 0, &reply)?;
        let relay = ControlClient::new(endpoint(self.parent)?.connect_lazy());
        Ok(Uplink { client, relay, key, id: orders.session })
    }

    /// What the plane is now.
    async fn plane(&self) -> Result<rpc::RackPlane, String> {
        let plane = self.plane.clone();
        let asked = tokio::task::spawn_blocking(move || {
            Ok::<_, PlaneError>(messages::write_plane(&plane.info()?, plane.instance()?))
        });
        match asked.await {
            Ok(plane) => plane.map_err(|error| error.to_string()),
            Err(error) => Err(format!("the call into the data plane ended abnormally: {error}")),
        }
    }

    /// Reports and fetches orders until the root is lost: says how.
    async fn serve(&self, mut uplink: Uplink) -> String {
        let (orders, queue) = mpsc::unbounded_channel();
        let (answers, done) = mpsc::unbounded_channel();
        let worker = tokio::spawn(carry_out(self.plane.clone(), uplink.key.clone(), queue, answers));
        let mut books = Books { counter: 0, taken: 0, answers: Vec::new(), orders, done };
        let why = loop {
            let plane = self.plane().await;
            if let Err(error) = books.turn(&mut uplink, plane).await {
                break error.to_string();
            }
        };
        // What is under way ends by itself; the jobs are removed when the rack enters again.
        drop(books);
        if let Err(error) = worker.await {
            tracing::error!(%error, "carrying out orders ended abnormally");
        }
        why
    }
}

impl Books {
    /// One report and its answer. A report that waits for orders is given up for one with news.
    async fn turn(
        &mut self,
        uplink: &mut Uplink,
        plane: Result<rpc::RackPlane, String>,
    ) -> Result<(), CallError> {
        while let Ok(answer) = self.done.try_recv() {
            self.answers.push(answer);
        }
        self.counter += 1;
        let (plane, away) = match plane {
            Ok(plane) => (Some(plane), String::new()),
            Err(why) => (None, why),
        };
        let report = rpc::RackReport {
            session: uplink.id,
            counter: self.counter,
            plane,
            away,
            answers: self.answers.clone(),
            taken: self.taken,
        };
        let sealed = uplink.key.seal(Purpose::ServeRack, report.encode_to_vec());
        let reply = tokio::select! {
            reply = timeout(SILENCE, uplink.client.serve_rack(sealed)) => reply,
            Some(answer) = self.done.recv() => {
                self.answers.push(answer);
                return Ok(());
            }
        };
        let reply = reply.map_err(|_| no_answer())?.map_err(call_error)?.into_inner();
        let orders = opened(&uplink.key, self.counter, &reply)?.orders;
        self.answers.clear();
        for order in orders.into_iter().filter(|order| order.number > self.taken).collect::<Vec<_>>() {
            self.taken = order.number;
            // The receiver ends only after this sender.
            let _ = self.orders.send(order);
        }
        Ok(())
    }
}

/// Carries out one order after the other, until there are no more.
async fn carry_out<P: DataPlane>(
    plane: Arc<P>,
    key: Key,
    mut orders: mpsc::UnboundedReceiver<rpc::RackOrder>,
    answers: mpsc::UnboundedSender<rpc::RackAnswer>,
) {
    while let Some(order) = orders.recv().await {
        let (plane, key, number) = (plane.clone(), key.clone(), order.number);
        let done = tokio::task::spawn_blocking(move || obey(&*plane, &key, order)).await;
        let result = match done {
            Ok(Ok(installed)) => rack_answer::Result::Installed(installed),
            Ok(Err(why)) => rack_answer::Result::Failed(why),
            Err(error) => {
                rack_answer::Result::Failed(format!("the call into the data plane ended abnormally: {error}"))
            }
        };
        // The root may be lost meanwhile.
        let _ = answers.send(rpc::RackAnswer { order: number, result: Some(result) });
    }
}

fn obey<P: DataPlane>(plane: &P, key: &Key, order: rpc::RackOrder) -> Result<rpc::RackInstalled, String> {
    let unreadable = || "the order cannot be read; are root and rack of the same release?".to_string();
    let number = |job: u32| u16::try_from(job).map_err(|_| unreadable());
    let done = match order.what.ok_or_else(unreadable)? {
        rack_order::What::Install(job) => {
            let job = messages::read_install(key, &job).ok_or_else(unreadable)?;
            plane.install(&job).map(|installed| messages::write_installed(&installed))
        }
        rack_order::What::Renew(job) => {
            let job = messages::read_install(key, &job).ok_or_else(unreadable)?;
            plane.renew(&job).map(|resume| rpc::RackInstalled { resume, ..Default::default() })
        }
        rack_order::What::Resume(job) => {
            let job = messages::read_install(key, &job).ok_or_else(unreadable)?;
            plane.resume(&job).map(|()| rpc::RackInstalled::default())
        }
        rack_order::What::Remove(job) => plane.remove(number(job)?).map(|()| rpc::RackInstalled::default()),
        rack_order::What::Resize(resize) => plane
            .resize(number(resize.job)?, resize.lane_slots, &resize.reason)
            .map(|()| rpc::RackInstalled::default()),
    };
    done.map_err(|error| error.to_string())
}

/// Checks that orders are authentic and to the last report.
fn opened(key: &Key, counter: u64, sealed: &rpc::Sealed) -> Result<rpc::RackOrders, CallError> {
    let body = key.open(Purpose::Orders, sealed).map_err(|_| CallError::NotAuthentic)?;
    let orders = rpc::RackOrders::decode(body).map_err(|_| CallError::Nonsense("cannot be decoded"))?;
    if orders.counter != counter {
        return Err(CallError::NotAuthentic);
    }
    Ok(orders)
}
