//! One job's stream of operations on this host: several connections submit into it, and it goes out over several lanes.
//!
//! ```text
//!  sessions --- submit ---> number, parts ---> lanes (class x shard) ---> data path
//!           <-- outcome --- collected     <--- completions of parts <---
//! ```
//!
//! The lock is held while an operation is handed to the data path, so that all lanes have the operations in the same
//! order. In a job in order of names an operation waits here until the aggregator has heard its name from all workers.

mod clients;
mod errand;
mod lanes;
mod log;
mod named;
mod parts;
mod past;
mod stand;
mod what;
mod work;

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use sumac_api::{Code, Failure};
use tokio::sync::mpsc::UnboundedSender;

use self::clients::Clients;
use self::errand::LentPart;
use self::lanes::{Lanes, Place};
use self::log::Log;
use self::named::Named;
use self::parts::divide;
use self::what::signature;
use self::work::Work;
use crate::carrier::Carrier;
use crate::line::Order;
use crate::operations::Outcome;
use crate::region::Ranges;
use crate::session::Note;

pub(crate) use self::clients::{Client, ClientId};
pub(crate) use self::errand::Errand;
pub(crate) use self::log::Claim;
pub(crate) use self::parts::Share;
pub(crate) use self::stand::Stand;
pub(crate) use self::what::What;
pub(crate) use self::work::{Doubt, PartEnd};

/// What of a job decides how its operations are divided.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    /// The job's number in packets.
    pub(crate) wire_job: u16,
    pub(crate) rank: u16,
    pub(crate) world: u16,
    /// Classes of priority, each with lanes of its own.
    pub(crate) classes: u16,
    pub(crate) shards: u16,
    /// 32-bit words of a full packet.
    pub(crate) elements: u16,
    /// Float sums take 16 bits on the wire.
    pub(crate) is_short: bool,
    /// Operations belong together by name, not by order of submission.
    pub(crate) by_name: bool,
}

impl Shape {
    /// Elements of an operation's tensor that a full packet carries.
    fn per_chunk(&self, what: &What) -> u64 {
        u64::from(self.elements) * what.values_per_word(self.is_short)
    }
}

/// An operation as its session hands it in.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) what: What,
    pub(crate) priority: u8,
    pub(crate) client: ClientId,
    /// The operation's handle at its client.
    pub(crate) op: u64,
    /// What this worker gives and takes of the tensor.
    pub(crate) share: Share,
}

/// A request with its memory, on its way into the lanes.
#[derive(Debug)]
struct Loaded {
    request: Request,
    /// With the chunks of each.
    parts: Vec<(u32, LentPart)>,
}

/// An operation that is to be announced to the other workers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Announced {
    pub(crate) name: String,
    pub(crate) signature: u32,
    pub(crate) words: String,
    pub(crate) priority: u8,
}

impl From<&Loaded> for Announced {
    fn from(loaded: &Loaded) -> Announced {
        let words = loaded.request.what.words();
        Announced {
            name: loaded.request.what.name.clone().unwrap_or_default(),
            signature: signature(&words),
            words,
            priority: loaded.request.priority,
        }
    }
}

#[derive(Debug)]
struct State {
    /// The next operation's number.
    number: u32,
    lanes: Lanes,
    log: Log,
    working: HashMap<u32, Work>,
    named: Named<Loaded>,
    clients: Clients,
    /// Operations held back as [`Doubt`]s, by client.
    doubts: Vec<ClientId>,
    /// Operations that ended with the job, which their clients are told with its end.
    lost: usize,
    submitted: u64,
    ended: u64,
    /// Set when no operation is taken any more.
    over: Option<Failure>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Stream {
    shape: Shape,
    orders: UnboundedSender<Order>,
    state: Mutex<State>,
}

impl Stream {
    /// Of a worker that takes another one's place, `resume` is the first chunk of each lane that is not summed, and `stand`
    /// where it begins; a default one is the job's beginning.
    pub(crate) fn new(
        shape: Shape,
        orders: UnboundedSender<Order>,
        opener: Client,
        resume: &[u32],
        stand: &Stand,
    ) -> Stream {
        let mut lanes = Lanes::new(shape.classes, shape.shards, resume);
        lanes.begin_at(stand);
        let state = State {
            number: stand.number,
            lanes,
            log: Log::default(),
            working: HashMap::new(),
            named: Named::default(),
            clients: Clients::new(opener),
            doubts: Vec::new(),
            lost: 0,
            submitted: 0,
            ended: 0,
            over: None,
        };
        Stream { shape, orders, state: Mutex::new(state) }
    }

    pub(crate) fn shape(&self) -> &Shape {
        &self.shape
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No statement under the lock panics half way through a change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn order(&self, order: Order) {
        // Fails when the job is over already.
        let _ = self.orders.send(order);
    }

    /// Takes an operation. `lend` lends the memory of a part, whose elements and share it is given.
    pub(crate) fn submit(
        &self,
        carrier: &Carrier,
        request: Request,
        lend: impl FnMut(&Range<u64>, &Share) -> Result<Ranges, Failure>,
    ) -> Result<(), Failure> {
        let mut state = self.lock();
        if let Some(failure) = &state.over {
            return Err(failure.clone());
        }
        let loaded = self.load(request, lend)?;
        state.submitted += 1;
        if !self.shape.by_name {
            return self.launch(carrier, &mut state, loaded);
        }
        let announced = Announced::from(&loaded);
        let name = announced.name.clone();
        if state.named.add(&name, loaded) {
            self.order(Order::Announce(announced));
        }
        Ok(())
    }

    /// Divides an operation and has its memory lent.
    fn load(
        &self,
        request: Request,
        mut lend: impl FnMut(&Range<u64>, &Share) -> Result<Ranges, Failure>,
    ) -> Result<Loaded, Failure> {
        let what = &request.what;
        let parts = divide(what.count, self.shape.per_chunk(what), self.shape.shards).into_iter();
        let parts = parts.map(|part| {
            let share = request.share.within(&part.range);
            let memory = lend(&part.range, &share)?;
            let count = part.range.end - part.range.start;
            Ok((part.chunks, LentPart { base: part.range.start, count, share, memory }))
        });
        let parts = parts.collect::<Result<_, Failure>>()?;
        Ok(Loaded { request, parts })
    }

    fn class(&self, what: &What) -> u16 {
        u16::from(what.is_urgent && self.shape.classes > 1)
    }

    /// Gives an operation its number and hands its parts to their lanes.
    fn launch(&self, carrier: &Carrier, state: &mut State, loaded: Loaded) -> Result<(), Failure> {
        let Loaded { request: Request { what, priority, client, op, .. }, parts } = loaded;
        let number = state.number;
        state.number = number.wrapping_add(1);
        let claim = Claim::new(number, &what.words());
        let signature = claim.signature;
        let chunks: Vec<u32> = parts.iter().map(|(chunks, _)| *chunks).collect();
        let places = state.lanes.place(self.class(&what), &chunks);
        let (mut missed, mut errands) = (Vec::new(), Vec::new());
        for (Place { stretch, past }, (_, part)) in places.iter().zip(parts) {
            let elements = (u64::from(*past) * self.shape.per_chunk(&what)).min(part.count);
            past::add(&mut missed, part.base..part.base + elements);
            if *past < stretch.chunks {
                let operation = errand::operation(&what, signature, priority, part, *past);
                errands.push(Errand { wire_job: self.shape.wire_job, lane: stretch.lane, number, operation });
            }
        }
        state.log.add(claim, places.iter().map(|place| place.stretch).collect());
        if errands.is_empty() {
            state.log.ended(number);
            state.tell(client, op, Outcome { duration_ns: 0, error: None, missed });
            return Ok(());
        }
        state.working.insert(number, Work::new(what, client, op, errands.len(), missed));
        for errand in errands {
            if let Err(failure) = carrier.submit(errand) {
                // The data path has stopped: parts that it took end with it, and nobody waits for them.
                state.working.remove(&number);
                return Err(failure);
            }
        }
        Ok(())
    }

    /// Launches the operation whose name all workers have announced.
    pub(crate) fn release(&self, carrier: &Carrier, name: &str) {
        let mut state = self.lock();
        let Some((loaded, next)) = state.named.release(name) else {
            return tracing::warn!(name, "a name was released that no operation here waits for");
        };
        if let Some(announced) = next.map(Announced::from) {
            self.order(Order::Announce(announced));
        }
        if let Err(failure) = self.launch(carrier, &mut state, loaded) {
            // Its client hears of it with the end of the job, which cannot be far.
            tracing::error!(%failure, name, "cannot hand an operation to the data path");
        }
    }

    /// Takes in the end of a part, with its times on the data path's clock; the operation's client is told when it was the
    /// last. `end` is given what the operation's tensor is called.
    pub(crate) fn part_ended(
        &self,
        number: u32,
        (started, finished): (u64, u64),
        end: impl FnOnce(&str) -> PartEnd,
    ) {
        let mut state = self.lock();
        let Some(work) = state.working.get_mut(&number) else { return };
        let end = end(&work.what.tensor(number));
        if !work.part_ended(started, finished, end) {
            return;
        }
        let Some(work) = state.working.remove(&number) else { return };
        let (client, op, missed) = (work.client, work.op, work.missed.clone());
        let (end, duration_ns) = work.end();
        let failed = |failure| Outcome { duration_ns, error: Some(failure), missed: Vec::new() };
        if end != PartEnd::Job {
            state.log.ended(number);
        }
        match end {
            PartEnd::Done => state.tell(client, op, Outcome { duration_ns, error: None, missed }),
            PartEnd::Everybodys(failure) => state.tell(client, op, failed(failure)),
            PartEnd::Ours(failure) => {
                let failure = failure.ranks([self.shape.rank]);
                self.order(Order::Blame { number, failure: failure.clone() });
                state.tell(client, op, failed(failure));
            }
            PartEnd::Theirs(failure) => {
                state.doubts.push(client);
                let outcome = failed(failure);
                self.order(Order::Doubt(Doubt { number, client, op, outcome }));
            }
            PartEnd::Job => state.lost += 1,
        }
    }

    /// Tells the end of an operation that was held back.
    pub(crate) fn settle(&self, doubt: Doubt) {
        let mut state = self.lock();
        if let Some(at) = state.doubts.iter().position(|client| *client == doubt.client) {
            state.doubts.swap_remove(at);
        }
        state.tell(doubt.client, doubt.op, doubt.outcome);
    }

    /// Operations whose end their clients have not been told.
    pub(crate) fn outstanding(&self) -> usize {
        self.lock().outstanding()
    }

    /// Operations taken, and operations ended.
    pub(crate) fn counts(&self) -> (u64, u64) {
        let state = self.lock();
        (state.submitted, state.ended)
    }

    /// How many connections submit into the job.
    pub(crate) fn clients(&self) -> u32 {
        u32::try_from(self.lock().clients.len()).unwrap_or(u32::MAX)
    }

    /// Lets another connection in. `greeting` is what it is told first: before anything else that the job has to say.
    pub(crate) fn attach(
        &self,
        client: Client,
        greeting: impl FnOnce(ClientId) -> Note,
    ) -> Result<ClientId, Failure> {
        let mut state = self.lock();
        if let Some(failure) = &state.over {
            return Err(failure.clone());
        }
        let inbox = client.inbox.clone();
        let id = state.clients.add(client);
        // Fails when its session has just ended; that lets it go again.
        let _ = inbox.push(greeting(id));
        Ok(id)
    }

    /// Lets a connection go. One that leaves operations behind (its process died) takes the job along.
    pub(crate) fn detach(&self, id: ClientId, how: &str) {
        let mut state = self.lock();
        let Some(peer) = state.clients.get(id).map(|client| client.peer) else { return };
        let left_behind = state.outstanding_of(id);
        state.clients.remove(id);
        if left_behind > 0 && state.over.is_none() {
            self.order(Order::Abandon {
                reason: format!(
                    "a client of its job ({peer}) {how}, with {left_behind} operations outstanding"
                ),
            });
        }
    }

    /// Takes no more operations, if none is outstanding.
    pub(crate) fn begin_close(&self) -> Result<(), usize> {
        let mut state = self.lock();
        let outstanding = state.outstanding();
        if outstanding > 0 {
            return Err(outstanding);
        }
        if state.over.is_none() {
            let failure = Failure::new(Code::JobFailed, "the client that opened the job has closed it");
            state.over = Some(failure.hint("open it again, on all workers"));
        }
        Ok(())
    }

    /// Takes no more operations and tells those clients that want to know. The data path has let go of all parts.
    pub(crate) fn end(&self, failure: &Failure, who: impl Fn(ClientId) -> bool) {
        let mut state = self.lock();
        state.over.get_or_insert_with(|| failure.clone());
        state.named.clear();
        state.working.clear();
        state.doubts.clear();
        state.lost = 0;
        for (id, client) in state.clients.iter() {
            if who(*id) {
                client.tell(Note::JobFailed { job: client.handle, failure: failure.clone() });
            }
        }
    }

    /// Ends the job for all workers, because a client gave an operation up.
    pub(crate) fn cancel(&self) {
        self.order(Order::Cancel { by: format!("the trainer of rank {}", self.shape.rank) });
    }

    /// What this worker had at a place of a lane.
    pub(crate) fn at(&self, lane: u16, seq: u32) -> Option<Claim> {
        self.lock().log.at(lane, seq).cloned()
    }

    /// Where the stream goes on for a worker that takes another one's place; `resume` is the first chunk of each lane that is
    /// not summed. `None`: it is too long ago that this worker was there.
    pub(crate) fn stand(&self, resume: &[u32]) -> Option<Stand> {
        let state = self.lock();
        state.log.stand(state.lanes.stand(state.number), resume)
    }

    /// The first operations of this worker that have not ended, at most so many.
    pub(crate) fn unended(&self, most: usize) -> Vec<Claim> {
        self.lock().log.since_unended(most).cloned().collect()
    }

    /// The oldest operation that the lanes have and that has not ended.
    pub(crate) fn oldest(&self) -> Option<Claim> {
        let state = self.lock();
        let age = |number: &u32| state.number.wrapping_sub(*number);
        let oldest = state.working.keys().copied().max_by_key(age)?;
        state.log.numbered(oldest).cloned()
    }
}

impl State {
    fn tell(&mut self, client: ClientId, op: u64, outcome: Outcome) {
        self.ended += 1;
        if let Some(client) = self.clients.get(client) {
            client.tell(Note::Completed { op, outcome });
        }
    }

    fn outstanding(&self) -> usize {
        self.working.len() + self.named.iter().count() + self.doubts.len() + self.lost
    }

    fn outstanding_of(&self, client: ClientId) -> usize {
        let working = self.working.values().filter(|work| work.client == client).count();
        let named = self.named.iter().filter(|loaded| loaded.request.client == client).count();
        working + named + self.doubts.iter().filter(|other| **other == client).count()
    }
}
