//! All data planes as one: this aggregator's own, those of the racks below it (SwitchML section 7), and the
//! parameter hosts of dynamic jobs (ATP). `None` stands for this aggregator's own.

use std::{
    collections::{HashMap, VecDeque},
    net::{Ipv4Addr, SocketAddrV4},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use sumac_job::Placement;
use tokio::{sync::oneshot, task::JoinHandle, time::timeout};

use super::connections::Queue;
use crate::{
    DataPlane,
    coordinator::{InstalledJob, JobOrder, Position, RackId, Replaced, Sender},
    message::{Completion, PlaneCommand, ServerMessage},
    plane::{Installed, JobInstall, Level, PlaneInfo, PlaneKind, WorkerInstall, blocking},
};

/// Timeout of a command: a worker that does not answer ARP takes some seconds. A rack that dies ends it
/// earlier.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(15);

pub type CommandResult = Result<Completion, String>;

struct Link {
    /// The role and address, for people.
    title: String,
    outbound: Queue,
    /// Ends the session when dropped.
    _session: oneshot::Sender<()>,
    /// The commands that are not completed yet; they are executed one after the other.
    open: VecDeque<oneshot::Sender<CommandResult>>,
}

/// The connections of racks and parameter hosts.
#[derive(Default)]
pub struct Links(Mutex<HashMap<RackId, Link>>);

/// A command under way.
enum Pending {
    /// At this aggregator's own plane.
    Here(JoinHandle<CommandResult>),
    At(String, oneshot::Receiver<CommandResult>),
    Gone,
}

impl Pending {
    async fn wait(self, doing: &str) -> CommandResult {
        let (title, outcome) = match self {
            Pending::Here(task) => return task.await.unwrap_or_else(|error| Err(error.to_string())),
            Pending::At(title, outcome) => (title, outcome),
            Pending::Gone => return Err(format!("{doing}: a rack or parameter host that is gone")),
        };
        let outcome = match timeout(COMMAND_TIMEOUT, outcome).await {
            Ok(outcome) => outcome.unwrap_or_else(|_| Err("it is gone".into())),
            Err(_) => Err(format!("no answer within {COMMAND_TIMEOUT:?}")),
        };
        outcome.map_err(|what| format!("{doing}: {title}: {what}"))
    }
}

impl Links {
    fn lock(&self) -> MutexGuard<'_, HashMap<RackId, Link>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A rack has entered, in place of its earlier connection. The receiver is closed when this one is not to
    /// go on.
    pub fn open(&self, rack: RackId, title: String, outbound: Queue) -> oneshot::Receiver<()> {
        let (session, closed) = oneshot::channel();
        self.lock().insert(rack, Link { title, outbound, _session: session, open: VecDeque::new() });
        closed
    }

    /// It is gone: its commands fail.
    pub fn close(&self, rack: RackId) {
        self.lock().remove(&rack);
    }

    fn has(&self, rack: RackId) -> bool {
        self.lock().contains_key(&rack)
    }

    /// Sends a command. One for a rack that is gone fails.
    fn command(&self, rack: RackId, command: PlaneCommand) -> Pending {
        let mut links = self.lock();
        let Some(link) = links.get_mut(&rack) else { return Pending::Gone };
        let (sender, outcome) = oneshot::channel();
        let message = ServerMessage::Command(command);
        // With a full queue the rack does not read, and is about to be taken for dead.
        if link.outbound.try_send(message).is_ok() {
            link.open.push_back(sender);
        }
        Pending::At(link.title.clone(), outcome)
    }

    pub fn complete(&self, rack: RackId, outcome: CommandResult) {
        let sender = self.lock().get_mut(&rack).and_then(|link| link.open.pop_front());
        // Whoever sent it may have stopped waiting.
        if let Some(sender) = sender {
            let _ = sender.send(outcome);
        }
    }
}

/// Executes commands on all planes that a job needs.
pub struct Planes<'a, P> {
    pub local: Arc<P>,
    pub links: &'a Links,
}

impl<P: DataPlane> Planes<'_, P> {
    fn send(&self, at: Option<RackId>, command: PlaneCommand) -> Pending {
        let Some(rack) = at else {
            let plane = self.local.clone();
            let called = async move { blocking(&plane, |plane| command.execute(plane)).await };
            return Pending::Here(tokio::spawn(called));
        };
        self.links.command(rack, command)
    }

    /// Sends one command to many.
    fn send_all(
        &self,
        to: impl Iterator<Item = Option<RackId>>,
        command: &PlaneCommand,
    ) -> Vec<(Option<RackId>, Pending)> {
        to.map(|at| (at, self.send(at, command.clone()))).collect()
    }

    /// Installs a job: here first, as racks and parameter hosts need the addresses that it gets here.
    pub async fn install(&self, mut order: JobOrder) -> Result<InstalledJob, String> {
        if order.terms.is_direct() {
            let placements = (0..order.terms.world).map(beside_all).collect();
            return Ok(InstalledJob { placements, parents: Vec::new() });
        }
        let mut placements = vec![None; order.workers.len()];
        let (here, info) = self.install_at(&order, None).await?;
        place(&order, None, &here, &info, &mut placements);
        if order.layout.has_racks() {
            let parents = here.aggregator_ips.iter().map(|ip| SocketAddrV4::new(*ip, info.base_port));
            order.parents = parents.collect();
        }
        let mut sent = Vec::new();
        for sender in order.layout.senders(None) {
            let Sender::Rack(rack) = sender else { continue };
            let at = Some(rack);
            sent.push((at, self.send(at, PlaneCommand::Install(Box::new(part(&order, at)?)))));
        }
        for (number, host) in order.hosts.iter().enumerate() {
            let upstream = match info.kind {
                PlaneKind::None => Vec::new(),
                _ => {
                    let ip = here.host_sides.get(number).ok_or_else(incomplete)?;
                    vec![SocketAddrV4::new(*ip, info.base_port)]
                }
            };
            let part = Box::new(host_part(&order, upstream));
            sent.push((Some(*host), self.send(Some(*host), PlaneCommand::Install(part))));
        }
        // From the root down: a rack needs the address of the one above it.
        while !sent.is_empty() {
            let mut below = Vec::new();
            for (at, pending) in sent {
                let (installed, plane) = installed(pending.wait("installing the job at").await)?;
                place(&order, at, &installed, &plane, &mut placements);
                for (sender, ip) in order.layout.senders(at).into_iter().zip(&installed.aggregator_ips) {
                    if let (Sender::Rack(rack), Some(_)) = (sender, at) {
                        order.uplinks.insert(rack, SocketAddrV4::new(*ip, plane.base_port));
                        below.push(Some(rack));
                    }
                }
            }
            let send = |at: Option<RackId>| {
                Ok::<_, String>((at, self.send(at, PlaneCommand::Install(Box::new(part(&order, at)?)))))
            };
            sent = below.into_iter().map(send).collect::<Result<_, _>>()?;
        }
        let placements = placements.into_iter().collect::<Option<Vec<_>>>().ok_or_else(incomplete)?;
        Ok(InstalledJob { placements, parents: order.parents })
    }

    async fn install_at(
        &self,
        order: &JobOrder,
        at: Option<RackId>,
    ) -> Result<(Installed, PlaneInfo), String> {
        let pending = self.send(at, PlaneCommand::Install(Box::new(part(order, at)?)));
        installed(pending.wait("installing the job at").await)
    }

    /// Installs a running job again. A rest of it there is removed first: an earlier command may have been
    /// executed whose outcome was lost.
    async fn reinstall(
        &self,
        order: &JobOrder,
        at: Option<RackId>,
    ) -> Result<(Installed, PlaneInfo), String> {
        let removed = self.send(at, PlaneCommand::Remove { job: order.terms.job });
        removed.wait("removing the job from").await?;
        self.install_at(order, at).await
    }

    pub async fn restore(&self, order: &JobOrder, at: Option<RackId>) -> Result<(), String> {
        self.reinstall(order, at).await.map(drop)
    }

    pub async fn resize(&self, order: &JobOrder) -> Result<(), String> {
        let (job, slots, reason) = (order.terms.job, order.terms.slots, order.terms.slots_reason.clone());
        let command = PlaneCommand::Resize { job, slots, reason };
        for (_, pending) in self.send_all(order.layout.aggregators(), &command) {
            pending.wait("resizing the job at").await?;
        }
        Ok(())
    }

    /// Removes a job. A rack or parameter host that is gone removes its jobs by itself.
    pub async fn remove(&self, job: u16, from: &[RackId]) -> Result<(), String> {
        let all = std::iter::once(None).chain(from.iter().copied().map(Some));
        for (at, pending) in self.send_all(all, &PlaneCommand::Remove { job }) {
            match pending.wait("removing the job from").await {
                Err(error) if at.is_none_or(|rack| self.links.has(rack)) => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    /// Changes a job to the epoch of its terms. Parameter hosts must go on; the job does without an
    /// aggregator that does not answer, and without one that cannot have it.
    pub async fn renew(&self, order: &JobOrder) -> Result<Replaced, String> {
        let resume = self.renew_hosts(order).await?;
        let none = vec![None; order.workers.len()];
        let mut replaced = Replaced { placements: none, resume, lost: Vec::new() };
        for at in order.layout.aggregators().filter(|at| !order.unfit.contains(at)) {
            match self.reinstall(order, at).await {
                Ok((installed, plane)) => place(order, at, &installed, &plane, &mut replaced.placements),
                Err(error) => {
                    tracing::warn!(job = order.terms.job, error, "the job goes on without an aggregator");
                    replaced.lost.push(at);
                }
            }
        }
        Ok(replaced)
    }

    /// Renews at all parameter hosts; returns of each lane the first chunk that its own has not summed.
    async fn renew_hosts(&self, order: &JobOrder) -> Result<Vec<u32>, String> {
        let command = PlaneCommand::Renew(Box::new(host_part(order, Vec::new())));
        let mut firsts = Vec::new();
        for (_, pending) in self.send_all(order.hosts.iter().copied().map(Some), &command) {
            match pending.wait("going on with the job at").await? {
                Completion::Renewed { resume } => firsts.push(resume),
                _ => return Err(incomplete()),
            }
        }
        let first_of = |lane: u16| {
            let shard = usize::from(lane.checked_rem(order.terms.shards)?);
            firsts.get(shard.checked_rem(firsts.len())?)?.get(usize::from(lane)).copied()
        };
        (0..order.terms.lanes()).map(first_of).collect::<Option<_>>().ok_or_else(incomplete)
    }
}

fn installed(outcome: CommandResult) -> Result<(Installed, PlaneInfo), String> {
    match outcome? {
        Completion::Installed(installed, plane) => Ok((installed, plane)),
        _ => Err(incomplete()),
    }
}

/// A job as one aggregator has it.
fn part(order: &JobOrder, at: Option<RackId>) -> Result<JobInstall, String> {
    let (layout, contributors) = (&order.layout, order.terms.world);
    let worker = |sender: Sender| match sender {
        Sender::Worker(rank) => order.workers.get(rank).cloned(),
        // The plane finds the MAC address of the rack by itself.
        Sender::Rack(rack) => order.racks.get(&rack).map(|address| {
            let (ip, port) = (*address.ip(), address.port());
            WorkerInstall { ip, port, mac: [0; 6], local_ip: ip, paths: 1 }
        }),
    };
    let level = match at {
        Some(rack) => {
            let above = layout.above(rack);
            let beside = layout.senders(above);
            let number =
                beside.iter().position(|other| *other == Sender::Rack(rack)).ok_or_else(incomplete)?;
            let parent = match above {
                None => order.parents.get(number),
                Some(_) => order.uplinks.get(&rack),
            };
            Level::Rack {
                rack: number as u16,
                racks: beside.len() as u16,
                contributors,
                parent: *parent.ok_or_else(incomplete)?,
                has_racks: layout.is_middle(rack),
            }
        }
        None if layout.has_racks() => Level::Root { contributors },
        None => Level::Only,
    };
    let workers: Option<Vec<_>> = layout.senders(at).into_iter().map(worker).collect();
    Ok(JobInstall { ranks: layout.ranks(at), ..whole(order, level, workers.ok_or_else(incomplete)?) })
}

fn host_part(order: &JobOrder, upstream: Vec<SocketAddrV4>) -> JobInstall {
    let contributors = order.layout.contributors();
    JobInstall { contributors, upstream, ..whole(order, Level::Only, order.workers.clone()) }
}

fn whole(order: &JobOrder, level: Level, workers: Vec<WorkerInstall>) -> JobInstall {
    JobInstall {
        terms: order.terms.clone(),
        first_slot: order.first_slot,
        stealing: order.stealing,
        level,
        workers,
        ranks: Vec::new(),
        contributors: Vec::new(),
        upstream: Vec::new(),
    }
}

/// Fills in the placements of the workers that send to an aggregator, whose answer this is.
fn place(
    order: &JobOrder,
    at: Option<RackId>,
    installed: &Installed,
    plane: &PlaneInfo,
    placements: &mut [Option<Placement>],
) {
    let children = order.layout.children().iter().enumerate();
    for (number, child) in children.filter(|(_, child)| child.rack == at) {
        for (bit, rank) in child.ranks.iter().enumerate() {
            let position = Position { child: number, bit, fan_in: child.ranks.len() };
            let index = match at {
                Some(_) => bit,
                // The root's answer is about its children.
                None if order.layout.has_racks() => number,
                None => *rank,
            };
            if let Some(placement) = placements.get_mut(*rank) {
                *placement = installed.aggregator_ips.get(index).map(|ip| Placement {
                    rank: *rank as u16,
                    aggregator_ip: *ip,
                    base_port: plane.base_port,
                    aggregator: plane.kind,
                    result_group: installed.result_group,
                    rack_rank: bit as u16,
                    rack_world: child.ranks.len() as u16,
                    bitmap_1: order.layout.bitmap_1(position),
                    beside_root: order.layout.is_beside_racks(position),
                });
            }
        }
    }
}

/// The placement of a worker of a direct job, which no plane has.
fn beside_all(rank: u16) -> Placement {
    Placement {
        rank,
        aggregator_ip: Ipv4Addr::UNSPECIFIED,
        base_port: 0,
        aggregator: PlaneKind::None,
        result_group: None,
        rack_rank: 0,
        rack_world: 1,
        bitmap_1: 0,
        beside_root: false,
    }
}

fn incomplete() -> String {
    "installing a job: the plane's answer is not about all workers and parameter hosts".into()
}
