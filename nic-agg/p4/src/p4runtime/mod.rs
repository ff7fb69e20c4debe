//! A switch behind a P4Runtime server (p4lang/p4runtime), as `simple_switch_grpc` of the behavioural model
//! has one.

mod message;
mod program;
mod session;

use std::{future::Future, ops::Range, sync::mpsc, time::Duration};

use prost::Message as _;
use tokio::{
    runtime::Handle,
    sync::watch,
    task::AbortHandle,
    time::{self, Instant},
};
use tonic::{Code, Status};

pub use program::Program;
pub use session::Server;
use session::{CALL_TIMEOUT, Client, State, keep};

use crate::{
    proto::{
        google::rpc,
        p4::v1::{self as p4, Entity, ReadRequest, WriteRequest},
    },
    target::{Binding, Change, Entry, Group, SwitchError, Target, Update},
};

/// Updates of one call.
const BATCH: usize = 1024;

/// A session with a P4Runtime server. Ends when dropped.
#[derive(Debug)]
pub struct P4Runtime {
    server: Server,
    program: Program,
    state: watch::Receiver<State>,
    runtime: Handle,
    session: AbortHandle,
}

impl P4Runtime {
    /// Becomes the primary of a switch, and loads the program unless it runs already. It is done again
    /// whenever the server comes back. Not to be called by a task of `runtime`.
    ///
    /// # Errors
    /// When none of that is done within `timeout`, where the time for loading does not count: that has a
    /// limit of its own.
    pub fn start(
        runtime: &Handle,
        server: Server,
        program: Program,
        timeout: Duration,
    ) -> Result<P4Runtime, SwitchError> {
        let first =
            SwitchError::Away { address: server.address.clone(), what: "it is being connected".into() };
        let (sender, state) = watch::channel(State::Away(first));
        let session = runtime.spawn(keep(server.clone(), program.clone(), sender)).abort_handle();
        let started = P4Runtime { server, program, state, runtime: runtime.clone(), session };
        let mut state = started.state.clone();
        runtime.block_on(until_ready(&mut state, timeout));
        started.ready().map(|_| started)
    }

    fn ready(&self) -> Result<(Client, Binding), SwitchError> {
        match &*self.state.borrow() {
            State::Ready { client, binding } => Ok((client.clone(), *binding)),
            State::Away(error) => Err(error.clone()),
            State::Loading(file) => Err(SwitchError::Away {
                address: self.server.address.clone(),
                what: format!("it loads the program of {file}"),
            }),
        }
    }

    /// Makes a call in the session's runtime, and waits for its end.
    fn call<T: Send + 'static, F: Future<Output = Result<T, Status>> + Send>(
        &self,
        call: impl FnOnce(Client) -> F + Send + 'static,
    ) -> Result<Result<T, Status>, SwitchError> {
        let (client, _) = self.ready()?;
        let (done, wait) = mpsc::channel();
        self.runtime.spawn(async move {
            let outcome = time::timeout(CALL_TIMEOUT, call(client)).await;
            let late = |_| Err(Status::deadline_exceeded("it does not answer"));
            // The caller waits.
            let _ = done.send(outcome.unwrap_or_else(late));
        });
        let stopped = |_| SwitchError::Away {
            address: self.server.address.clone(),
            what: "this control plane is ending".into(),
        };
        wait.recv().map_err(stopped)
    }

    fn is_full(&self, table: &'static str) -> bool {
        let size = self.program.table(table).map_or(0, |table| table.size);
        self.entries(table).is_ok_and(|entries| entries.len() >= size)
    }

    fn read(&self, doing: &str, entities: Vec<Entity>) -> Result<Vec<Entity>, SwitchError> {
        let request = ReadRequest { device_id: self.server.device, entities, ..ReadRequest::default() };
        let read = self.call(|mut client| async move {
            let mut answers = client.read(request).await?.into_inner();
            let mut all = Vec::new();
            while let Some(answer) = answers.message().await? {
                all.extend(answer.entities);
            }
            Ok(all)
        })?;
        read.map_err(|status| self.server.refused(doing, &status))
    }

    fn send(&self, updates: Vec<p4::Update>) -> Result<Result<(), Status>, SwitchError> {
        let request = WriteRequest {
            device_id: self.server.device,
            election_id: self.server.election_id(),
            updates,
            ..WriteRequest::default()
        };
        self.call(|mut client| async move { client.write(request).await.map(drop) })
    }

    /// Returns the error of the first update that the server did not apply.
    fn write_error(&self, updates: &[Update], status: &Status) -> SwitchError {
        let failed = errors(status).into_iter().zip(updates).find(|(error, _)| error.canonical_code != 0);
        let Some((error, update)) = failed else {
            return self.server.refused("writing to the switch", status);
        };
        let code = Code::from(error.canonical_code);
        match (code, update) {
            (Code::ResourceExhausted, Update::Entry(_, entry)) => {
                SwitchError::TableFull { table: entry.table.to_owned(), what: error.message }
            }
            // The model does not say why.
            (Code::Unknown, Update::Entry(Change::Insert, entry)) if self.is_full(entry.table) => {
                let what = "as many as P4Info says".to_owned();
                SwitchError::TableFull { table: entry.table.to_owned(), what }
            }
            (Code::ResourceExhausted, Update::Group(..)) => {
                SwitchError::TableFull { table: "multicast groups".into(), what: error.message }
            }
            _ => {
                let what = format!("{code:?}: {}", error.message);
                SwitchError::Refused { doing: update.to_string(), what }
            }
        }
    }
}

impl Target for P4Runtime {
    fn binding(&self) -> Result<Binding, SwitchError> {
        self.ready().map(|(_, binding)| binding)
    }

    fn write(&self, updates: &[Update]) -> Result<(), SwitchError> {
        for batch in updates.chunks(BATCH) {
            let messages = batch.iter().map(|update| message::update(&self.program, update));
            let sent = self.send(messages.collect::<Result<_, _>>()?)?;
            sent.map_err(|status| self.write_error(batch, &status))?;
        }
        Ok(())
    }

    fn entries(&self, table: &'static str) -> Result<Vec<Entry>, SwitchError> {
        let asked = message::all_entries(self.program.table(table)?);
        let read = self.read(&format!("reading table `{table}`"), vec![asked])?;
        let entries = read.iter().map(|entity| message::entry(&self.program, table, entity));
        entries.filter_map(Result::transpose).collect()
    }

    fn groups(&self) -> Result<Vec<Group>, SwitchError> {
        let read = self.read("reading the multicast groups", vec![message::all_groups()])?;
        read.iter().filter_map(|entity| message::group(entity).transpose()).collect()
    }

    fn counters(&self, counter: &'static str, cells: Range<u32>) -> Result<Vec<u64>, SwitchError> {
        let id = self.program.counter(counter)?;
        let asked = cells.clone().map(|cell| message::counter(id, cell, None));
        let read = self.read(&format!("reading counter `{counter}`"), asked.collect())?;
        let mut counts = vec![0; cells.len()];
        for (cell, packets) in read.iter().filter_map(message::cell) {
            let count = cell.checked_sub(cells.start).and_then(|index| counts.get_mut(index as usize));
            if let Some(count) = count {
                *count = packets;
            }
        }
        Ok(counts)
    }

    fn clear_counters(&self, counter: &'static str, cells: Range<u32>) -> Result<(), SwitchError> {
        let id = self.program.counter(counter)?;
        let clear = |cell| p4::Update {
            r#type: p4::update::Type::Modify.into(),
            entity: Some(message::counter(id, cell, Some(0))),
        };
        let cleared = self.send(cells.map(clear).collect())?;
        cleared.map_err(|status| self.server.refused(format!("clearing counter `{counter}`"), &status))
    }
}

impl Drop for P4Runtime {
    fn drop(&mut self) {
        self.session.abort();
    }
}

/// Waits until the session is ready, at most so long, and longer while the program is loaded.
async fn until_ready(state: &mut watch::Receiver<State>, timeout: Duration) {
    let is_away = |state: &State| matches!(state, State::Away(_));
    let deadline = Instant::now() + timeout;
    loop {
        let _ = time::timeout_at(deadline, state.wait_for(|state| !is_away(state))).await;
        let loaded = state.wait_for(|state| !matches!(state, State::Loading(_))).await;
        if !loaded.is_ok_and(|state| is_away(&state)) || Instant::now() >= deadline {
            return;
        }
    }
}

/// Returns the errors of a write by update; none where the server does not say which failed.
fn errors(status: &Status) -> Vec<p4::Error> {
    let Ok(details) = rpc::Status::decode(status.details()) else { return Vec::new() };
    details.details.iter().filter_map(|any| p4::Error::decode(&any.value[..]).ok()).collect()
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use super::*;

    #[tokio::test]
    async fn a_load_may_take_longer_than_the_start() {
        let (sender, mut state) = watch::channel(State::Loading("sumac.json".into()));
        let mut waiting = pin!(until_ready(&mut state, Duration::ZERO));
        let waited = time::timeout(Duration::from_millis(50), &mut waiting).await;
        assert!(waited.is_err(), "it is loading");
        sender.send_replace(State::Away(SwitchError::Away { address: "a".into(), what: "b".into() }));
        waiting.await;
    }
}
