//! Which of what was queued on a [`Queue`] is over: how to ask, how to wait, and what is done then.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::time::Duration;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use super::code::{checked, is_final, number};
use super::device::TRIES;
use super::event::Event;
use super::queue::{OWN_EVENTS, Queue, State};
use crate::{Error, Result};

/// How long a waiter looks before it sleeps: who sleeps in the driver is woken tens of microseconds late, and 256 MiB are copied within a device in some 125.
const AWAKE: Duration = Duration::from_micros(300);
/// The clock is looked at once in so many looks.
const CLOCK: u64 = 8;

/// What a waiter does between two looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pause {
    Spin,
    Yield,
    Sleep,
}

impl Pause {
    fn after(looks: u64, waited: Duration) -> Self {
        match looks {
            _ if waited >= AWAKE => Self::Sleep,
            0..50 => Self::Spin,
            _ => Self::Yield,
        }
    }
}

impl Queue {
    pub fn reached(&self, number: u64) -> bool {
        // SYNC POINT: operation over. Pairs with look.
        if self.done.load(Acquire) >= number {
            return true;
        }
        let mut state = self.state();
        match self.ask(&mut state, number) {
            Ok(()) => (state.troubles, state.silent) = (0, None),
            Err(error) if is_final(&error) => self.end(&mut state, error),
            Err(Error::Driver { call, code, .. }) => {
                state.troubles = state.troubles.saturating_add(1);
                // What it does not say is over is not: it may be executed still.
                state.silent = (state.troubles > TRIES).then_some((call, code));
            }
            Err(_) => {}
        }
        self.done.load(Acquire) >= number
    }

    /// Looks whether a number is over, by its event; where there is room for none, by all of the stream.
    fn ask(&self, state: &mut State, number: u64) -> Result<()> {
        let _bound = self.device.bind()?;
        // An event may have gone with whoever has reset the device, or may say nothing for a reason of its own: the stream may know.
        if self.cover(state, number).is_ok() {
            match self.look(state) {
                Err(error) if !is_final(&error) && !state.is_destroyed => {}
                answer => return answer,
            }
        }
        // SAFETY: the stream is live: one that is destroyed has an event for its last number.
        match unsafe { self.device.calls.cuStreamQuery(self.handle()) } {
            Ok(()) => {
                state.events.clear();
                let last = state.last;
                self.over(state, last);
                Ok(())
            }
            Err(Error::Driver { code: number::NOT_READY, .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// An event that is reached with a number, or after it.
    pub fn event(&self, number: u64) -> Result<Option<Arc<Event>>> {
        let _bound = self.device.bind()?;
        let mut state = self.state();
        self.cover(&mut state, number)?;
        Ok(state.events.iter().find(|(covered, _)| *covered >= number).map(|(_, event)| Arc::clone(event)))
    }

    /// Whether a kernel is queued or running.
    pub fn has_kernels(&self) -> bool {
        let launch = self.launch.load(Acquire);
        launch > 0 && !self.reached(launch)
    }

    /// Whether no kernel is queued or running, or is no more within that time.
    pub fn settles(&self, timeout: Duration) -> bool {
        self.wait_for(self.launch.load(Acquire), Some(timeout))
    }

    /// Waits until all of it is over: whether it is, and not only that nobody can say.
    pub fn settle(&self) -> bool {
        self.wait_for(self.last(), None)
    }

    /// Whether it ends when a kernel does, its own or another stream's.
    pub fn may_last(&self) -> bool {
        let lasting = self.lasting.load(Acquire);
        lasting > 0 && !self.reached(lasting)
    }

    /// Waits until a number is over, not longer than `timeout`: whether it is. Its own failure is told once, or for all `up to` it the first; a
    /// broken context's always.
    pub fn wait(&self, number: u64, timeout: Option<Duration>, up_to: bool) -> Result<bool> {
        if !self.wait_for(number, timeout) {
            return self.said_something().map(|()| false);
        }
        self.tell(if up_to { 0 } else { number }, number).map(|()| true)
    }

    /// Whether an operation that is over has failed, whoever was told.
    pub fn has_failed(&self, number: u64) -> bool {
        self.state().failures.have(number)
    }

    /// Waits until all that is queued now is over. The first failure of it is told, the others have been.
    pub fn synchronize(&self) -> Result<()> {
        let last = self.last();
        if !self.wait_for(last, None) {
            return self.said_something();
        }
        self.tell(0, last)
    }

    /// An error where the driver does not say what is over.
    fn said_something(&self) -> Result<()> {
        self.state().silent.map_or(Ok(()), |(call, code)| checked(call, code))
    }

    /// The first failure of some numbers; the others have been told.
    fn tell(&self, first: u64, last: u64) -> Result<()> {
        let mut state = self.state();
        state.failures.tell(first..=last)?;
        state.told(last)
    }

    /// Whether it is over: not, if the time is up or the driver does not say.
    pub(super) fn wait_for(&self, number: u64, timeout: Option<Duration>) -> bool {
        if self.reached(number) {
            return true;
        }
        if timeout == Some(Duration::ZERO) {
            return false;
        }
        let begun = Instant::now();
        let mut waited = Duration::ZERO;
        for looks in 1_u64.. {
            if self.reached(number) {
                return true;
            }
            if looks.is_multiple_of(CLOCK) || waited >= AWAKE {
                waited = begun.elapsed();
                if self.said_something().is_err() {
                    return false;
                }
            }
            let left = timeout.map(|timeout| timeout.saturating_sub(waited));
            if left == Some(Duration::ZERO) {
                return false;
            }
            match Pause::after(looks, waited) {
                Pause::Spin => core::hint::spin_loop(),
                Pause::Yield => thread::yield_now(),
                Pause::Sleep => match left {
                    Some(left) => thread::sleep(left.min(Duration::from_micros(50))),
                    None => {
                        let event = self.event(number).ok().flatten();
                        // What it fails with is met by the next look.
                        if event.is_none_or(|event| self.device.bind().and_then(|_bound| event.wait()).is_err()) {
                            thread::yield_now();
                        }
                    }
                },
            }
        }
        true
    }

    /// Looks which numbers are over, and does what waits for that. The context is bound.
    pub(super) fn look(&self, state: &mut State) -> Result<()> {
        let mut over = None;
        while let Some((number, event)) = state.events.front() {
            match event.is_reached() {
                Ok(true) => {
                    over = Some(*number);
                    let reached = state.events.pop_front();
                    // Who waits for it has it, too. Nobody gets it any more. The others are the device's again.
                    let own = reached.map(|(_, event)| event).filter(|event| Arc::strong_count(event) == 1);
                    state.idle.extend(own.filter(|_| state.idle.len() < OWN_EVENTS));
                }
                Ok(false) => break,
                Err(error) => return Err(error),
            }
        }
        if let Some(number) = over {
            self.over(state, number);
        }
        Ok(())
    }

    fn over(&self, state: &mut State, number: u64) {
        while let Some((_, done)) = state.done.pop_front_if(|(after, _)| *after <= number) {
            done.count(&self.counts);
        }
        while state.lent.pop_front_if(|(after, _)| *after <= number).is_some() {}
        // SYNC POINT: operation over. Pairs with reached.
        self.done.fetch_max(number, Release);
    }

    /// Nothing more is executed: all is over, and fails.
    fn end(&self, state: &mut State, error: Error) {
        if let (Error::Driver { call, code, .. }, None) = (error, state.broken) {
            state.broken = Some((self.done.load(Relaxed), call, code));
        }
        state.events.clear();
        state.done.clear();
        state.lent.clear();
        self.done.fetch_max(state.last, Release);
    }

    /// Sees to it that an event covers a number that is not over.
    pub(super) fn cover(&self, state: &mut State, number: u64) -> Result<()> {
        if state.events.back().is_some_and(|&(covered, _)| covered >= number) || self.done.load(Relaxed) >= number {
            return Ok(());
        }
        self.record(state)
    }

    /// Records an event for all that is queued, if none covers it. The context is bound.
    pub(super) fn record(&self, state: &mut State) -> Result<()> {
        let covered = state.events.back().map_or_else(|| self.done.load(Relaxed), |&(number, _)| number);
        if covered < state.last {
            let event = match state.idle.pop() {
                Some(event) => event,
                None => Arc::new(self.device.events.take()?),
            };
            event.record(self.handle())?;
            state.events.push_back((state.last, event));
        }
        Ok(())
    }
}

impl State {
    /// What a broken context says to who waits for a number that was not over before.
    fn told(&self, number: u64) -> Result<()> {
        match self.broken {
            Some((over, call, code)) if number > over => checked(call, code),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_looks_as_long_as_a_large_copy_takes_and_then_sleeps() {
        let us = Duration::from_micros;
        let after = |looks, waited| Pause::after(looks, us(waited));
        assert_eq!(
            [after(1, 0), after(49, 5), after(101, 10), after(1 << 40, 299)],
            [Pause::Spin, Pause::Spin, Pause::Yield, Pause::Yield]
        );
        assert_eq!([after(8, 300), after(1 << 40, 1_000_000)], [Pause::Sleep; 2]);
    }
}
