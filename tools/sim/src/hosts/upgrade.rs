//! A live upgrade of a simulated host, in place.

use sumac_handover::{read_ended, read_engine, read_host, write_ended, write_engine, write_host};
use sumac_host::{Host, Resources as _};
use sumac_transport::{Engine, OpId, PeerTable};

use super::host::{AGGREGATOR, SimHost, config};

impl SimHost {
    /// Goes on as another daemon would: the core's state and the engines are written and read, and the
    /// handles made anew. Does nothing while a job is being opened or ends.
    pub fn upgrade(&mut self) {
        let is_settled = self.core.unsettled().is_empty()
            && self.sums.is_empty()
            && self.memberships.values().all(|found| found.is_open);
        let lanes = || self.memberships.values().flat_map(|found| &found.lanes);
        if !is_settled || lanes().any(|lane| lane.engine.state_for_handover().is_none()) {
            return;
        }
        let bytes = write_host(self.core.state()).expect("the core's state is written");
        let state = read_host(&bytes).expect("the core's state is read");
        let again = write_host(&state).expect("the core's state is written");
        assert_eq!(bytes, again, "the state does not change by being handed over");
        self.core = Host::resume(config(), state);
        let mut suspended = Vec::new();
        for lane in self.memberships.values_mut().flat_map(|found| &mut found.lanes) {
            let engine = write_engine(&lane.engine.state_for_handover().expect("checked"));
            let engine = read_engine(&engine.expect("an engine is written")).expect("an engine is read");
            let peers = PeerTable::of(Some(AGGREGATOR), []);
            let ended = write_ended(&lane.ended).expect("a queue is written");
            lane.ended = read_ended(&ended).expect("a queue is read");
            let idle = Engine::new(lane.engine.params().clone(), &peers).expect("the same parameters");
            let with_memory: Vec<OpId> = lane.engine.buffers().map(|(number, _)| number).collect();
            drop(std::mem::replace(&mut lane.engine, idle).into_buffers());
            suspended.push((engine, with_memory));
        }
        self.handles.forget_leases();
        for (key, request) in self.core.leases() {
            self.handles.lease(key, request).expect("it was leased before");
        }
        for (key, word) in self.core.words() {
            self.handles.lease_word(key, word).expect("it was leased before");
        }
        let mut suspended = suspended.into_iter();
        for lane in self.memberships.values_mut().flat_map(|found| &mut found.lanes) {
            let Some((engine, with_memory)) = suspended.next() else { return };
            let (keys, handles, core) = (&lane.keys, &mut self.handles, &self.core);
            let buffer = |number: OpId| {
                let key = keys.get(&number).filter(|_| with_memory.contains(&number))?;
                handles.buffer(*key, core.rank_sum(*key))
            };
            lane.engine = engine.resume(buffer).expect("an engine goes on");
        }
        self.upgrades += 1;
    }
}
