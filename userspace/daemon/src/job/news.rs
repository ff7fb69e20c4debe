//! What a job hears of its other workers, from the control plane.

use sumac_control::{Assignment, Member, Notice};
use tokio::sync::mpsc::UnboundedReceiver;

use super::live::read;
use crate::stream::Stand;
use crate::stream::notice::Topic;

/// See the module.
pub(super) struct News {
    /// What the other daemons say, with their ranks.
    pub(super) notices: UnboundedReceiver<(u16, Notice)>,
    /// The job's next incarnations, each with another worker in a dead one's place (ATP appendix A.3).
    pub(super) renewed: UnboundedReceiver<Assignment>,
}

impl News {
    /// To be taken once.
    pub(super) fn of(member: &mut Member) -> News {
        News { notices: member.notices(), renewed: member.renewed() }
    }

    /// Waits until another worker tells this one, which has taken a dead one's place, where the stream goes on. Meanwhile
    /// yet another may be replaced, and there is a later incarnation. `None`: nobody tells anything any more.
    pub(super) async fn stand(&mut self, mut assignment: Assignment) -> Option<(Assignment, Stand)> {
        // What was heard last, under its epoch: it may come before the incarnation that it is about.
        let mut heard: Option<(u32, Stand)> = None;
        loop {
            let fits = |stand: &Stand| stand.fits(assignment.lanes().into(), assignment.shards.into());
            let (epoch, told) = (u32::from(assignment.epoch), heard.as_ref());
            if let Some((_, stand)) = told.filter(|(of, stand)| *of == epoch && fits(stand)) {
                let stand = stand.clone();
                return Some((assignment, stand));
            }
            tokio::select! {
                // A later incarnation that is known already counts before what is told of this one.
                biased;
                Some(next) = self.renewed.recv() => assignment = next,
                Some((rank, notice)) = self.notices.recv() => {
                    if let Some(Topic::Stand { epoch }) = Topic::of(notice.key) {
                        heard = read(rank, &notice.text).map(|stand| (epoch, stand)).or(heard);
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
    use sumac_control::PlaneKind;
    use tokio::sync::mpsc::unbounded_channel;

    fn assignment(epoch: u16) -> Assignment {
        Assignment {
            job: 1,
            epoch,
            token: 1,
            lane_slots: 0,
            tune: false,
            slots_reason: String::new(),
            elements: 352,
            shards: 1,
            aggregator_ip: Ipv4Addr::LOCALHOST,
            base_port: 48700,
            plane: PlaneKind::Host,
            result_group: None,
            rack_rank: 0,
            rack_world: 2,
            dynamic: None,
        }
    }

    fn notice(epoch: u32, number: u32) -> (u16, Notice) {
        let stand = Stand { number, next: vec![number; 2], loads: vec![0] };
        (1, Notice { key: Topic::Stand { epoch }.key(), text: serde_json::to_string(&stand).unwrap() })
    }

    /// What comes of these notices before, and these after, the next incarnation, if there is one.
    async fn stand(
        before: &[(u16, Notice)],
        next: Option<u16>,
        after: &[(u16, Notice)],
    ) -> Option<(u16, u32)> {
        let ((say, notices), (renew, renewed)) = (unbounded_channel(), unbounded_channel());
        let mut news = News { notices, renewed };
        before.iter().for_each(|notice| say.send(notice.clone()).unwrap());
        let waiting = tokio::spawn(async move { news.stand(assignment(2)).await });
        tokio::task::yield_now().await;
        next.into_iter().for_each(|epoch| renew.send(assignment(epoch)).unwrap());
        after.iter().for_each(|notice| say.send(notice.clone()).unwrap());
        drop((say, renew));
        waiting.await.unwrap().map(|(assignment, stand)| (assignment.epoch, stand.number))
    }

    #[tokio::test]
    async fn a_newcomer_hears_where_its_own_incarnation_goes_on() {
        let [odd, other] = [
            (1, Notice { key: notice(2, 0).1.key, text: "{}".into() }),
            (1, Notice { key: 0, text: "".into() }),
        ];
        assert_eq!(stand(&[other.clone(), odd, notice(2, 7), notice(2, 8)], None, &[]).await, Some((2, 7)));
        assert_eq!(stand(&[notice(1, 7)], None, &[]).await, None, "an earlier one's");
        assert_eq!(stand(&[notice(3, 7)], Some(3), &[]).await, Some((3, 7)), "it was heard first");
        assert_eq!(stand(&[other], Some(3), &[notice(2, 5), notice(3, 9)]).await, Some((3, 9)));
    }
}
