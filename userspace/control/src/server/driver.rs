//! The task that lets time pass and carries orders to the data plane, one at a time.

use std::{sync::Arc, time::Duration};

use super::{Shared, tree::Tree};
use crate::{DataPlane, coordinator::Action};

const TICK: Duration = Duration::from_millis(100);
/// Every how many ticks the plane is asked how it is.
const TICKS_PER_REPORT: u32 = 5;

/// Runs for ever; to be aborted.
///
/// Time does not wait for orders: one that asks by ARP for a worker that is not there takes seconds, in which the
/// workers of other jobs can die.
pub async fn run<P: DataPlane>(shared: Arc<Shared>, plane: Arc<Tree<P>>) {
    tokio::join!(pass_time(&shared, &plane), serve_orders(&shared, &plane));
}

async fn pass_time<P: DataPlane>(shared: &Shared, plane: &Arc<Tree<P>>) {
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut count = 0u32;
    loop {
        ticks.tick().await;
        count = count.wrapping_add(1);
        if count.is_multiple_of(TICKS_PER_REPORT) {
            report(shared, plane).await;
        }
        let now = shared.now();
        {
            let mut state = shared.lock();
            state.coordinator.tick(now);
            shared.forget_racks(&mut state);
        }
        shared.orders.notify_one();
    }
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
            Action::Resize(run, job, lane_slots) => {
                let plane = plane.clone();
                let result =
                    flatten(tokio::task::spawn_blocking(move || plane.resize(job, lane_slots)).await);
                shared.lock().coordinator.on_resized(run, result);
            }
            Action::Remove(run, job) => {
                let plane = plane.clone();
                let result = flatten(tokio::task::spawn_blocking(move || plane.remove(job)).await);
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
