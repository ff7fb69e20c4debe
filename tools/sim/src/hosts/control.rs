//! The loss of a simulated host's control plane.

use sumac_control::coordinator::Coordinator;

use super::host::SimHost;

impl SimHost {
    /// The connections to the control plane have ended, which it notices.
    pub fn disconnect_control(&mut self, coordinator: &mut Coordinator) {
        for member in self.memberships.values().filter_map(|found| found.member) {
            coordinator.on_disconnected(member, None);
        }
        self.lose_control();
    }

    /// The control plane was restarted. Jobs that are being opened end, as their connections do.
    pub fn lose_control(&mut self) {
        for found in self.memberships.values_mut() {
            found.is_stale = true;
            if !found.is_open {
                found.member = None;
                found.deadline = 0;
            }
        }
    }
}
