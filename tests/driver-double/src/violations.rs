use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::NAME;
use crate::driver::Driver;
use crate::entry;

const TOLD: usize = 100;

#[derive(Default)]
pub struct Violations {
    count: AtomicU64,
    told: Mutex<Vec<String>>,
}

impl Violations {
    pub fn of_call(&self, what: &str) {
        let (number, symbol) = entry::current();
        self.add(format!("call {number}, {symbol}: {what}"));
    }

    pub fn add(&self, text: String) {
        let mut told = self.told();
        if told.contains(&text) {
            return;
        }
        self.count.fetch_add(1, Relaxed);
        if told.len() < TOLD {
            told.push(text);
        }
    }

    pub fn report(&self) {
        let count = self.count.load(Relaxed);
        if count > 0 {
            eprintln!("{NAME}: {count} violations of the order of calls");
            self.told().iter().for_each(|text| eprintln!("  {text}"));
        }
    }

    fn told(&self) -> MutexGuard<'_, Vec<String>> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the number of violations: memory freed or unmapped while in use; used without order after its allocation or before its free; a destroyed
/// handle used; a handle mapped twice at once; a call from a host function.
#[unsafe(no_mangle)]
pub extern "C" fn ringmem_double_violations() -> u64 {
    Driver::the().violations.count.load(Relaxed)
}
