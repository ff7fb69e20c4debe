//! A Tofino switch, through BFRuntime: tables, multicast groups and counters by the names of its bf-rt.json.
//!
//! | module | content |
//! | --- | --- |
//! | [`session`] | the connection: subscription, loading of the program, binding, calls |
//! | [`pipeline`] | the files of a compiled program |
//! | [`schema`] | names, numbers and types of tables |
//! | [`entry`] | entries of tables |
//! | [`groups`] | multicast groups |
//! | [`counters`] | counters |
//! | [`queues`] | the queues of the ports in loopback |
//! | [`mark`] | the number of the switch's memory |
//! | [`status`] | the errors of calls |
//!
//! Ports, their speeds and the recirculation are the operator's business, and the program mirrors nothing: no
//! table of ports or mirror sessions is written, and of the traffic manager only these queues.

mod counters;
mod entry;
mod groups;
mod mark;
mod options;
mod pipeline;
mod queues;
mod schema;
mod session;
mod status;
#[cfg(test)]
mod tests;

use std::{
    collections::BTreeSet,
    io,
    ops::Range,
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering},
    },
};

use tokio::sync::{MappedMutexGuard, Mutex, MutexGuard};

use self::entry::of_entry;
use self::session::{Session, WriteError};
pub use self::{options::Options, pipeline::Pipeline};
use crate::{
    blocking::Blocking,
    proto::bfrt_proto::{TableEntry, update::Type},
    sizes::Compiled,
    target::{Binding, Change, Entry, Group, SwitchError, Target, Update},
};

/// The TCP port on which bf_switchd serves BFRuntime by default.
pub const DEFAULT_PORT: u16 = 50052;

/// A Tofino switch whose program this process is bound to. It connects when it is used, and again after the
/// switch was gone.
pub struct BfRuntime {
    options: Options,
    session: Mutex<Option<Session>>,
    /// Sessions until now.
    sessions: AtomicU64,
    /// Of the program of the first session.
    compiled: OnceLock<Compiled>,
    runtime: Blocking,
}

impl BfRuntime {
    /// Connects to a switch, and binds to its program.
    ///
    /// # Errors
    /// When there is no connection, the program is not there, or another client is bound to it.
    pub fn connect(options: Options) -> Result<BfRuntime, SwitchError> {
        let runtime = Blocking::start("bfruntime").map_err(|error| no_thread(&options, &error))?;
        let (session, sessions) = (Mutex::new(None), AtomicU64::new(0));
        let switch = BfRuntime { options, session, sessions, compiled: OnceLock::new(), runtime };
        switch.instance()?;
        Ok(switch)
    }

    /// Returns the sizes that the program was compiled with, and the pipes of its slots.
    pub fn compiled(&self) -> Result<Compiled, SwitchError> {
        self.call(async |session| Ok(session.compiled.clone()))
    }

    /// Returns the session, a new one where the last has ended.
    async fn session(&self) -> Result<MappedMutexGuard<'_, Session>, SwitchError> {
        let mut session = self.session.lock().await;
        if !session.as_ref().is_some_and(Session::is_open) {
            // Before the next: a program has one client.
            *session = None;
            let mut opened = Session::open(&self.options).await?;
            if *self.compiled.get_or_init(|| opened.compiled.clone()) != opened.compiled {
                let what = "its program has other sizes than before: start this control plane again";
                return Err(self.away(what.into()));
            }
            queues::set(&mut opened).await;
            *session = Some(opened);
            self.sessions.fetch_add(1, Ordering::Relaxed);
        }
        MutexGuard::try_map(session, Option::as_mut).map_err(|_| self.away("no session".into()))
    }

    fn away(&self, what: String) -> SwitchError {
        SwitchError::Away { address: self.options.address.clone(), what }
    }

    /// Runs a call on the session.
    fn call<T: Send>(
        &self,
        call: impl AsyncFnOnce(&mut Session) -> Result<T, SwitchError> + Send,
    ) -> Result<T, SwitchError> {
        let called = self.runtime.run(async || call(&mut *self.session().await?).await);
        called.unwrap_or_else(|error| Err(no_thread(&self.options, &error)))
    }
}

impl Target for BfRuntime {
    fn binding(&self) -> Result<Binding, SwitchError> {
        self.call(async |session| {
            let instance = mark::instance(session).await?;
            // The session is locked, so it is the last of them.
            Ok(Binding { instance, session: self.sessions.load(Ordering::Relaxed) })
        })
    }

    fn write(&self, updates: &[Update]) -> Result<(), SwitchError> {
        self.call(async |session| {
            let schema = session.schema.clone();
            let mut messages = Vec::new();
            let mut of = Vec::new();
            for update in updates {
                match update {
                    Update::Entry(change, entry) => {
                        let table = schema.table(entry.table)?;
                        messages.push(match change {
                            Change::Insert => of_entry(Type::Insert, entry::encode(table, entry)?),
                            Change::Modify => of_entry(Type::Modify, entry::encode(table, entry)?),
                            Change::Delete => of_entry(Type::Delete, entry::with_key(table, &entry.key)?),
                        });
                    }
                    Update::Group(change, group) => {
                        // An insertion that was cut short has left nodes, too.
                        let present: BTreeSet<u32> = groups::nodes_of(session, group.id).await?;
                        messages.extend(groups::updates(&schema, *change, group, &present)?);
                    }
                }
                of.resize(messages.len(), update);
            }
            session.write(messages).await.map_err(|error| match error {
                WriteError::Update(at, error) => match of.get(at) {
                    Some(update) => status::refused_update(update, &error),
                    None => status::refused("writing to the switch", &error),
                },
                WriteError::Call(error) => error,
            })
        })
    }

    fn entries(&self, name: &'static str) -> Result<Vec<Entry>, SwitchError> {
        self.call(async |session| {
            let schema = session.schema.clone();
            let table = schema.table(name)?;
            let all = TableEntry { table_id: table.id, ..TableEntry::default() };
            let entries = session.read(vec![all], &format!("reading table `{name}`")).await?;
            let entries = entries.iter().map(|entry| entry::decode(name, table, entry));
            let entries = entries.filter(|entry| !entry.as_ref().is_ok_and(mark::is_mark));
            entries.collect()
        })
    }

    fn groups(&self) -> Result<Vec<Group>, SwitchError> {
        self.call(groups::read)
    }

    fn counters(&self, counter: &'static str, cells: Range<u32>) -> Result<Vec<u64>, SwitchError> {
        self.call(async |session| counters::read(session, counter, cells).await)
    }

    fn clear_counters(&self, counter: &'static str, cells: Range<u32>) -> Result<(), SwitchError> {
        self.call(async |session| counters::clear(session, counter, cells).await)
    }
}

fn no_thread(options: &Options, error: &io::Error) -> SwitchError {
    let what = format!("this machine has no thread for its calls: {error}");
    SwitchError::Away { address: options.address.clone(), what }
}
