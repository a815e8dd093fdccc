//! [`Symbol`]: a function of the driver, with its number of calls and its planned failures (`faults.rs`).

use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::code::Code;

pub static PLAIN: AtomicBool = AtomicBool::new(false);

pub struct Symbol {
    pub name: &'static str,
    calls: AtomicU64,
    has_plan: AtomicBool,
    plan: Mutex<Vec<(u64, Code)>>,
}

impl Symbol {
    pub const fn new(name: &'static str) -> Self {
        Self { name, calls: AtomicU64::new(0), has_plan: AtomicBool::new(false), plan: Mutex::new(Vec::new()) }
    }

    pub fn is_plain(&self) -> bool {
        PLAIN.load(Acquire) && !self.has_plan.load(Relaxed)
    }

    pub fn count(&self) -> u64 {
        self.calls.fetch_add(1, Relaxed) + 1
    }

    pub fn called(&self) -> Option<Code> {
        let count = self.count();
        if !self.has_plan.load(Relaxed) {
            return None;
        }
        self.plan().iter().find(|(number, _)| *number == count).map(|(_, code)| *code)
    }

    pub fn fail(&self, number: u64, code: Code) {
        self.plan().push((number, code));
        self.has_plan.store(true, Relaxed);
    }

    pub fn calls(&self) -> u64 {
        self.calls.load(Relaxed)
    }

    pub fn reset(&self) {
        self.has_plan.store(false, Relaxed);
        self.plan().clear();
        self.calls.store(0, Relaxed);
    }

    fn plan(&self) -> MutexGuard<'_, Vec<(u64, Code)>> {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_nth_call_fails() {
        let symbol = Symbol::new("any");
        symbol.fail(2, Code::OUT_OF_MEMORY);
        symbol.fail(3, Code::UNKNOWN);
        let call = || symbol.called().map(Code::number);
        assert_eq!([call(), call(), call(), call()], [None, Some(2), Some(999), None]);
        symbol.reset();
        assert_eq!((symbol.calls(), call(), call(), symbol.calls()), (0, None, None, 2));
    }
}
