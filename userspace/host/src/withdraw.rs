//! Withdrawals of jobs whose trainer was interrupted while it opened them.

use sumac_api::{Failure, Outbound, Withdraw, WithdrawReply};
use sumac_transport::JobError;

use crate::connection::ConnectionJobState;
use crate::host::Host;
use crate::job_end::JobEnd;
use crate::refusals::gone;
use crate::{ConnectionId, JobId, Output, Resources};

impl Host {
    /// Ends the job of an `open` that nobody waits for. One that has not been answered is answered by an
    /// error.
    pub(crate) fn withdraw(
        &mut self,
        connection: ConnectionId,
        id: u64,
        withdraw: &Withdraw,
        resources: &mut dyn Resources,
        out: &mut Vec<Output>,
    ) -> Result<(), Failure> {
        let found = self.opened_by(connection, withdraw.open)?;
        if let Some((handle, job)) = found {
            self.withdraw_job((connection, handle), job, resources, out)?;
        }
        let reply = WithdrawReply { withdrawn: found.is_some() };
        self.send(connection, Outbound::ok(id, &reply), out);
        Ok(())
    }

    /// Returns the job that a request has opened, and its handle.
    fn opened_by(&self, connection: ConnectionId, request: u64) -> Result<Option<(u64, JobId)>, Failure> {
        let found = self.state.connections.get(&connection).ok_or_else(gone)?;
        let mut opened = found.jobs.iter().filter(|(_, own)| own.is_opener);
        let is_asked = |job: JobId| self.state.jobs.get(&job).is_some_and(|job| job.request == request);
        Ok(opened.find(|(_, own)| is_asked(own.job)).map(|(handle, own)| (*handle, own.job)))
    }

    fn withdraw_job(
        &mut self,
        (connection, handle): (ConnectionId, u64),
        id: JobId,
        resources: &mut dyn Resources,
        out: &mut Vec<Output>,
    ) -> Result<(), Failure> {
        let found = self.state.connections.get(&connection).ok_or_else(gone)?;
        let who = format!("its trainer ({}), which withdrew its open", found.credentials);
        let state = found.jobs.get(&handle).map(|own| own.state.clone());
        match state {
            Some(ConnectionJobState::Opening) => {
                if let Some(job) = self.state.jobs.get_mut(&id) {
                    job.end_with(id, JobEnd::ours(JobError::Cancelled { by: who }), out);
                }
            }
            Some(ConnectionJobState::Open) => {
                self.remove_handle(connection, handle, resources);
                if let Some(job) = self.state.jobs.get_mut(&id) {
                    job.end_with(id, JobEnd::died(format!("cancelled by {who}")), out);
                }
            }
            Some(ConnectionJobState::Failed(_)) => self.remove_handle(connection, handle, resources),
            Some(ConnectionJobState::Closing { .. }) | None => {}
        }
        Ok(())
    }
}
