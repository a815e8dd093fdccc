use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::block::Block;
use crate::code::{Answer, Code};
use crate::device::Device;
use crate::stream::Ticket;

pub struct Pool {
    pub device: u32,
    pub is_default: bool,
    limit: u64,
    state: Mutex<State>,
    pub moves: [AtomicU64; 2],
}

/// INVARIANT: `used <= reserved <= limit`.
pub struct State {
    pub used: u64,
    pub used_high: u64,
    pub reserved: u64,
    pub reserved_high: u64,
    pub threshold: u64,
    /// The attributes 1 to 3: event dependencies, opportunistic, internal dependencies. Only the last has an effect.
    pub reuse: [i32; 3],
    /// Frees that a stream may not have reached. Weak: a block holds its pool.
    queued_frees: Vec<(Weak<Block>, Ticket)>,
    pub access: u64,
    pub is_destroyed: bool,
}

impl Pool {
    pub const fn new(device: u32, is_default: bool, limit: u64) -> Self {
        let (used, used_high, reserved, reserved_high) = (0, 0, 0, 0);
        let state = State {
            used,
            used_high,
            reserved,
            reserved_high,
            threshold: 0,
            reuse: [1; 3],
            queued_frees: Vec::new(),
            access: 1 << device,
            is_destroyed: false,
        };
        Self { device, is_default, limit, state: Mutex::new(state), moves: [const { AtomicU64::new(0) }; 2] }
    }

    pub fn take(&self, device: &Device, bytes: u64) -> Answer {
        let mut state = self.state();
        let used = state.used.checked_add(bytes).filter(|&used| used <= self.limit).ok_or(Code::OUT_OF_MEMORY)?;
        if used > state.reserved {
            device.take(used - state.reserved)?;
            self.moves[0].fetch_add(1, Relaxed);
            state.reserved = used;
        }
        state.used = used;
        state.used_high = state.used_high.max(used);
        state.reserved_high = state.reserved_high.max(state.reserved);
        Ok(())
    }

    pub fn queued_free(&self, block: &Arc<Block>, ticket: &Ticket) {
        let mut state = self.state();
        state.queued_frees.retain(|(_, ticket)| !ticket.at.is_done());
        state.queued_frees.push((Arc::downgrade(block), ticket.clone()));
    }

    /// Serves an allocation for which the pool has no memory from a block whose free is queued, if attribute 3 is on, as it is by default. The stream of
    /// the allocation then waits for that free. Returns the charge of the freed block, which becomes the charge of the new one, and the free; `None` if
    /// the attribute is off or no free is large enough.
    pub fn take_from_queued_free(&self, bytes: u64) -> Option<(u64, Ticket)> {
        let mut state = self.state();
        if state.reuse[2] == 0 {
            return None;
        }
        let is_enough = |block: &Weak<Block>| block.upgrade().is_some_and(|block| block.len >= bytes);
        let at = state.queued_frees.iter().position(|(block, ticket)| is_enough(block) && !ticket.at.is_done())?;
        let (block, ticket) = state.queued_frees.swap_remove(at);
        let charge = block.upgrade()?.ordered.as_ref()?.take_charge();
        (charge > 0).then_some((charge, ticket))
    }

    pub fn give_back(&self, device: &Device, bytes: u64) {
        let mut state = self.state();
        state.used -= bytes;
        let is_destroyed = state.is_destroyed;
        drop(state);
        if is_destroyed {
            self.keep(device, 0);
        }
    }

    pub fn settle(&self, device: &Device) {
        let threshold = self.state().threshold;
        self.keep(device, threshold);
    }

    pub fn keep(&self, device: &Device, bytes: u64) {
        let mut state = self.state();
        let kept = state.reserved.min(state.used.max(bytes));
        if kept < state.reserved {
            device.give_back(state.reserved - kept);
            self.moves[1].fetch_add(1, Relaxed);
            state.reserved = kept;
        }
    }

    pub fn clear(&self, device: &Device) {
        self.state().used = 0;
        self.keep(device, 0);
    }

    pub fn lets(&self, device: u32) -> bool {
        self.state().access >> device & 1 == 1
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_reuses_memory_and_trims_above_the_threshold() {
        let (device, pool) = (Device::new(0, 1000, 0), Pool::new(0, true, 900));
        let numbers = || {
            let state = pool.state();
            (state.used, state.reserved, device.used(), pool.moves.each_ref().map(|moves| moves.load(Relaxed)))
        };
        assert!(pool.take(&device, 300).is_ok() && pool.take(&device, 200).is_ok());
        assert_eq!(numbers(), (500, 500, 500, [2, 0]));
        pool.give_back(&device, 300);
        assert_eq!(numbers(), (200, 500, 500, [2, 0]));
        assert!(pool.take(&device, 250).is_ok());
        assert_eq!(numbers(), (450, 500, 500, [2, 0]));
        pool.settle(&device);
        assert_eq!(numbers(), (450, 450, 450, [2, 1]));
        pool.state().threshold = 100;
        pool.give_back(&device, 450);
        pool.settle(&device);
        assert_eq!(numbers(), (0, 100, 100, [2, 2]));
        assert_eq!(pool.take(&device, 901).map_err(Code::number), Err(2));
        assert!(device.take(500).is_ok());
        assert_eq!(pool.take(&device, 600).map_err(Code::number), Err(2));
        pool.clear(&device);
        assert_eq!(numbers(), (0, 0, 500, [2, 3]));
        let state = pool.state();
        assert_eq!((state.used_high, state.reserved_high), (500, 500));
    }
}
