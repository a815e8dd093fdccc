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

/// The driver's wake-up is tens of microseconds late; copying 256 MiB within a device takes about 125.
const AWAKE: Duration = Duration::from_micros(300);
/// Polls per reading of the clock.
const CLOCK: u64 = 8;

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
                state.silent = (state.troubles > TRIES).then_some((call, code));
            }
            Err(_) => {}
        }
        self.done.load(Acquire) >= number
    }

    fn ask(&self, state: &mut State, number: u64) -> Result<()> {
        let _bound = self.device.bind()?;
        // The stream may still answer.
        if self.cover(state, number).is_ok() {
            match self.look(state) {
                Err(error) if !is_final(&error) => {}
                answer => return answer,
            }
        }
        // SAFETY: the queue's own stream.
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

    pub fn event(&self, number: u64) -> Result<Option<Arc<Event>>> {
        let _bound = self.device.bind()?;
        let mut state = self.state();
        self.cover(&mut state, number)?;
        Ok(state.events.iter().find(|(covered, _)| *covered >= number).map(|(_, event)| Arc::clone(event)))
    }

    pub fn has_kernels(&self) -> bool {
        let launch = self.launch.load(Acquire);
        launch > 0 && !self.reached(launch)
    }

    pub fn settles(&self, timeout: Duration) -> bool {
        self.wait_for(self.launch.load(Acquire), Some(timeout))
    }

    pub fn settle(&self) -> bool {
        self.wait_for(self.last(), None)
    }

    pub fn may_last(&self) -> bool {
        let lasting = self.lasting.load(Acquire);
        lasting > 0 && !self.reached(lasting)
    }

    /// True if the number completes within `timeout`, or its unreported failure; with `up_to`, the first. A broken context's error is
    /// always returned.
    pub fn wait(&self, number: u64, timeout: Option<Duration>, up_to: bool) -> Result<bool> {
        if !self.wait_for(number, timeout) {
            return self.said_something().map(|()| false);
        }
        self.tell(if up_to { 0 } else { number }, number).map(|()| true)
    }

    pub fn has_failed(&self, number: u64) -> bool {
        self.state().failures.have(number)
    }

    pub fn synchronize(&self) -> Result<()> {
        let last = self.last();
        if !self.wait_for(last, None) {
            return self.said_something();
        }
        self.tell(0, last)
    }

    fn said_something(&self) -> Result<()> {
        self.state().silent.map_or(Ok(()), |(call, code)| checked(call, code))
    }

    fn tell(&self, first: u64, last: u64) -> Result<()> {
        let mut state = self.state();
        state.failures.tell(first..=last)?;
        state.told(last)
    }

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
                        if event.is_none_or(|event| self.device.bind().and_then(|_bound| event.wait()).is_err()) {
                            thread::yield_now();
                        }
                    }
                },
            }
        }
        true
    }

    pub(super) fn look(&self, state: &mut State) -> Result<()> {
        let mut over = None;
        while let Some((number, event)) = state.events.front() {
            match event.is_reached() {
                Ok(true) => {
                    over = Some(*number);
                    let reached = state.events.pop_front();
                    // Not reused while a waiter holds it.
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

    fn end(&self, state: &mut State, error: Error) {
        if let (Error::Driver { call, code, .. }, None) = (error, state.broken) {
            state.broken = Some((self.done.load(Relaxed), call, code));
        }
        state.events.clear();
        // Freed memory is lost with the context.
        state.done.drain(..).filter(|(_, done)| done.is_free()).for_each(|(_, done)| done.count(&self.counts));
        // The host runs their functions in a broken context too, until the owners get their memory back.
        state.lent.drain(..).filter_map(|(_, lent)| lent.functions).for_each(|functions| functions.stop());
        self.done.fetch_max(state.last, Release);
    }

    pub(super) fn cover(&self, state: &mut State, number: u64) -> Result<()> {
        if state.events.back().is_some_and(|&(covered, _)| covered >= number) || self.done.load(Relaxed) >= number {
            return Ok(());
        }
        self.record(state)
    }

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
    /// For numbers that were incomplete when the context broke.
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
    fn a_waiter_spins_then_yields_then_sleeps() {
        let us = Duration::from_micros;
        let after = |looks, waited| Pause::after(looks, us(waited));
        assert_eq!(
            [after(1, 0), after(49, 5), after(101, 10), after(1 << 40, 299)],
            [Pause::Spin, Pause::Spin, Pause::Yield, Pause::Yield]
        );
        assert_eq!([after(8, 300), after(1 << 40, 1_000_000)], [Pause::Sleep; 2]);
    }
}
