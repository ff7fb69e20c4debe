//! How a job starts: a place on this host, a seat among the workers, a path that is probed and, of a static job, measured.

use std::net::SocketAddr;
use std::time::Duration;

use sumac_api::{Code, Failure, Mode, OpenReply};
use sumac_control::{Grant, JoinRequest, Member, WorkerHost};
use sumac_transport::PathMeasure;
use sumac_wire::PAGE_ELEMENTS;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::timeout;

use super::channels::Channels;
use super::{Job, blocking};
use crate::explain;
use crate::hub::Place;
use crate::line::Order;
use crate::path;
use crate::stream::Stand;

/// The engine gives its probes up earlier; this is for a data path that says nothing at all.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// How long the other workers have to report to a newcomer where the stream goes on.
const RESUME_TIMEOUT: Duration = Duration::from_secs(30);

impl Job {
    /// Joins the other workers.
    pub(super) async fn join(&self) -> Result<(Place, Member), Failure> {
        let place = self.hub.take_place(&self.plan.spec.job, self.plan.spec.rank).await?;
        let (spec, endpoint) = (self.plan.spec.clone(), &self.plan.endpoint);
        let local = self.hub.carrier.local();
        let mut max_elements = path::words(mtu(endpoint.address)).min(self.hub.carrier.most_words());
        if spec.mode == Some(Mode::Dynamic) {
            // A shared slot has no more.
            max_elements = max_elements.min(PAGE_ELEMENTS as u16);
        }
        let host = WorkerHost {
            data_ip: local.ip,
            data_port: local.port,
            mac: local.mac,
            max_elements,
            max_shards: self.hub.carrier.shards(),
            checksum: self.plan.checksum,
        };
        let member = sumac_control::join(endpoint, JoinRequest { spec, host })
            .await
            .map_err(|error| explain::join_error(&error, self.plan.order()))?;
        Ok((place, member))
    }

    /// This worker's part, and where its stream begins: for one that has taken a dead one's rank, where another worker
    /// reports. A world of one has no other, and begins anew.
    pub(super) async fn resume_point(
        &self,
        member: &Member,
        channels: &mut Channels,
        orders: &mut UnboundedReceiver<Order>,
    ) -> Result<(Grant, Stand), Failure> {
        let grant = member.grant().clone();
        if grant.terms.resume.is_empty() || grant.terms.world < 2 {
            return Ok((grant, Stand::default()));
        }
        tokio::select! {
            biased;
            failure = member.failed() => Err(self.told(&failure)),
            order = orders.recv() => Err(interruption(order)),
            told = timeout(RESUME_TIMEOUT, channels.resume_point(grant)) => told.ok().flatten().ok_or_else(|| {
                Failure::new(Code::Handshake, "no other worker reports where the job's stream goes on")
                    .hint("open the job anew, on all workers")
            }),
        }
    }

    /// Lets the job's packets in, and has the path probed, and measured where nobody has asked for a number of slots.
    pub(super) async fn begin(
        &self,
        member: &Member,
        grant: Grant,
        reply: &mut OpenReply,
        orders: &mut UnboundedReceiver<Order>,
    ) -> Result<(), Failure> {
        let hub = self.hub.clone();
        blocking(move || hub.carrier.add_job(&grant)).await??;
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
            match timeout(HANDSHAKE_TIMEOUT, orders.recv()).await {
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
        let (slots, reason) = tokio::select! {
            biased;
            tuned = member.tune(measure) => tuned.map_err(|failure| self.told(&failure))?,
            // The slowest of the workers is waited for: meanwhile this one's trainer may go.
            order = orders.recv() => return Err(interruption(order)),
        };
        tracing::info!(job = self.plan.spec.job, slots, reason, "the window is chosen");
        (reply.slots, reply.slots_reason) = (slots, reason);
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
