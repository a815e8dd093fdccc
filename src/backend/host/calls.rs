//! What calls of a host backend have in common, whatever they do: the fault plan may strike them, the model of the link learns of work that takes time, and the
//! log gets a line for each, and another one when a queued operation is executed. Calls that return a block are in `address_range.rs` (`call_for_block`), as a
//! panic must not lose it; `free` is in `backend.rs`.
//!
//! | call | method | a planned fault |
//! |---|---|---|
//! | returns at once | [`call`](HostBackend::call) | in place of the call |
//! | copies, fills or stores while the caller waits | [`at_once`](HostBackend::at_once) | as above |
//! | waits for operations | [`waited`](HostBackend::waited) | after the wait, if it succeeded: the operations are complete all the same |
//! | queues an operation | [`queue`](HostBackend::queue) | in place of the call, or when the operation is executed (`execute.rs`) |
//!
//! A fault that flips a bit is another matter: the copy is made, and then a byte that it wrote in this backend's memory is wrong. Without plan, model and log a
//! call goes straight to its work.

use std::sync::Arc;

use super::HostBackend;
use super::faults::{Struck, Verb};
use super::link::{Route, Work};
use super::log::{Facts, Phase};
use super::queue::{Item, Operation, Queue};
use crate::backend::{StreamId, Ticket};
use crate::error::OperationFault;
use crate::{Error, Result};

impl HostBackend {
    pub(super) fn stream(&self, id: StreamId) -> Result<Arc<Queue>> {
        self.inner.stream(id).ok_or_else(|| Error::Closed { what: "stream" })
    }

    pub(super) fn recorded(&self, ticket: Ticket) -> Result<u64> {
        let Ticket { stream, number } = ticket;
        match self.stream(stream)?.recorded(number) {
            None => Err(Error::Unsupported { what: "the time of a ticket without a recorded event" }),
            Some(None) => Err(Error::Operation { what: OperationFault::NotReached, stream: stream.get(), number }),
            Some(Some(at)) => Ok(self.inner.model.as_ref().map_or(at, |model| model.end(ticket))),
        }
    }

    pub(super) fn call<T>(&self, facts: impl FnOnce() -> Facts, run: impl FnOnce() -> Result<T>) -> Result<T> {
        let Some(facts) = self.inner.watched(facts) else { return run() };
        self.watched_call(&facts, run)
    }

    #[cold]
    fn watched_call<T>(&self, facts: &Facts, run: impl FnOnce() -> Result<T>) -> Result<T> {
        let outcome = match self.inner.plan.next(facts.verb) {
            None => run(),
            Some(Struck { flips: Some(at), .. }) => run().inspect(|_| self.inner.flip(facts, at)),
            Some(struck) => Err(struck.error()),
        };
        self.inner.log(facts, Phase::Called, None, outcome.is_ok());
        outcome
    }

    pub(super) fn at_once(&self, facts: impl FnOnce() -> Facts, bytes: u64, run: impl FnOnce() -> Result<Route>) -> Result<()> {
        let Some(facts) = self.inner.watched(facts) else { return run().map(drop) };
        self.watched_call(&facts, || {
            let route = run()?;
            if let Some(model) = &self.inner.model {
                model.blocking(&Work::Bytes(route, bytes));
            }
            Ok(())
        })
    }

    /// `run` returns whether the operations are complete.
    pub(super) fn waited(&self, verb: Verb, stream: StreamId, ticket: Option<u64>, run: impl FnOnce() -> Result<bool>) -> Result<bool> {
        let Some(facts) = self.inner.watched(|| Facts::of(verb, Some(stream))) else { return run() };
        let struck = self.inner.plan.next(verb);
        let mut outcome = run();
        if let (Ok(true), Some(struck)) = (&outcome, struck) {
            outcome = Err(struck.error());
        }
        if let Some(model) = &self.inner.model
            && !matches!(outcome, Ok(false))
        {
            match ticket {
                Some(number) => model.waited(Ticket { stream, number }),
                None => model.synchronized(stream),
            }
        }
        self.inner.log(&facts, Phase::Called, ticket, outcome.is_ok());
        outcome
    }

    pub(super) fn wait_for(&self, ticket: Ticket, wait: impl FnOnce(&Queue) -> Result<bool>) -> Result<bool> {
        let inner = &self.inner;
        self.waited(Verb::Wait, ticket.stream, Some(ticket.number), || {
            inner.stream(ticket.stream).or_else(|| inner.ended.get(ticket.stream)).map_or(Ok(true), |stream| wait(&stream))
        })
    }

    pub(super) fn queue<'a>(
        &self,
        facts: Facts,
        on: StreamId,
        prepare: impl FnOnce(&Queue) -> Result<(Operation, Work<'a>)>,
    ) -> Result<Ticket> {
        let is_watched = self.inner.is_watched();
        let struck = if is_watched { self.inner.plan.next(facts.verb) } else { None };
        let queued = (|| {
            if let Some(struck) = struck.filter(|struck| !struck.when_executed) {
                return Err(struck.error());
            }
            let stream = self.stream(on)?;
            let (operation, work) = prepare(&stream)?;
            stream.push(Item { operation, facts, struck }, |number| {
                if !is_watched {
                    return;
                }
                if let Some(model) = &self.inner.model {
                    model.queued(on, number, &work);
                }
                self.inner.log(&facts, Phase::Called, Some(number), true);
            })
        })();
        if is_watched && queued.is_err() {
            self.inner.log(&facts, Phase::Called, None, false);
        }
        queued.map(|number| Ticket { stream: on, number })
    }
}
