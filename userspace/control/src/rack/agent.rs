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
    plane::PlaneError,
    server::{ServeError, driver::blocking},
};

const RETRY: Duration = Duration::from_millis(500);

pub(super) struct RackAgent<P> {
    plane: Arc<P>,
    parent: Endpoint,
    name: String,
    is_parameter_host: bool,
    uplink: watch::Sender<Option<Uplink>>,
}

/// A parameter host below a control plane (ATP section 3.6).
pub struct ParameterHostAgent<P>(RackAgent<P>);

impl<P: DataPlane> ParameterHostAgent<P> {
    /// Offers `plane` to the control plane at `parent` under this name.
    pub fn new(plane: P, parent: Endpoint, name: String) -> ParameterHostAgent<P> {
        ParameterHostAgent(RackAgent::new(Arc::new(plane), parent, name, true))
    }

    pub async fn run(self) {
        self.0.run().await;
    }
}

impl<P: DataPlane> RackAgent<P> {
    pub fn new(plane: Arc<P>, parent: Endpoint, name: String, is_parameter_host: bool) -> RackAgent<P> {
        let uplink = watch::Sender::new(None);
        RackAgent { plane, parent, name, is_parameter_host, uplink }
    }

    /// The connection to the root, for relayed workers; none while it is lost.
    pub fn uplink(&self) -> watch::Receiver<Option<Uplink>> {
        self.uplink.subscribe()
    }

    pub async fn remove_all(&self) -> Result<(), ServeError> {
        let plane = self.plane.clone();
        tokio::task::spawn_blocking(move || plane.take_over(&[])).await??;
        Ok(())
    }

    pub async fn run(&self) {
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
        let taken = blocking(&self.plane, move |plane| Ok((plane.take_over(&known)?, report(plane)?))).await;
        let (jobs, report) = taken.map_err(ConnectError::Unreachable)?;
        connection.send(ClientMessage::TakenOver { report, jobs }).await?;
        Ok(connection)
    }

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
                    uplink.deliver(stream, message.map(|message| *message));
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

async fn report_all<P: DataPlane>(plane: Arc<P>, outbound: mpsc::Sender<ClientMessage>) {
    let mut ticks = interval(ALIVE_INTERVAL);
    loop {
        ticks.tick().await;
        if outbound.send(ClientMessage::Report(blocking(&plane, report).await)).await.is_err() {
            return;
        }
    }
}

async fn execute_all<P: DataPlane>(
    plane: Arc<P>,
    mut commands: mpsc::UnboundedReceiver<(u64, PlaneCommand)>,
    outbound: mpsc::Sender<ClientMessage>,
) {
    while let Some((command, order)) = commands.recv().await {
        let result = blocking(&plane, |plane| execute(plane, order)).await;
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
