//! The client of a root that offers a data plane: it enters, reports, and executes commands.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
    time::{interval, sleep},
};

use super::relay::Uplink;
use crate::{
    DataPlane, Endpoint,
    client::connection::{ALIVE_INTERVAL, ConnectError, Connection},
    message::{ClientMessage, Completion, PlaneCommand, PlaneReport, ServerMessage},
    plane::{KnownJob, PlaneError, TakenOver},
    server::{ServeError, driver::flatten},
};

/// Between two attempts to enter.
const RETRY: Duration = Duration::from_millis(500);

/// The client of a root for one data plane.
pub(super) struct RackAgent<P> {
    plane: Arc<P>,
    parent: Endpoint,
    name: String,
    is_parameter_host: bool,
    uplink: watch::Sender<Option<Uplink>>,
}

impl<P> Clone for RackAgent<P> {
    fn clone(&self) -> RackAgent<P> {
        RackAgent {
            plane: self.plane.clone(),
            parent: self.parent.clone(),
            name: self.name.clone(),
            is_parameter_host: self.is_parameter_host,
            uplink: self.uplink.clone(),
        }
    }
}

/// A parameter host below a control plane (ATP section 3.6).
pub struct ParameterHostAgent<P>(RackAgent<P>);

impl<P: DataPlane> ParameterHostAgent<P> {
    /// Offers `plane` to the control plane at `parent` under this name.
    pub fn new(plane: P, parent: Endpoint, name: String) -> ParameterHostAgent<P> {
        ParameterHostAgent(RackAgent::new(plane, parent, name, true))
    }

    /// Runs until aborted.
    pub async fn run(self) {
        self.0.run().await;
    }
}

impl<P: DataPlane> RackAgent<P> {
    pub fn new(plane: P, parent: Endpoint, name: String, is_parameter_host: bool) -> RackAgent<P> {
        RackAgent {
            plane: Arc::new(plane),
            parent,
            name,
            is_parameter_host,
            uplink: watch::Sender::new(None),
        }
    }

    /// The connection to the root, for relayed workers; none while it is lost.
    pub fn uplink(&self) -> watch::Receiver<Option<Uplink>> {
        self.uplink.subscribe()
    }

    /// Removes all jobs.
    pub async fn remove_all(&self) -> Result<(), ServeError> {
        let plane = self.plane.clone();
        tokio::task::spawn_blocking(move || plane.take_over(&[])).await??;
        Ok(())
    }

    /// Runs until aborted.
    pub async fn run(self) {
        let mut logged = String::new();
        loop {
            let address = self.parent.address;
            let mut has_entered = false;
            let error = match self.enter().await {
                Ok(connection) => self.serve(connection, &mut has_entered).await.to_string(),
                Err(error) => error.to_string(),
            };
            self.uplink.send_replace(None);
            if has_entered {
                tracing::warn!(root = %address, error, "lost the root; entering again");
            } else if error != logged {
                tracing::warn!(root = %address, error, "cannot enter below the root; trying again");
                logged = error;
            }
            sleep(RETRY).await;
        }
    }

    async fn enter(&self) -> Result<Connection, ConnectError> {
        let enter = ClientMessage::Enter {
            secret: self.parent.secret.clone(),
            name: self.name.clone(),
            is_parameter_host: self.is_parameter_host,
        };
        let mut connection = Connection::open(&self.parent, vec![enter]).await?;
        let known = loop {
            if let ServerMessage::Known(known) = connection.receive().await? {
                break known;
            }
        };
        let (jobs, report) = self.take_over(known).await.map_err(ConnectError::Unreachable)?;
        connection.send(ClientMessage::TakenOver { report, jobs }).await?;
        Ok(connection)
    }

    async fn take_over(&self, known: Vec<KnownJob>) -> Result<(TakenOver, PlaneReport), String> {
        let plane = self.plane.clone();
        let taken = tokio::task::spawn_blocking(move || {
            let jobs = plane.take_over(&known)?;
            Ok((jobs, report(&*plane)?))
        });
        flatten(taken.await)
    }

    /// Reports and executes commands until the root is lost.
    async fn serve(&self, mut connection: Connection, has_entered: &mut bool) -> ConnectError {
        let (commands, queue) = mpsc::unbounded_channel();
        let executor = tokio::spawn(execute_all(self.plane.clone(), queue, connection.outbound.clone()));
        // Ends with this call, also when it is aborted.
        let mut reporter = JoinSet::new();
        reporter.spawn(report_all(self.plane.clone(), connection.outbound.clone()));
        let uplink = Uplink::new(connection.outbound.clone());
        let error = loop {
            let message = connection.receive().await;
            if message.is_ok() && !std::mem::replace(has_entered, true) {
                tracing::info!(root = %self.parent.address, name = self.name, "below the root");
                self.uplink.send_replace(Some(uplink.clone()));
            }
            match message {
                // The receiver ends only after this sender.
                Ok(ServerMessage::Command { number, command }) => drop(commands.send((number, command))),
                Ok(ServerMessage::Relay { stream, message }) => {
                    uplink.deliver(stream, message.map(|message| *message))
                }
                Ok(_) => {}
                Err(error) => break error,
            }
        };
        uplink.close();
        drop((reporter, commands, connection));
        // A command that is being executed ends by itself, before the rack enters again.
        if let Err(error) = executor.await {
            tracing::error!(%error, "the execution of commands ended abnormally");
        }
        error
    }
}

fn report<P: DataPlane>(plane: &P) -> Result<PlaneReport, PlaneError> {
    Ok(PlaneReport { info: plane.info()?, instance: plane.instance()? })
}

/// Reports the plane's state twice a second.
async fn report_all<P: DataPlane>(plane: Arc<P>, outbound: mpsc::Sender<ClientMessage>) {
    let mut ticks = interval(ALIVE_INTERVAL);
    loop {
        ticks.tick().await;
        let plane = plane.clone();
        let report = flatten(tokio::task::spawn_blocking(move || report(&*plane)).await);
        if outbound.send(ClientMessage::Report(report)).await.is_err() {
            return;
        }
    }
}

/// Executes one command after the other, until there are no more.
async fn execute_all<P: DataPlane>(
    plane: Arc<P>,
    mut commands: mpsc::UnboundedReceiver<(u64, PlaneCommand)>,
    outbound: mpsc::Sender<ClientMessage>,
) {
    while let Some((command, order)) = commands.recv().await {
        let plane = plane.clone();
        let result = flatten(tokio::task::spawn_blocking(move || execute(&*plane, order)).await);
        // The root may be lost meanwhile.
        let _ = outbound.send(ClientMessage::Completed { command, result }).await;
    }
}

fn execute<P: DataPlane>(plane: &P, command: PlaneCommand) -> Result<Completion, PlaneError> {
    match command {
        PlaneCommand::Install(job) => plane.install(&job).map(Completion::Installed),
        PlaneCommand::Renew(job) => plane.renew(&job).map(|resume| Completion::Renewed { resume }),
        PlaneCommand::Resize { job, slots, reason } => {
            plane.resize(job, slots, &reason).map(|()| Completion::Done)
        }
        PlaneCommand::Remove { job } => plane.remove(job).map(|()| Completion::Done),
    }
}
