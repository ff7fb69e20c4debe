//! The stream of a rack's agent or of a parameter host: commands for its plane, and the relayed streams of its workers.

use std::{collections::HashMap, net::Ipv4Addr, sync::Arc, time::Duration};

use tokio::{
    sync::mpsc,
    time::{interval, timeout},
};
use tokio_stream::{StreamExt as _, wrappers::ReceiverStream};
use tonic::Status as Error;

use super::{
    Shared,
    session::{Caller, Outbound, REASON_LEN, serve_worker},
};
use crate::{
    Secret,
    client::connection::ALIVE_INTERVAL,
    coordinator::{RackEntry, RackId},
    events::printable,
    message::{ClientMessage, Denial, DenialKind, PlaneReport, ServerMessage},
    plane::{PlaneKind, TakenOver},
    rpc::{Inbound, QUEUE_LEN, Queue},
};

/// Time that a plane may take to remove unknown jobs.
const TAKE_OVER_TIMEOUT: Duration = Duration::from_secs(30);
const MAX_RELAYED: usize = 256;

pub struct Entering {
    pub secret: Secret,
    pub name: String,
    pub is_parameter_host: bool,
    pub ip: Ipv4Addr,
}

pub async fn serve(
    shared: &Arc<Shared>,
    entering: Entering,
    mut inbound: Inbound,
    outbound: &Queue,
    authenticated: impl Fn(),
) -> Result<(), Denial> {
    match &shared.secrets.racks {
        None => {
            let message = "this aggregator takes no racks and no parameter hosts: start it with --rack-secret-file FILE";
            return Err(Denial::new(DenialKind::Request, message));
        }
        Some(secret) if *secret != entering.secret => {
            let message =
                "the racks' secret is wrong: give the output of `sumac-agg token --racks` of this aggregator";
            return Err(Denial::new(DenialKind::Secret, message));
        }
        Some(_) => authenticated(),
    }
    let known = shared.lock().coordinator.known_jobs(&entering.name, entering.is_parameter_host);
    let _ = outbound.send(Ok(ServerMessage::Known(known))).await;
    let Some((report, jobs)) = taken_over(&mut inbound).await else {
        return Err(Denial::new(DenialKind::Request, "the data plane was not taken over in time"));
    };
    if (report.info.kind == PlaneKind::Parameter) != entering.is_parameter_host {
        return Err(Denial::new(DenialKind::Request, "a parameter host is no rack"));
    }
    let PlaneReport { info: plane, instance } = report;
    let entry = RackEntry { name: entering.name, ip: entering.ip, plane: plane.clone(), instance, jobs };
    // Before the coordinator sends it commands.
    let entered = shared.update(|coordinator, now| {
        let id = coordinator.rack_enters(now, entry)?;
        Ok::<_, String>((id, shared.links.open(id, entering.ip, plane, outbound.clone())))
    });
    let (id, closed) = entered.map_err(|message| Denial::new(DenialKind::Request, message))?;
    tokio::select! {
        () = exchange(shared, id, inbound, outbound) => {}
        _ = closed => {}
    }
    Ok(())
}

async fn taken_over(inbound: &mut Inbound) -> Option<(PlaneReport, TakenOver)> {
    let answer = async {
        loop {
            match inbound.next().await? {
                Ok(ClientMessage::TakenOver { report, jobs }) => return Some((report, jobs)),
                Ok(_) => {}
                Err(_) => return None,
            }
        }
    };
    timeout(TAKE_OVER_TIMEOUT, answer).await.ok().flatten()
}

async fn exchange(shared: &Arc<Shared>, id: RackId, mut inbound: Inbound, outbound: &Queue) {
    let mut relayed: HashMap<u64, mpsc::Sender<Result<ClientMessage, Error>>> = HashMap::new();
    let mut alive = interval(ALIVE_INTERVAL);
    loop {
        let message = tokio::select! {
            message = inbound.next() => message,
            _ = alive.tick() => {
                let _ = outbound.try_send(Ok(ServerMessage::Alive { received: 0 }));
                continue;
            }
        };
        let Some(Ok(message)) = message else { return };
        shared.touch(|coordinator, now| coordinator.rack_heartbeat(now, id));
        match message {
            ClientMessage::Report(report) => {
                if let Ok(report) = &report {
                    shared.links.update(id, report.info.clone());
                }
                let report = report.map(|report| (report.instance, report.info));
                let report = report.map_err(|why| printable(&why, REASON_LEN));
                if !shared.update(|coordinator, now| coordinator.rack_reports(now, id, report)) {
                    return;
                }
            }
            ClientMessage::Completed { command, result } => {
                let result = result.map_err(|why| printable(&why, REASON_LEN));
                shared.links.complete(id, command, result);
            }
            ClientMessage::Relay { stream, message: None, .. } => drop(relayed.remove(&stream)),
            ClientMessage::Relay { stream, ends: [peer, local], message: Some(message) } => {
                relayed.retain(|_, worker| !worker.is_closed());
                match relayed.get(&stream) {
                    // A worker that sends faster than it is served loses its stream, and not the others'.
                    Some(worker) => {
                        if worker.try_send(Ok(*message)).is_err() {
                            relayed.remove(&stream);
                        }
                    }
                    None if relayed.len() < MAX_RELAYED => {
                        let caller = Caller { peer, local, rack: Some(id) };
                        let worker = Outbound { sender: outbound.clone(), relay: Some(stream) };
                        relayed.insert(stream, begin(shared.clone(), caller, *message, worker));
                    }
                    None => tracing::warn!(%peer, "too many workers below a rack"),
                }
            }
            _ => {}
        }
    }
}

fn begin(
    shared: Arc<Shared>,
    caller: Caller,
    first: ClientMessage,
    outbound: Outbound,
) -> mpsc::Sender<Result<ClientMessage, Error>> {
    let (sender, inbound) = mpsc::channel(QUEUE_LEN);
    tokio::spawn(async move {
        let inbound: Inbound = Box::pin(ReceiverStream::new(inbound));
        if let Err(denial) = serve_worker(&shared, caller, first, inbound, &outbound, || {}).await {
            shared.log_denial(caller.peer, &denial);
            let _ = outbound.sender.send(outbound.wrap(ServerMessage::Denied(denial))).await;
        }
        if let Some(stream) = outbound.relay {
            let _ = outbound.sender.send(Ok(ServerMessage::Relay { stream, message: None })).await;
        }
    });
    sender
}
