//! The task that lets time pass for the coordinator and executes its commands on the data planes.

use std::{sync::Arc, time::Duration};

use tokio::time::MissedTickBehavior;

use super::{Shared, planes::Planes};
use crate::{DataPlane, coordinator::Action, plane::PlaneError};

/// Between two looks at the clock.
const TICK: Duration = Duration::from_millis(100);
/// Between two looks at the plane.
const PLANE_INTERVAL: Duration = Duration::from_millis(500);

pub async fn run<P: DataPlane>(shared: Arc<Shared>, planes: Arc<Planes<P>>) {
    tokio::join!(pass_time(&shared), watch_plane(&shared, &planes), execute_all(&shared, &planes));
}

async fn pass_time(shared: &Shared) {
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        shared.update(super::super::coordinator::Coordinator::tick);
    }
}

async fn watch_plane<P: DataPlane>(shared: &Shared, planes: &Arc<Planes<P>>) {
    loop {
        tokio::time::sleep(PLANE_INTERVAL).await;
        let report = blocking(planes, |planes| Ok((planes.local.instance()?, planes.local.info()?))).await;
        shared.update(|coordinator, now| coordinator.on_plane(now, report));
    }
}

async fn execute_all<P: DataPlane>(shared: &Shared, planes: &Arc<Planes<P>>) {
    let mut changed = shared.changed.subscribe();
    loop {
        while let Some(action) = shared.poll_action() {
            execute(shared, planes, action).await;
        }
        // The sender is part of `shared`.
        let _ = changed.changed().await;
    }
}

async fn execute<P: DataPlane>(shared: &Shared, planes: &Arc<Planes<P>>, action: Action) {
    match action {
        Action::Install(run, order) => {
            let result = blocking(planes, move |planes| planes.install(&order)).await;
            shared.update(|coordinator, _| coordinator.on_installed(run, result));
        }
        Action::Resize(run, order) => {
            let result = blocking(planes, move |planes| planes.resize(&order)).await;
            shared.update(|coordinator, _| coordinator.on_resized(run, result));
        }
        Action::Restore { run, order, at } => {
            let result = blocking(planes, move |planes| planes.restore(&order, at)).await;
            shared.update(|coordinator, now| coordinator.on_restored(now, run, at, result));
        }
        Action::Renew(run, order) => {
            let result = blocking(planes, move |planes| planes.renew(&order)).await;
            shared.update(|coordinator, now| coordinator.on_replaced(now, run, result));
        }
        Action::Remove { run, job, from } => {
            let result = blocking(planes, move |planes| planes.remove(job, &from)).await;
            shared.update(|coordinator, now| coordinator.on_removed(now, run, result));
        }
    }
}

/// Calls into data planes, off the asynchronous threads. The error is for people.
pub(crate) async fn blocking<P: Send + Sync + 'static, T: Send + 'static>(
    planes: &Arc<P>,
    call: impl FnOnce(&P) -> Result<T, PlaneError> + Send + 'static,
) -> Result<T, String> {
    let planes = planes.clone();
    match tokio::task::spawn_blocking(move || call(&planes)).await {
        Ok(result) => result.map_err(|error| error.to_string()),
        Err(error) => Err(format!("the call into the data plane ended abnormally: {error}")),
    }
}

/// Waits until the planes have no job left, and then until members had time to receive it; at most `longest`.
pub async fn wait_until_idle(shared: &Shared, longest: Duration) {
    let idle = async {
        while !shared.lock().coordinator.is_idle() {
            tokio::time::sleep(TICK / 4).await;
        }
        tokio::time::sleep(TICK * 2).await;
    };
    if tokio::time::timeout(longest, idle).await.is_err() {
        tracing::warn!("ended before the data plane had removed all jobs");
    }
}
