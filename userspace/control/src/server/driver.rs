//! The task that lets time pass, asks the data plane how it is, and carries orders to it, one at a time.

use std::{sync::Arc, time::Duration};

use super::{Shared, tree::Tree};
use crate::{DataPlane, coordinator::Action};

const TICK: Duration = Duration::from_millis(100);
/// How often the plane is asked how it is.
const REPORT: Duration = Duration::from_millis(500);

/// Runs for ever; to be aborted.
///
/// Time waits neither for orders nor for reports: an order that asks by ARP for a worker that is not there takes seconds,
/// a plane that is at work on one may not answer meanwhile, and the workers of other jobs can die.
pub async fn run<P: DataPlane>(shared: Arc<Shared>, plane: Arc<Tree<P>>) {
    tokio::join!(pass_time(&shared), watch_plane(&shared, &plane), serve_orders(&shared, &plane));
}

async fn pass_time(shared: &Shared) {
    let mut ticks = every(TICK);
    loop {
        ticks.tick().await;
        let now = shared.now();
        {
            let mut state = shared.lock();
            state.coordinator.tick(now);
            shared.forget_racks(&mut state);
        }
        shared.orders.notify_one();
    }
}

async fn watch_plane<P: DataPlane>(shared: &Shared, plane: &Arc<Tree<P>>) {
    let mut ticks = every(REPORT);
    loop {
        ticks.tick().await;
        report(shared, plane).await;
        shared.orders.notify_one();
    }
}

fn every(period: Duration) -> tokio::time::Interval {
    let mut ticks = tokio::time::interval(period);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    ticks
}

async fn serve_orders<P: DataPlane>(shared: &Shared, plane: &Arc<Tree<P>>) {
    loop {
        shared.orders.notified().await;
        carry_out(shared, plane).await;
    }
}

async fn report<P: DataPlane>(shared: &Shared, plane: &Arc<Tree<P>>) {
    let plane = plane.clone();
    let asked = tokio::task::spawn_blocking(move || Ok((plane.local.instance()?, plane.local.info()?))).await;
    let report = flatten(asked);
    let now = shared.now();
    shared.lock().coordinator.on_plane(now, report);
}

async fn carry_out<P: DataPlane>(shared: &Shared, plane: &Arc<Tree<P>>) {
    loop {
        let Some(action) = shared.lock().coordinator.poll_action() else { break };
        match action {
            Action::Forget(member) => shared.lock().gate.forget(member),
            Action::Install(run, order) => {
                let plane = plane.clone();
                let result = flatten(tokio::task::spawn_blocking(move || plane.install(&order)).await);
                shared.lock().coordinator.on_installed(run, result);
            }
            Action::Resize { run, job, lane_slots, reason } => {
                let plane = plane.clone();
                let resize = move || plane.resize(job, lane_slots, &reason);
                let result = flatten(tokio::task::spawn_blocking(resize).await);
                shared.lock().coordinator.on_resized(run, result);
            }
            Action::Restore { run, order, at } => {
                let plane = plane.clone();
                let result = flatten(tokio::task::spawn_blocking(move || plane.restore(&order, at)).await);
                let now = shared.now();
                shared.lock().coordinator.on_restored(now, run, at, result);
            }
            Action::Resume(run, order) => {
                let plane = plane.clone();
                let result = flatten(tokio::task::spawn_blocking(move || plane.resume(&order)).await);
                let now = shared.now();
                shared.lock().coordinator.on_resumed(now, run, result);
            }
            Action::Renew(run, order) => {
                let plane = plane.clone();
                let result = flatten(tokio::task::spawn_blocking(move || plane.renew(&order)).await);
                let now = shared.now();
                shared.lock().coordinator.on_renewed(now, run, result);
            }
            Action::Remove(run, job) => {
                let plane = plane.clone();
                let result = flatten(tokio::task::spawn_blocking(move || plane.remove(job)).await);
                let now = shared.now();
                shared.lock().coordinator.on_removed(now, run, result);
            }
            Action::Withdraw(run, job) => {
                let plane = plane.clone();
                let result = flatten(tokio::task::spawn_blocking(move || plane.withdraw(job)).await);
                let now = shared.now();
                shared.lock().coordinator.on_removed(now, run, result);
            }
        }
        tell(shared);
    }
    // What came before may have changed something without an order.
    tell(shared);
}

/// Wakes waiting members; each looks whether its own status has changed.
fn tell(shared: &Shared) {
    shared.news.send_modify(|count| *count = count.wrapping_add(1));
}

fn flatten<T>(
    asked: Result<Result<T, crate::plane::PlaneError>, tokio::task::JoinError>,
) -> Result<T, String> {
    match asked {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(error.to_string()),
        Err(error) => Err(format!("the call into the data plane ended abnormally: {error}")),
    }
}

/// Waits until the plane has no job left, and then until members had time to ask; at most `longest`.
pub async fn wait_until_idle(shared: &Shared, longest: Duration) {
    let idle = async {
        while !shared.lock().coordinator.is_idle() {
            tokio::time::sleep(TICK / 4).await;
        }
        // Heartbeats that wait for news are answered at once; give the answers a moment to leave.
        tokio::time::sleep(TICK * 2).await;
    };
    if tokio::time::timeout(longest, idle).await.is_err() {
        tracing::warn!("ended before the data plane had given up all jobs");
    }
}
