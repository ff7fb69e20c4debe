//! The connection of one worker, at this aggregator or relayed by a rack; and that of a rack's agent or
//! parameter host.

use std::{net::Ipv4Addr, sync::Arc, time::Duration};

use tokio::{
    sync::watch,
    time::{interval, timeout},
};

use super::{
    connections::{Inbound, Peer, Queue, SessionHandler},
    data_networks::{ForeignAddress, data_address},
    shared::{Secrets, Shared},
};
use crate::{
    Refusal, Secret,
    client::connection::ALIVE_INTERVAL,
    coordinator::{ConnectionNumber, Holder, Join, MemberId, Outcome, RackEntry, RackId},
    events::printable,
    frames::FrameError,
    message::{
        ClientMessage, Denial, DenialKind, End, Enter, Hello, JoinRequest, PROTOCOL_VERSION, Reconnect,
        ServerMessage, Status,
    },
    plane::{PlaneInfo, PlaneKind, PlaneReport, TakenOver, WorkerInstall},
    wake_times,
};

/// Time that a connection may be open before its first messages have come.
const FIRST_MESSAGE_TIMEOUT: Duration = Duration::from_secs(5);
/// Time after which a connection without any message ends: its member or rack is taken for dead long before.
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest reason that is passed on, in bytes.
const REASON_LEN: usize = 1024;
/// Time that a plane may take to remove unknown jobs.
const TAKE_OVER_TIMEOUT: Duration = Duration::from_secs(30);

pub struct Sessions(pub Arc<Shared>);

impl SessionHandler for Sessions {
    async fn serve(&self, peer: &Peer, inbound: &mut Inbound, outbound: Queue) {
        let [ip, local] = peer.ends;
        let mut caller = Caller { peer: ip, local, rack: None };
        if let Err(denial) = serve(&self.0, peer, &mut caller, inbound, &outbound).await {
            self.on_denied(caller.peer, &denial);
            // The client may be gone.
            let _ = outbound.send(ServerMessage::Denied(denial)).await;
        }
    }

    fn on_denied(&self, peer: Ipv4Addr, denial: &Denial) {
        self.0.log_denial(peer, denial);
    }
}

async fn serve(
    shared: &Shared,
    peer: &Peer,
    caller: &mut Caller,
    inbound: &mut Inbound,
    outbound: &Queue,
) -> Result<(), Denial> {
    let mut first = first_messages(inbound).await?;
    // Each rack on the way puts its own in front.
    while let ClientMessage::Relay { rack, ends } = first {
        shared.check_racks_secret(&rack.secret)?;
        let entered = shared.lock().coordinator.entered_rack(&rack.name, caller.peer, caller.rack);
        let Some(rack) = entered else {
            // It was lost. It will enter again, and its workers will try again.
            return Ok(());
        };
        *caller = Caller { peer: ends[0], local: ends[1], rack: Some(rack) };
        first = next_message(inbound).await?;
    }
    if let Some(rack) = caller.rack
        && !peer.ticket.relay(rack)
    {
        let why = "the rack relays as many workers as it may";
        let _ = outbound.send(ServerMessage::Unavailable(why.into())).await;
        return Ok(());
    }
    match first {
        ClientMessage::Enter(enter) => {
            shared.check_racks_secret(&enter.secret)?;
            peer.authenticate(inbound);
            serve_rack(shared, enter, *caller, inbound, outbound).await
        }
        first => serve_worker(shared, peer, *caller, first, inbound, outbound).await,
    }
}

/// Reads the first message of a connection, and the one after it. A denial states what is wrong with them.
pub async fn first_messages(inbound: &mut Inbound) -> Result<ClientMessage, Denial> {
    let (hello, own) = (next_message(inbound).await?, Hello::own());
    match hello {
        ClientMessage::Hello(hello) if hello.protocol == PROTOCOL_VERSION => {}
        ClientMessage::Hello(Hello { protocol, build }) => {
            let message = format!(
                "the client is of release {} (control protocol {protocol}), the aggregator of {} ({}): \
                install the same release on both",
                printable(&build, 64),
                own.build,
                own.protocol
            );
            return Err(Denial::new(DenialKind::Version, message));
        }
        _ => return Err(Denial::new(DenialKind::Request, "the first message is no hello")),
    }
    next_message(inbound).await
}

async fn next_message(inbound: &mut Inbound) -> Result<ClientMessage, Denial> {
    match timeout(FIRST_MESSAGE_TIMEOUT, inbound.next()).await {
        Ok(Some(Ok(message))) => Ok(message),
        Ok(Some(Err(error))) => Err(Denial::new(DenialKind::Request, error.to_string())),
        Ok(None) | Err(_) => Err(Denial::new(DenialKind::Request, "no message came")),
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Caller {
    pub peer: Ipv4Addr,
    /// The aggregator's.
    pub local: Ipv4Addr,
    pub rack: Option<RackId>,
}

#[derive(Default)]
struct Sent {
    revision: u64,
    next_event: u64,
}

async fn serve_worker(
    shared: &Shared,
    peer: &Peer,
    caller: Caller,
    first: ClientMessage,
    inbound: &mut Inbound,
    outbound: &Queue,
) -> Result<(), Denial> {
    let mut sent = Sent::default();
    let (id, connection) = match first {
        ClientMessage::Join { secret, request } => {
            shared.check_secret(&request.spec.job, &secret)?;
            peer.authenticate(inbound);
            match shared.join(caller, *request) {
                Ok(member) => member,
                Err(status) => {
                    let _ = outbound.send(ServerMessage::Status(status)).await;
                    return Ok(());
                }
            }
        }
        ClientMessage::Reconnect(Reconnect { secret, job, rank, session, received }) => {
            shared.check_secret(&job, &secret)?;
            peer.authenticate(inbound);
            let again = shared.update(|coordinator, now| {
                coordinator.reconnect(now, &job, rank, session, received)?;
                Ok(coordinator.on_connected(session))
            });
            let connection = match again {
                Ok(connection) => connection,
                Err(failure) => {
                    let _ = outbound.send(ServerMessage::Status(Status::Over(End::Failed(failure)))).await;
                    return Ok(());
                }
            };
            sent.next_event = received;
            (session, connection)
        }
        _ => return Err(Denial::new(DenialKind::Request, "a worker's first message is a join")),
    };
    let _ = outbound.send(ServerMessage::Joined { session: id }).await;
    let ended = exchange(shared, id, inbound, outbound, sent).await;
    // A silent connection was not ended by its member: the network may be cut.
    if inbound.silence() <= IDLE_TIMEOUT {
        shared.update(|coordinator, _| coordinator.on_disconnected(id, Some(connection)));
    }
    ended
}

/// Serves a member until one side ends the connection. A denial states what is wrong with a message.
async fn exchange(
    shared: &Shared,
    id: MemberId,
    inbound: &mut Inbound,
    outbound: &Queue,
    mut sent: Sent,
) -> Result<(), Denial> {
    let listening = shared.lock().coordinator.listen(id);
    // Without a run the first look ends it.
    let mut changed = listening.unwrap_or_else(|| watch::channel(()).1);
    let mut alive = wake_times::ticks(ALIVE_INTERVAL);
    let mut next = None;
    loop {
        if next.is_none() {
            changed.mark_unchanged();
            next = shared.next_message(id, &mut sent);
        }
        tokio::select! {
            message = inbound.next() => match message {
                Some(Ok(message)) => {
                    if !shared.on_message(id, message) {
                        let _ = outbound.send(ServerMessage::Status(Status::Over(End::Finished))).await;
                        return Ok(());
                    }
                }
                Some(Err(FrameError::Io(_))) | None => return Ok(()),
                Some(Err(error)) => return Err(Denial::new(DenialKind::Request, error.to_string())),
            },
            permit = outbound.reserve(), if next.is_some() => {
                let Ok(permit) = permit else { return Ok(()) };
                if let Some(message) = next.take() {
                    let is_last = matches!(message, ServerMessage::Status(Status::Over(_)));
                    permit.send(message);
                    if is_last {
                        return Ok(());
                    }
                }
            }
            _ = changed.changed(), if next.is_none() => {}
            _ = alive.tick() => {
                if inbound.silence() > IDLE_TIMEOUT {
                    return Ok(());
                }
                let received = shared.lock().coordinator.posted(id);
                // With a full queue the client does not read anyway.
                let _ = outbound.try_send(ServerMessage::Alive { received });
            }
        }
    }
}

impl Shared {
    fn check_racks_secret(&self, given: &Secret) -> Result<(), Denial> {
        if self.secrets.racks == *given {
            return Ok(());
        }
        let message = "the racks' secret is wrong: give the output of `sumac-agg token --racks` of this \
            aggregator; at a rack, of `sumac-agg token --racks --secret-file FILE` with the root's in FILE";
        Err(Denial::new(DenialKind::Secret, message))
    }

    fn check_secret(&self, job: &str, given: &Secret) -> Result<(), Denial> {
        if self.secrets.accepts(job, given) {
            return Ok(());
        }
        let message =
            "the shared secret is wrong: give all workers the output of `sumac-agg token` for this job";
        Err(Denial::new(DenialKind::Secret, message))
    }

    fn log_denial(&self, peer: Ipv4Addr, denial: &Denial) {
        self.count(|stats| stats.denied.of(denial.kind));
        if let Some(suppressed) = self.refused.allow(std::time::Instant::now()) {
            tracing::warn!(%peer, why = denial.message, suppressed, "connection refused");
        }
    }

    fn join(&self, caller: Caller, asked: JoinRequest) -> Result<(MemberId, ConnectionNumber), Status> {
        let (name, rank, peer) =
            (printable(&asked.spec.job, crate::JOB_NAME_LEN), asked.spec.rank, caller.peer);
        let joined = self.admit(caller, asked);
        self.count(|stats| if joined.is_ok() { &mut stats.joins } else { &mut stats.joins_refused });
        match joined {
            Ok(member) => {
                tracing::info!(name, rank, %peer, "worker joined");
                Ok(member)
            }
            Err(refusal) => {
                if let Some(suppressed) = self.refused.allow(std::time::Instant::now()) {
                    tracing::warn!(name, rank, %peer, %refusal, suppressed, "join refused");
                }
                Err(Status::Over(End::Refused(refusal)))
            }
        }
    }

    fn admit(&self, caller: Caller, asked: JoinRequest) -> Result<(MemberId, ConnectionNumber), Refusal> {
        let host = &asked.host;
        let ip = data_address(Some(host.data_ip), caller.peer, &self.data_networks)
            .map_err(|foreign| Refusal::foreign_address(asked.spec.rank, &foreign))?;
        let (port, mac, paths) = (host.data_port, host.mac, host.paths);
        let worker = WorkerInstall { ip, port, mac, local_ip: caller.local, paths };
        let holders = self.holders(caller.peer, &asked);
        let request = Join { asked, worker, rack: caller.rack, holders };
        self.repair_journal().map_err(|why| Refusal::journal(&why))?;
        // In one step: the connection is that of the last attempt to join.
        let (id, connection) = self.update(|coordinator, now| {
            let id = coordinator.join(now, &request)?;
            Ok((id, coordinator.on_connected(id)))
        })?;
        // A worker that was to replace another is no member if that is not on the disk.
        if self.lock().coordinator.status(id).is_some() {
            return Ok((id, connection));
        }
        let why = self.repair_journal().err();
        Err(Refusal::journal(&why.unwrap_or_else(|| "it could not be written down; join again".into())))
    }

    /// Denies a rack or parameter host whose packets would go to another host.
    fn check_address(&self, plane: &PlaneInfo, connection: Ipv4Addr) -> Result<(), Denial> {
        let denied = |foreign: ForeignAddress| Denial::new(DenialKind::Request, foreign.to_string());
        data_address(plane.address, connection, &self.data_networks).map(drop).map_err(denied)
    }

    /// Whoever a worker's part of a job counts for. Root is no user but its host's administrator.
    fn holders(&self, host: Ipv4Addr, asked: &JoinRequest) -> Vec<Holder> {
        let (Secrets { jobs, .. }, name) = (&self.secrets, &asked.spec.job);
        let user = Some(asked.host.user).filter(|user| *user != 0);
        let secret =
            (!jobs.is_empty()).then(|| Holder::Secret(jobs.get_key_value(name).map(|(job, _)| job.clone())));
        let of_host = user.map(|user| Holder::UserOf(host, user));
        [Some(Holder::Host(host)), user.map(Holder::User), of_host, secret].into_iter().flatten().collect()
    }

    fn next_message(&self, id: MemberId, sent: &mut Sent) -> Option<ServerMessage> {
        let coordinator = &self.lock().coordinator;
        if let Some((number, event)) = coordinator.event(id, sent.next_event) {
            sent.next_event = number + 1;
            return Some(ServerMessage::Event { number, event });
        }
        // To make a status takes time, and most calls find the one that was sent.
        if coordinator.revision(id) == Some(sent.revision) {
            return None;
        }
        let Some((revision, status)) = coordinator.status(id) else {
            return Some(ServerMessage::Status(Status::Over(End::Finished)));
        };
        sent.revision = revision;
        Some(ServerMessage::Status(status))
    }

    /// Takes a member's message. `false`: it has left.
    fn on_message(&self, id: MemberId, message: ClientMessage) -> bool {
        match message {
            ClientMessage::Alive { received } => self.touch(|coordinator, now| {
                coordinator.heartbeat(now, id);
                coordinator.on_received(id, received);
            }),
            ClientMessage::Posts { first, posts } => {
                self.update(|coordinator, now| coordinator.post(now, id, first, posts));
            }
            ClientMessage::Leave(outcome) => {
                let reason = |reason: String| match printable(&reason, REASON_LEN) {
                    reason if reason.is_empty() => "for no stated reason".into(),
                    reason => reason,
                };
                let outcome = match outcome {
                    Outcome::Done => Outcome::Done,
                    Outcome::Failed(why) => Outcome::Failed(reason(why)),
                    Outcome::Died(why) => Outcome::Died(reason(why)),
                };
                self.update(|coordinator, _| coordinator.leave(id, &outcome));
                return false;
            }
            // Others are no member's.
            _ => {}
        }
        true
    }
}

/// Serves a rack or parameter host whose secret is right: commands for its plane.
async fn serve_rack(
    shared: &Shared,
    Enter { name, is_parameter_host, .. }: Enter,
    Caller { peer: ip, rack: above, .. }: Caller,
    inbound: &mut Inbound,
    outbound: &Queue,
) -> Result<(), Denial> {
    let refuse = |message: &str| Denial::new(DenialKind::Request, message);
    let is_known = shared.lock().coordinator.is_known_rack(&name, is_parameter_host);
    if let (false, Err(why)) = (is_known, shared.repair_journal()) {
        let _ = outbound.send(ServerMessage::Unavailable(why)).await;
        return Ok(());
    }
    let known = shared.lock().coordinator.known_jobs(&name, is_parameter_host);
    let _ = outbound.send(ServerMessage::Known(known)).await;
    let Some(((instance, plane), jobs)) = taken_over(inbound).await else {
        return Err(refuse("the data plane was not taken over in time"));
    };
    if (plane.kind == PlaneKind::Parameter) != is_parameter_host {
        return Err(refuse("a parameter host is no rack"));
    }
    shared.check_address(&plane, ip)?;
    let role = if is_parameter_host { "parameter host" } else { "rack" };
    // Before the coordinator sends it commands.
    let entered = shared.update(|coordinator, now| {
        let id = coordinator.rack_enters(now, RackEntry { name, ip, above, plane, instance, jobs })?;
        Ok::<_, String>((id, shared.links.open(id, format!("the {role} at {ip}"), outbound.clone())))
    });
    let (id, closed) = entered.map_err(|message| refuse(&message))?;
    if !shared.lock().coordinator.has_rack(id) {
        let why = "the entry is not on the disk: see the log of `sumac-agg serve`";
        let _ = outbound.send(ServerMessage::Unavailable(why.into())).await;
        return Ok(());
    }
    // A completion that comes after the rack has entered anew belongs to none of the new session's commands.
    shared.touch(|coordinator, _| coordinator.rack_connected(id, true));
    tokio::select! {
        biased;
        _ = closed => {}
        ended = exchange_with_rack(shared, (id, ip), inbound, outbound) => {
            if inbound.silence() <= IDLE_TIMEOUT {
                shared.touch(|coordinator, _| coordinator.rack_connected(id, false));
            }
            return ended;
        }
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

/// Serves a rack until one side ends the connection. A denial states what is wrong with a message.
async fn exchange_with_rack(
    shared: &Shared,
    (id, ip): (RackId, Ipv4Addr),
    inbound: &mut Inbound,
    outbound: &Queue,
) -> Result<(), Denial> {
    let mut alive = interval(ALIVE_INTERVAL);
    loop {
        let message = tokio::select! {
            message = inbound.next() => message,
            _ = alive.tick() => {
                if inbound.silence() > IDLE_TIMEOUT {
                    return Ok(());
                }
                let _ = outbound.try_send(ServerMessage::Alive { received: 0 });
                continue;
            }
        };
        let Some(Ok(message)) = message else { return Ok(()) };
        shared.touch(|coordinator, now| coordinator.rack_heartbeat(now, id));
        match message {
            ClientMessage::Report(report) => {
                if let Ok((_, plane)) = &report {
                    shared.check_address(plane, ip)?;
                }
                let report = report.map_err(|why| printable(&why, REASON_LEN));
                if !shared.update(|coordinator, now| coordinator.rack_reports(now, id, report)) {
                    return Ok(());
                }
            }
            ClientMessage::Completed(result) => {
                let result = result.map_err(|why| printable(&why, REASON_LEN));
                shared.links.complete(id, result);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frames;

    #[tokio::test]
    async fn another_release_is_told_which_ones_do_not_fit() {
        let other = Hello { protocol: PROTOCOL_VERSION - 1, build: "0.0.9".into() };
        let mut tasks = tokio::task::JoinSet::new();
        let (near, far) = tokio::io::duplex(1024);
        let (_, client) = frames::open::<ServerMessage, _>(near, &mut tasks);
        client.send(ClientMessage::Hello(other)).await.unwrap();
        let mut inbound = Inbound::new(far);
        let denial = first_messages(&mut inbound).await.expect_err("another protocol");
        assert_eq!(denial.kind, DenialKind::Version);
        for part in ["release 0.0.9", &Hello::own().build, "install the same release on both"] {
            assert!(denial.message.contains(part), "{}", denial.message);
        }
    }
}
