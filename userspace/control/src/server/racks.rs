//! The calls of racks' aggregators: they enter, fetch orders, and pass their workers' calls on.

use std::net::Ipv4Addr;

use prost::Message;
use rand::{TryRngCore, rngs::OsRng};
use tokio::time::{Instant, timeout_at};
use tonic::Status as Denial;

use super::service::{LONG_POLL, LONGEST_REASON, Service};
use crate::{
    convert::{Caller, rack as messages},
    coordinator::{RackEntry, RackId},
    gate::Rejected,
    post::printable,
    rpc,
    seal::{Key, Purpose},
};

impl Service {
    pub(super) fn do_enter_rack(&self, peer: Ipv4Addr, sealed: &rpc::Sealed) -> Result<rpc::Sealed, Denial> {
        let now = self.shared.now();
        let (rack, key, plane) = {
            let mut state = self.shared.lock();
            let (hello, key) = state.gate.enter_rack(now, sealed).map_err(|why| self.denied(peer, why))?;
            if hello.version != crate::PROTOCOL_VERSION {
                return Err(Denial::failed_precondition(format!(
                    "the rack speaks version {} of the control protocol, the root {}: install the same release on both",
                    hello.version,
                    crate::PROTOCOL_VERSION
                )));
            }
            let plane = hello.plane.as_ref().and_then(messages::read_plane);
            let (instance, plane) = plane.ok_or_else(|| self.denied(peer, Rejected::Malformed))?;
            let rack = RackId(OsRng.try_next_u64().map_err(|_| Denial::unavailable("no random numbers"))?);
            let last_epochs = messages::read_epochs(&hello.last_epochs);
            let entry = RackEntry { name: hello.name, ip: peer, plane: plane.clone(), instance, last_epochs };
            let entered = state.coordinator.rack_enters(now, rack, entry);
            entered.map_err(|why| {
                if let Some(untold) = self.tell_refusal() {
                    tracing::warn!(%peer, why, untold, "rack refused");
                }
                Denial::failed_precondition(why)
            })?;
            self.shared.forget_racks(&mut state);
            state.gate.open_rack(rack, key.clone());
            (rack, key, plane)
        };
        self.shared.desks.open(rack, peer, plane);
        self.shared.announce();
        Ok(orders(&key, rack, 0, Vec::new()))
    }

    pub(super) async fn do_serve_rack(
        &self,
        peer: Ipv4Addr,
        sealed: &rpc::Sealed,
    ) -> Result<rpc::Sealed, Denial> {
        let (rack, counter, known, key) = {
            let mut state = self.shared.lock();
            let (rack, report, key) = state.gate.rack_report(sealed).map_err(|why| self.denied(peer, why))?;
            let plane = report.plane.as_ref().and_then(messages::read_plane);
            self.shared.desks.report(rack, plane.clone().map(|(_, plane)| plane), report.answers);
            let away = match report.plane {
                Some(_) => "its report cannot be read; are root and rack of the same release?".into(),
                None => printable(&report.away, LONGEST_REASON),
            };
            state.coordinator.rack_reports(self.shared.now(), rack, plane.ok_or(away));
            (rack, report.counter, report.taken, key)
        };
        self.shared.announce();
        let deadline = Instant::now() + LONG_POLL;
        let mut news = self.shared.desks.news.subscribe();
        let open = loop {
            let open = self.shared.desks.orders(rack);
            // One that the rack is at work on is no news; it comes again so that none gets lost.
            if open.last().is_some_and(|order| order.number > known) || Instant::now() >= deadline {
                break open;
            }
            let _ = timeout_at(deadline, news.changed()).await;
        };
        Ok(orders(&key, rack, counter, open))
    }

    /// A worker's call, as if it had come here.
    pub(super) async fn do_relay(&self, peer: Ipv4Addr, sealed: &rpc::Sealed) -> Result<rpc::Sealed, Denial> {
        let (rack, call) = {
            let relayed = self.shared.lock().gate.relayed(sealed);
            // Not for the worker to hear as its own fault: it shall try again, and the rack enter anew.
            relayed.map_err(|why| Denial::unavailable(self.denied(peer, why).message()))?
        };
        let caller = Caller {
            peer: Ipv4Addr::from_bits(call.peer_ip),
            local: Ipv4Addr::from_bits(call.local_ip),
            rack: Some(rack),
        };
        let malformed = || self.denied(peer, Rejected::Malformed);
        let inner = call.inner.as_ref().ok_or_else(malformed)?;
        match rpc::Call::try_from(call.call) {
            Ok(rpc::Call::Join) => self.do_join(caller, inner),
            Ok(rpc::Call::Heartbeat) => self.do_heartbeat(caller, inner).await,
            Ok(rpc::Call::Post) => self.do_post(caller, inner),
            Ok(rpc::Call::Leave) => self.do_leave(caller, inner),
            Ok(rpc::Call::Unspecified) | Err(_) => Err(malformed()),
        }
    }
}

fn orders(key: &Key, rack: RackId, counter: u64, open: Vec<rpc::RackOrder>) -> rpc::Sealed {
    let orders = open.into_iter().map(|order| messages::mask(key, order)).collect();
    let reply = rpc::RackOrders { session: rack.0, counter, orders };
    key.seal(Purpose::Orders, reply.encode_to_vec())
}
