//! Orders for the aggregators of racks, which fetch them by their reports, and wait for what came of them.

use std::{
    collections::{BTreeMap, HashMap},
    net::Ipv4Addr,
    sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc},
    time::Duration,
};

use tokio::sync::watch;

use super::service::LONGEST_REASON;
use crate::{
    coordinator::RackId,
    plane::PlaneInfo,
    post::printable,
    rpc::{RackAnswer, RackInstalled, RackOrder, rack_answer, rack_order},
};

/// How long an order may take: a worker that does not answer ARP takes some seconds. A rack that dies ends it earlier.
const PATIENCE: Duration = Duration::from_secs(15);

/// What came of an order.
pub type Outcome = Result<RackInstalled, String>;

struct Desk {
    ip: Ipv4Addr,
    plane: PlaneInfo,
    last: u64,
    /// Orders without an answer.
    open: BTreeMap<u64, (rack_order::What, mpsc::Sender<Outcome>)>,
}

/// The desks of all racks.
pub struct Desks {
    desks: Mutex<HashMap<RackId, Desk>>,
    /// Counts the moments at which there may be orders for somebody.
    pub news: watch::Sender<u64>,
}

/// An order on its way; withdrawn when dropped.
pub struct Ordered {
    desks: Arc<Desks>,
    rack: RackId,
    number: u64,
    answer: mpsc::Receiver<Outcome>,
}

impl Ordered {
    /// Waits for what comes of it. Blocks.
    pub fn wait(self) -> Outcome {
        self.answer.recv_timeout(PATIENCE).unwrap_or_else(|error| {
            Err(match error {
                mpsc::RecvTimeoutError::Timeout => format!("no answer within {PATIENCE:?}"),
                mpsc::RecvTimeoutError::Disconnected => "it is gone".into(),
            })
        })
    }
}

impl Drop for Ordered {
    /// What nobody waits for is asked for no longer: a rack that answers no order must not be sent ever more of them.
    fn drop(&mut self) {
        if let Some(desk) = self.desks.lock().get_mut(&self.rack) {
            desk.open.remove(&self.number);
        }
    }
}

impl Desks {
    /// No racks.
    pub fn new() -> Desks {
        Desks { desks: Mutex::new(HashMap::new()), news: watch::Sender::new(0) }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<RackId, Desk>> {
        self.desks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A rack is there.
    pub fn open(&self, rack: RackId, ip: Ipv4Addr, plane: PlaneInfo) {
        self.lock().insert(rack, Desk { ip, plane, last: 0, open: BTreeMap::new() });
    }

    /// It is there no more: its orders come to nothing.
    pub fn close(&self, rack: RackId) {
        self.lock().remove(&rack);
    }

    /// The server ends: whoever waits for a rack waits no longer.
    pub fn close_all(&self) {
        self.lock().clear();
    }

    /// Where a rack is, and what its plane has to give.
    pub fn rack(&self, rack: RackId) -> Option<(Ipv4Addr, PlaneInfo)> {
        self.lock().get(&rack).map(|desk| (desk.ip, desk.plane.clone()))
    }

    /// Gives an order. That for a rack that is gone comes to nothing.
    pub fn order(self: &Arc<Self>, rack: RackId, what: rack_order::What) -> Ordered {
        let (told, answer) = mpsc::channel();
        let mut number = 0;
        if let Some(desk) = self.lock().get_mut(&rack) {
            desk.last += 1;
            number = desk.last;
            desk.open.insert(number, (what, told));
        }
        self.news.send_modify(|count| *count = count.wrapping_add(1));
        Ordered { desks: self.clone(), rack, number, answer }
    }

    /// Takes a rack's report: how its plane is, and what came of orders.
    pub fn report(&self, rack: RackId, plane: Option<PlaneInfo>, answers: Vec<RackAnswer>) {
        let mut desks = self.lock();
        let Some(desk) = desks.get_mut(&rack) else { return };
        if let Some(plane) = plane {
            desk.plane = plane;
        }
        for answer in answers {
            let Some((_, told)) = desk.open.remove(&answer.order) else { continue };
            let outcome = match answer.result {
                Some(rack_answer::Result::Installed(installed)) => Ok(installed),
                Some(rack_answer::Result::Failed(why)) => Err(printable(&why, LONGEST_REASON)),
                None => Err("its answer cannot be read".into()),
            };
            // Whoever ordered it may have stopped waiting.
            let _ = told.send(outcome);
        }
    }

    /// The orders that a rack has not answered.
    pub fn orders(&self, rack: RackId) -> Vec<RackOrder> {
        let desks = self.lock();
        let open = desks.get(&rack).into_iter().flat_map(|desk| &desk.open);
        open.map(|(number, (what, _))| RackOrder { number: *number, what: Some(what.clone()) }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plane::PlaneKind;

    const RACK: RackId = RackId(1);

    fn desks() -> Arc<Desks> {
        let plane = PlaneInfo {
            kind: PlaneKind::Host,
            slots: 8,
            max_elements: 8,
            narrowest: None,
            base_port: 48700,
            shards: 1,
            dynamic_slots: 0,
            address: None,
            kept: Vec::new(),
        };
        let desks = Arc::new(Desks::new());
        desks.open(RACK, Ipv4Addr::LOCALHOST, plane);
        desks
    }

    #[test]
    fn an_order_comes_again_until_it_is_answered() {
        let desks = desks();
        let (one, two) =
            (desks.order(RACK, rack_order::What::Remove(1)), desks.order(RACK, rack_order::What::Remove(2)));
        let numbers = || desks.orders(RACK).iter().map(|order| order.number).collect::<Vec<_>>();
        assert_eq!((numbers(), numbers()), (vec![1, 2], vec![1, 2]));
        let failed = |order| RackAnswer { order, result: Some(rack_answer::Result::Failed("s\no".into())) };
        desks.report(RACK, None, vec![failed(1), failed(1), failed(77)]);
        assert_eq!(numbers(), [2]);
        assert_eq!(one.wait(), Err("s o".into()));
        drop(two);
        assert_eq!(numbers(), [0; 0], "nobody waits for it any more");
    }

    #[test]
    fn a_rack_that_is_gone_answers_at_once() {
        let desks = desks();
        let open = desks.order(RACK, rack_order::What::Remove(1));
        desks.close(RACK);
        for ordered in [open, desks.order(RACK, rack_order::What::Remove(2))] {
            assert_eq!(ordered.wait(), Err("it is gone".into()));
        }
    }
}
