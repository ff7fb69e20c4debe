//! A job's receivers from the control plane.

use sumac_control::events::Event;
use sumac_control::{Grant, Member};
use sumac_job::ResumePoint;
use tokio::sync::mpsc::UnboundedReceiver;

use crate::operations::is_valid;

/// See the module.
pub(super) struct Channels {
    pub(super) events: UnboundedReceiver<Event>,
    /// The job's next epochs, each with a replaced worker (ATP appendix A.3).
    pub(super) renewed: UnboundedReceiver<Grant>,
}

impl Channels {
    /// Takes the member's receivers; they can be taken once.
    pub(super) fn of(member: &mut Member) -> Channels {
        Channels { events: member.events(), renewed: member.renewed() }
    }

    /// Waits for another worker's report of the position at which this one continues, which replaces a dead one.
    /// Meanwhile another may be replaced, and there is a later epoch. `None`: no report will come.
    pub(super) async fn resume_point(&mut self, mut grant: Grant) -> Option<(Grant, ResumePoint)> {
        // The last report, with its epoch: it may come before the grant of that epoch.
        let mut reported: Option<(u16, ResumePoint)> = None;
        loop {
            let terms = &grant.terms;
            let fits = |point: &ResumePoint| is_valid(point, terms.lanes().into(), terms.shards.into());
            let current = reported.as_ref().filter(|(epoch, point)| *epoch == terms.epoch && fits(point));
            if let Some((_, point)) = current {
                let point = point.clone();
                return Some((grant, point));
            }
            tokio::select! {
                // A later epoch that is known already counts before a report about this one.
                biased;
                Some(next) = self.renewed.recv() => grant = next,
                Some(event) = self.events.recv() => {
                    if let Event::ResumePoint { epoch, point } = event {
                        reported = Some((epoch, point));
                    }
                }
                else => return None,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;
    use sumac_job::{AggregatorKind, JobTerms, OperationId, Placement};
    use tokio::sync::mpsc::unbounded_channel;

    fn grant(epoch: u16) -> Grant {
        let terms = JobTerms { elements: 352, ..JobTerms::new(1, epoch, 1, 2) };
        let placement = Placement {
            rank: 0,
            aggregator_ip: Ipv4Addr::LOCALHOST,
            base_port: 48700,
            aggregator: AggregatorKind::Host,
            result_group: None,
            rack_rank: 0,
            rack_world: 2,
            bitmap_1: 0,
            beside_root: false,
        };
        Grant { terms, placement }
    }

    fn report(epoch: u16, number: u32) -> Event {
        let point = ResumePoint { operation: OperationId(number), next: vec![number; 2], loads: vec![0] };
        Event::ResumePoint { epoch, point }
    }

    /// Returns the outcome of these events before and these after the next epoch, if there is one.
    async fn resume_point(before: &[Event], next: Option<u16>, after: &[Event]) -> Option<(u16, u32)> {
        let ((send, events), (renew, renewed)) = (unbounded_channel(), unbounded_channel());
        let mut channels = Channels { events, renewed };
        before.iter().for_each(|event| send.send(event.clone()).unwrap());
        let waiting = tokio::spawn(async move { channels.resume_point(grant(2)).await });
        tokio::task::yield_now().await;
        next.into_iter().for_each(|epoch| renew.send(grant(epoch)).unwrap());
        after.iter().for_each(|event| send.send(event.clone()).unwrap());
        drop((send, renew));
        waiting.await.unwrap().map(|(grant, point)| (grant.terms.epoch, point.operation.0))
    }

    #[tokio::test]
    async fn a_replacement_follows_its_own_epoch() {
        let short = Event::ResumePoint { epoch: 2, point: ResumePoint::default() };
        let other = Event::ReportOperations;
        assert_eq!(
            resume_point(&[other.clone(), short, report(2, 7), report(2, 8)], None, &[]).await,
            Some((2, 7))
        );
        assert_eq!(resume_point(&[report(1, 7)], None, &[]).await, None, "an earlier one's");
        assert_eq!(resume_point(&[report(3, 7)], Some(3), &[]).await, Some((3, 7)), "it came first");
        assert_eq!(resume_point(&[other], Some(3), &[report(2, 5), report(3, 9)]).await, Some((3, 9)));
    }
}
