//! The task of a rank without a membership and a part in the data path of its own: all ranks of the job are
//! on this host, or another one of this host's has them.

use std::time::Duration;

use sumac_api::Failure;
use sumac_control::wake_times;
use sumac_datapath::monotonic_ns;
use sumac_host::{JobEnd, JobId};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::{Instant, sleep, timeout_at};

use super::live::{CHECK_INTERVAL, IDLE_INTERVAL};
use super::task::JobTask;
use crate::core::Core;
use crate::job_events::{Freeze, HandedOver, TaskEvent};

/// The longest wait for other ranks: the clock has no time as far ahead as a client may ask for.
const LONGEST_WAIT: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
/// The interval of looks at sums that are about to end.
const SUM_INTERVAL: Duration = Duration::from_millis(1);

impl JobTask {
    pub(super) async fn run_locally(self, mut events: UnboundedReceiver<TaskEvent>) {
        let Some(gathered) = self.gathered(&mut events).await else { return };
        let opened = gathered.and_then(|()| self.context.core.call(|host, _, out| host.opened(self.id, out)));
        match opened {
            Ok(()) => {
                self.context.opens.count(&Ok::<_, Failure>(()));
                tracing::info!(job = self.plan.spec.job, rank = self.plan.spec.rank, "all ranks are here");
                self.live_locally(events).await;
            }
            Err(failure) => self.not_opened(failure),
        }
    }

    /// Takes the rank's place in the job, and waits for the others: those of this host, and unless this one
    /// is to join them itself those of the other hosts. `None`: the job goes on in another daemon.
    pub(super) async fn gathered(
        &self,
        events: &mut UnboundedReceiver<TaskEvent>,
    ) -> Option<Result<(), Failure>> {
        loop {
            tokio::select! {
                gathered = self.gather() => return Some(gathered),
                Some(TaskEvent::Freeze(Freeze { frozen, release })) = events.recv() => {
                    let _ = frozen.send(Ok(None));
                    if let Ok(HandedOver) = release.await {
                        return None;
                    }
                }
            }
        }
    }

    async fn gather(&self) -> Result<(), Failure> {
        tokio::select! {
            named = self.take_name() => named?,
            failure = self.interrupted() => return Err(failure),
        }
        let (core, id) = (&self.context.core, self.id);
        let waited = core.call(|host, _, _| host.waited(monotonic_ns(), id));
        let limit = Duration::try_from_secs_f64(self.plan.spec.timeout_s.unwrap_or_default());
        let limit = limit.unwrap_or(LONGEST_WAIT).min(LONGEST_WAIT);
        let deadline = Instant::now() + limit.saturating_sub(waited);
        let joins = self.plan.endpoint.is_some();
        loop {
            let (failure, is_gathered, is_running) =
                core.call(|host, _, _| (host.interruption(id), host.is_gathered(id), host.is_running(id)));
            match failure {
                Some(failure) => return Err(failure),
                None if is_running || joins && is_gathered => return Ok(()),
                // The wait for the other hosts has its own deadline.
                None if is_gathered => {
                    self.wake.notified().await;
                    continue;
                }
                None => {}
            }
            if timeout_at(deadline, self.wake.notified()).await.is_err() {
                return Err(core.call(|host, _, out| host.give_up_gathering(id, out)));
            }
        }
    }

    /// Waits for the job's end, also in a daemon that has taken it over.
    pub(crate) async fn live_locally(self, mut events: UnboundedReceiver<TaskEvent>) {
        let (core, id) = (self.context.core.clone(), self.id);
        let mut ticks = wake_times::ticks(CHECK_INTERVAL);
        let end = loop {
            tokio::select! {
                () = self.wake.notified() => {}
                Some(event) = events.recv() => if let TaskEvent::Freeze(Freeze { frozen, release }) = event {
                    let _ = frozen.send(Ok(None));
                    if let Ok(HandedOver) = release.await {
                        return;
                    }
                },
                _ = ticks.tick() => {
                    let is_idle = core.call(|host, _, out| {
                        host.tick_locally(monotonic_ns(), id, out);
                        host.is_idle(id)
                    });
                    if is_idle {
                        ticks.reset_at(wake_times::next(IDLE_INTERVAL));
                    }
                }
            }
            if let Some(end) = core.call(|host, _, out| host.take_end(id, out)) {
                break end;
            }
        };
        wait_for_sums(&core, id).await;
        self.finish_locally(&end);
    }

    fn finish_locally(&self, end: &JobEnd) {
        let (core, id, spec) = (&self.context.core, self.id, &self.plan.spec);
        core.call(|host, arena, out| host.finish(monotonic_ns(), id, end, arena, out));
        match end {
            JobEnd::Closed { request } => {
                tracing::info!(job = spec.job, rank = spec.rank, "closed");
                core.call(|host, arena, out| host.closed(id, *request, arena, out));
            }
            JobEnd::Failed { failure, .. } => {
                log_limited!(warn, job = spec.job, rank = spec.rank, %failure, "ended");
            }
        }
        core.remove_job(id);
    }
}

/// Waits until no memory of a rank is in use.
pub(super) async fn wait_for_sums(core: &Core, id: JobId) {
    while core.call(|host, _, _| host.is_summing(id)) {
        sleep(SUM_INTERVAL).await;
    }
}
