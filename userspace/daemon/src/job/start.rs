//! How a job starts: a place on this host, a seat among the workers, a path that is probed and, of a static job, measured.

use std::net::SocketAddr;
use std::time::Duration;

use sumac_api::{Code, Failure, OpenReply};
use sumac_control::{Assignment, Member, Mode};
use sumac_transport::PathMeasure;
use sumac_wire::PAGE_ELEMENTS;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::timeout;

use super::news::News;
use super::{Job, blocking};
use crate::explain;
use crate::hub::Place;
use crate::line::Order;
use crate::path;
use crate::stream::Stand;

/// The engine gives its probes up earlier; this is for a data path that says nothing at all.
const HANDSHAKE_PATIENCE: Duration = Duration::from_secs(10);

/// How long the other workers have to tell a newcomer where the stream goes on.
const STAND_PATIENCE: Duration = Duration::from_secs(30);

impl Job {
    /// Joins the other workers.
    pub(super) async fn join(&self) -> Result<(Place, Member), Failure> {
        let place = self.hub.take_place(&self.plan.spec.job, self.plan.spec.rank).await?;
        let mut spec = self.plan.spec.clone();
        let endpoint = self.plan.endpoint;
        let local = self.hub.carrier.local();
        spec.data_ip = local.ip;
        spec.data_port = local.port;
        spec.mac = local.mac;
        spec.max_elements = path::words(mtu(endpoint)).min(self.hub.carrier.most_words());
        if matches!(spec.mode, Mode::Dynamic(_)) {
            // A shared slot has no more.
            spec.max_elements = spec.max_elements.min(PAGE_ELEMENTS as u16);
        }
        spec.max_shards = self.hub.carrier.shards();
        let member = sumac_control::join(endpoint, spec)
            .await
            .map_err(|error| explain::join_error(&error, self.plan.options.order))?;
        Ok((place, member))
    }

    /// What this worker has, and where its stream begins: for one that has taken a dead one's place, where another worker
    /// says. A world of one has nobody to ask, and begins anew.
    pub(super) async fn stand(
        &self,
        member: &Member,
        news: &mut News,
        orders: &mut UnboundedReceiver<Order>,
    ) -> Result<(Assignment, Stand), Failure> {
        let assignment = member.assignment().clone();
        let is_new = assignment.dynamic.as_ref().is_some_and(|terms| !terms.resume.is_empty());
        if !is_new || self.plan.spec.world < 2 {
            return Ok((assignment, Stand::default()));
        }
        tokio::select! {
            biased;
            failure = member.failed() => Err(self.told(&failure)),
            order = orders.recv() => Err(interruption(order)),
            told = timeout(STAND_PATIENCE, news.stand(assignment)) => told.ok().flatten().ok_or_else(|| {
                Failure::new(Code::Handshake, "no other worker tells where the job's stream goes on")
                    .hint("open the job anew, on all workers")
            }),
        }
    }

    /// Lets the job's packets in, and has the path probed, and measured where nobody has asked for a number of slots.
    pub(super) async fn begin(
        &self,
        member: &Member,
        assigned: Assignment,
        reply: &mut OpenReply,
        orders: &mut UnboundedReceiver<Order>,
    ) -> Result<(), Failure> {
        let (hub, spec) = (self.hub.clone(), self.plan.spec.clone());
        blocking(move || hub.carrier.add_job(&assigned, &spec)).await??;
        tokio::select! {
            biased;
            failure = member.failed() => Err(self.told(&failure)),
            begun = self.handshake(member, reply, orders) => begun,
        }
    }

    async fn handshake(
        &self,
        member: &Member,
        reply: &mut OpenReply,
        orders: &mut UnboundedReceiver<Order>,
    ) -> Result<(), Failure> {
        loop {
            match timeout(HANDSHAKE_PATIENCE, orders.recv()).await {
                Ok(Some(Order::Ready)) => return Ok(()),
                Ok(Some(Order::Measured(measure))) => {
                    self.tune(member, measure, reply, orders).await?;
                }
                Ok(order) => return Err(interruption(order)),
                Err(_) => {
                    return Err(Failure::new(Code::Handshake, "the data path does not finish the handshake")
                        .hint("see the daemon's log, and `sumac doctor`"));
                }
            }
        }
    }

    /// Has the number of slots decided by what all workers have measured. The data path is not ready before it knows it.
    async fn tune(
        &self,
        member: &Member,
        measure: PathMeasure,
        reply: &mut OpenReply,
        orders: &mut UnboundedReceiver<Order>,
    ) -> Result<(), Failure> {
        let tuned = tokio::select! {
            biased;
            tuned = member.tune(measure) => tuned.map_err(|failure| self.told(&failure))?,
            // The slowest of the workers is waited for: meanwhile this one's trainer may go.
            order = orders.recv() => return Err(interruption(order)),
        };
        tracing::info!(
            job = self.plan.spec.job,
            slots = tuned.slots,
            reason = tuned.reason,
            "the window is chosen"
        );
        reply.slots = tuned.slots;
        reply.slots_reason = tuned.reason;
        self.hub.routes.settle(reply.wire_job, reply.clone());
        let (hub, job, slots) = (self.hub.clone(), reply.wire_job, reply.slots);
        blocking(move || hub.carrier.start_job(job, slots)).await??;
        Ok(())
    }
}

/// Why a start comes to nothing by an order.
fn interruption(order: Option<Order>) -> Failure {
    match order {
        Some(Order::Broken(error)) => explain::job_error(&error),
        _ => Failure::new(Code::JobFailed, "its trainer went away"),
    }
}

/// The MTU of the way to an aggregator.
fn mtu(endpoint: SocketAddr) -> usize {
    let SocketAddr::V4(endpoint) = endpoint else { return path::USUAL_MTU };
    path::mtu(*endpoint.ip()).unwrap_or_else(|error| {
        tracing::warn!(%endpoint, %error, "the way to the aggregator has no MTU that can be asked for; taking {}", path::USUAL_MTU);
        path::USUAL_MTU
    })
}
