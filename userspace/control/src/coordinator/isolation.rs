//! A control plane that receives from nobody. Its own network is cut then, which is no member's fault.
//!
//! | connection of a member, rack or parameter host | it is dead after |
//! | --- | --- |
//! | ended by it | 2 s |
//! | open, and silent | the longest outage: its network may be back by then |
//! | open, and nobody is received from | the longest outage after somebody is received from again |

use super::{
    Coordinator,
    ids::{ConnectionNumber, MemberId, RackId},
    run::Run,
    time::{QUIET_TIMEOUT, SILENCE_TIMEOUT, Time},
};

impl Coordinator {
    /// Returns the silence after which a member, rack or parameter host is dead. One whose connection is open
    /// may have lost its network.
    pub(super) fn patience(&self, is_open: bool) -> Time {
        if is_open { self.longest_outage } else { SILENCE_TIMEOUT }
    }

    /// A member has a connection, in place of an earlier one.
    pub fn on_connected(&mut self, id: MemberId) -> ConnectionNumber {
        let connection = ConnectionNumber(self.silence.next_connection);
        self.silence.next_connection += 1;
        if let Some(member) = self.member(id) {
            member.connection = Some(connection);
        }
        connection
    }

    /// A member has ended its connection, which may have another already. `None`: its only one.
    pub fn on_disconnected(&mut self, id: MemberId, connection: Option<ConnectionNumber>) {
        let now = self.last_tick;
        let Some(member) = self.member(id) else { return };
        if connection.is_some() && member.connection != connection {
            return;
        }
        member.connection = None;
        // After an outage the end of the former connection may come before the next one.
        member.seen = member.seen.max(now);
        let Some((run, rank)) = self.members.get(&id).copied() else { return };
        if self.runs.get(&run).is_some_and(Run::is_waiting) {
            self.vacate(run, rank);
        }
    }

    /// A rack or parameter host has a connection, until it ends it.
    pub fn rack_connected(&mut self, id: RackId, is_open: bool) {
        if let Some(rack) = self.racks.get_mut(&id) {
            rack.is_open = is_open;
            rack.seen = rack.seen.max(self.last_tick);
        }
    }

    /// Returns whether no message comes from anybody, although connections are open: nobody is silent then.
    pub(super) fn note_isolation(&mut self, now: Time) -> bool {
        let is_quiet = now.saturating_sub(self.silence.last_message) >= QUIET_TIMEOUT;
        let is_open = |run: &Run| run.members.values().any(|member| member.connection.is_some());
        let is_isolated = is_quiet && self.runs.values().any(|run| !run.is_over() && is_open(run));
        if std::mem::replace(&mut self.silence.is_isolated, is_isolated) != is_isolated {
            match is_isolated {
                true => tracing::warn!("no message from any member; none counts as dead meanwhile"),
                false => tracing::info!("messages from members again; all have time to reconnect"),
            }
        }
        is_isolated
    }
}
