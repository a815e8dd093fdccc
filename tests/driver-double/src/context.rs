use std::cell::Cell;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};

use crate::code::{Answer, Code};

const HANDLE: usize = 0xD1A0_C000_0000_0010_u64 as usize;
const STRIDE: usize = 0x10;

thread_local! {
    static BOUND: Cell<Option<u32>> = const { Cell::new(None) };
}

pub struct Context {
    retained: AtomicU64,
    fault: AtomicU32,
}

pub const fn handle(device: u32) -> usize {
    HANDLE + device as usize * STRIDE
}

pub fn device(handle: usize, devices: usize) -> Answer<u32> {
    let offset = handle.checked_sub(HANDLE).filter(|offset| offset.is_multiple_of(STRIDE) && offset / STRIDE < devices);
    offset.map(|offset| (offset / STRIDE) as u32).ok_or(Code::INVALID_CONTEXT)
}

pub fn bound() -> Option<u32> {
    BOUND.get()
}

pub fn bind(device: Option<u32>) {
    BOUND.set(device);
}

impl Context {
    pub const fn new() -> Self {
        Self { retained: AtomicU64::new(0), fault: AtomicU32::new(0) }
    }

    pub fn retain(&self) {
        self.retained.fetch_add(1, AcqRel);
    }

    pub fn retained(&self) -> u64 {
        self.retained.load(Acquire)
    }

    pub fn release(&self) -> Answer<bool> {
        let before = self.retained.fetch_update(AcqRel, Acquire, |count| count.checked_sub(1)).map_err(|_| Code::INVALID_CONTEXT)?;
        if before == 1 {
            self.fault.store(0, Release);
        }
        Ok(before == 1)
    }

    pub fn check(&self) -> Answer {
        if self.retained() == 0 {
            return Err(Code::CONTEXT_IS_DESTROYED);
        }
        match Code::known(self.fault.load(Acquire)) {
            None | Some(Code::SUCCESS) => Ok(()),
            Some(fault) => Err(fault),
        }
    }

    pub fn fail(&self, fault: Code) {
        let _ = self.fault.compare_exchange(0, fault.number(), AcqRel, Acquire);
    }

    pub fn is_broken(&self) -> bool {
        self.fault.load(Acquire) != 0
    }
}
