//! [`Space`]: every block that an address may lie in.
//!
//! 1. A device address begins in a window where a process has nothing, is never given twice, and has a gap on both sides.
//! 2. Host memory has its own address, which the device uses too.
//! 3. An address range is whole in one live block, or refused.

use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::block::{ALIGN, Block, Kind, Span};
use crate::call;
use crate::code::{Answer, Code};

/// Non-canonical on x86-64; one of the operating system's own on AArch64, which ignores the top byte.
const WINDOW: u64 = 0xD180_0000_0000_0000;
const WINDOW_END: u64 = 0xD190_0000_0000_0000;

/// What the device says it has.
pub const TOTAL: u64 = 2 << 30;

/// INVARIANT: blocks do not overlap.
pub struct Space {
    state: RwLock<State>,
}

struct State {
    blocks: BTreeMap<u64, Listed>,
    next: u64,
    used: u64,
}

struct Listed {
    block: Arc<Block>,
    /// Number of the call that made it.
    made: u64,
}

/// A block that is still there.
pub struct Live {
    pub address: u64,
    pub kind: Kind,
    pub len: u64,
    pub made: u64,
}

impl Space {
    pub const fn new() -> Self {
        Self { state: RwLock::new(State { blocks: BTreeMap::new(), next: WINDOW + ALIGN, used: 0 }) }
    }

    /// Memory of the device, at an address of the window.
    pub fn allocate(&self, kind: Kind, len: u64) -> Answer<u64> {
        if len > TOTAL - self.read().used {
            return Err(Code::OUT_OF_MEMORY);
        }
        // Outside the lock: poisoning takes time.
        let block = Block::new(kind, len)?;
        let mut state = self.write();
        // Another thread may have been faster.
        if len > TOTAL - state.used {
            return Err(Code::OUT_OF_MEMORY);
        }
        let address = state.next;
        state.next = (address + len).next_multiple_of(ALIGN) + ALIGN;
        state.used += len;
        state.list(address, block);
        Ok(address)
    }

    /// Page-locked host memory, at its own address.
    pub fn allocate_host(&self, len: u64) -> Answer<u64> {
        let block = Block::new(Kind::Pinned, len)?;
        let address = block.place().addr().get() as u64;
        self.write().list(address, block);
        Ok(address)
    }

    /// Host memory of the caller, from now on known to the device.
    pub fn register(&self, place: NonNull<u8>, len: u64) -> Answer {
        let address = place.addr().get() as u64;
        let mut state = self.write();
        if len == 0 || address.checked_add(len).is_none() || in_window(address) {
            return Err(Code::INVALID_VALUE);
        }
        if state.touches(address, len) {
            return Err(Code::HOST_MEMORY_ALREADY_REGISTERED);
        }
        state.list(address, Block::borrowed(Kind::Registered, place, len));
        Ok(())
    }

    /// Whether a block of this kind begins at this address.
    pub fn has(&self, address: u64, kind: Kind) -> bool {
        self.read().blocks.get(&address).is_some_and(|listed| listed.block.kind == kind)
    }

    /// Takes a block out; whoever still has a span of it keeps it alive.
    pub fn remove(&self, address: u64, kind: Kind) -> Answer<Arc<Block>> {
        let mut state = self.write();
        match state.blocks.remove(&address) {
            Some(listed) if listed.block.kind == kind => {
                state.used -= if is_device(kind) { listed.block.len } else { 0 };
                Ok(listed.block)
            }
            other => {
                other.into_iter().for_each(|listed| drop(state.blocks.insert(address, listed)));
                Err(Code::INVALID_VALUE)
            }
        }
    }

    /// Takes everything out.
    pub fn clear(&self) -> Vec<Arc<Block>> {
        let mut state = self.write();
        state.used = 0;
        std::mem::take(&mut state.blocks).into_values().map(|listed| listed.block).collect()
    }

    /// What the device sees at an address.
    pub fn resolve(&self, address: u64, len: u64) -> Answer<Span> {
        let state = self.read();
        let (&start, listed) = state.blocks.range(..=address).next_back().ok_or(Code::INVALID_VALUE)?;
        Span::new(&listed.block, address - start, len).ok_or(Code::INVALID_VALUE)
    }

    /// What a host pointer names: known memory, whole, or the caller's own, none of it known.
    pub fn host(&self, pointer: *const u8, len: u64) -> Answer<Span> {
        let place = NonNull::new(pointer.cast_mut()).ok_or(Code::INVALID_VALUE)?;
        let address = place.addr().get() as u64;
        if in_window(address) || address.checked_add(len).is_none() {
            return Err(Code::INVALID_VALUE);
        }
        if self.read().touches(address, len) {
            return self.resolve(address, len);
        }
        Span::new(&Arc::new(Block::borrowed(Kind::Pageable, place, len)), 0, len).ok_or(Code::INVALID_VALUE)
    }

    /// Bytes of the device that are taken.
    pub fn used(&self) -> u64 {
        self.read().used
    }

    /// Every block that a caller has to give back.
    pub fn live(&self) -> Vec<Live> {
        let state = self.read();
        let all = state.blocks.iter().map(|(&address, listed)| {
            let Block { kind, len, .. } = *listed.block;
            Live { address, kind, len, made: listed.made }
        });
        all.filter(|live| live.kind != Kind::Global).collect()
    }

    fn read(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn list(&mut self, address: u64, block: Block) {
        self.blocks.insert(address, Listed { block: Arc::new(block), made: call::current().0 });
    }

    /// Whether a block has one of these bytes.
    fn touches(&self, address: u64, len: u64) -> bool {
        let before = self.blocks.range(..address.saturating_add(len.max(1))).next_back();
        before.is_some_and(|(&start, listed)| start + listed.block.len > address)
    }
}

fn is_device(kind: Kind) -> bool {
    matches!(kind, Kind::Device | Kind::Global)
}

fn in_window(address: u64) -> bool {
    (WINDOW..WINDOW_END).contains(&address)
}
