//! The engines of a simulated host: packets, timers, and the ends of operations.

use sumac_host::{EndedFragment, FragmentOutcome, FragmentTimes};
use sumac_transport::{Completion, JobState, Packet as Received, PeerId, Time, Transmit};

use super::host::{Membership, SimHost};
use crate::events::Nanos;

impl SimHost {
    /// Delivers a packet of the aggregator.
    pub fn deliver(&mut self, now: Nanos, payload: &[u8]) {
        let Ok(packet) = Received::parse(payload, PeerId(0), false) else { return };
        // The simulated hosts have one control plane.
        let number = packet.header.job;
        let is_its_job =
            |found: &&mut Membership| found.grant.as_ref().is_some_and(|grant| grant.terms.job == number);
        let Some(found) = self.memberships.values_mut().find(is_its_job) else { return };
        let slots = found.grant.as_ref().map_or(1, |grant| grant.terms.slots.max(1));
        let lane = sumac_transport::LaneField::Slot(slots).lane(&packet.header);
        if let Some(lane) = lane.and_then(|lane| found.lanes.get_mut(usize::from(lane))) {
            lane.engine.on_packet(Time(now), &packet);
        }
    }

    /// Returns the next packet, with its shard.
    pub fn transmit(&mut self, now: Nanos, frame: &mut [u8]) -> Option<(u16, Vec<u8>)> {
        let mut lanes = self.memberships.values_mut().flat_map(|found| &mut found.lanes);
        let sent = lanes.find_map(|lane| lane.engine.poll_transmit(Time(now), frame))?;
        let Transmit { len, port_offset, .. } = sent;
        Some((port_offset, frame[..len].to_vec()))
    }

    pub fn deadline(&self) -> Option<Nanos> {
        let lanes = self.memberships.values().flat_map(|found| &found.lanes);
        lanes.filter_map(|lane| lane.engine.poll_timeout()).map(|time| time.0).min()
    }

    /// Runs the engines' timers.
    pub fn expire(&mut self, now: Nanos) {
        for lane in self.memberships.values_mut().flat_map(|found| &mut found.lanes) {
            if lane.engine.poll_timeout().is_some_and(|due| due.0 <= now) {
                lane.engine.on_timeout(Time(now));
            }
        }
    }

    /// Passes the ends of operations and jobs to the core.
    pub fn collect(&mut self, now: Nanos) {
        let mut ended = Vec::new();
        let mut failed = Vec::new();
        for (id, found) in &mut self.memberships {
            for lane in &mut found.lanes {
                while let Some(completion) = lane.engine.poll_completion() {
                    lane.ended.push(completion);
                }
                while let Some(Completion { id, result, buffer, started, finished, loss, left, .. }) =
                    lane.ended.pop()
                {
                    let fault = buffer.fault();
                    drop(buffer);
                    let Some(key) = lane.keys.remove(&id) else { continue };
                    let times = FragmentTimes { taken: started.0, sent: started.0, arrived: finished.0 };
                    let outcome = FragmentOutcome::of(result, fault);
                    ended.push((key, EndedFragment { outcome, times, loss, left }));
                }
                if let (JobState::Failed(error), true) = (lane.engine.state(), found.is_open) {
                    failed.push((*id, error.clone()));
                }
            }
        }
        for (key, end) in ended {
            self.fragment_ended(now, key, end);
        }
        for (id, error) in failed {
            self.call(now, |host, _, out| host.engine_failed(now, id, error, out));
        }
    }
}
