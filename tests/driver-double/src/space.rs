//! The blocks by address.
//!
//! 1. A device address is in an unused window, never reused, between gaps. Only a mapping may have an earlier mapping's address: its reservation
//!    keeps it.
//! 2. Write-combined host memory has another address on devices; its host address is invalid there.
//! 3. Memory is invalid once its stream-ordered free is queued.
//! 4. Only mappings are adjacent: a range may begin in one and end in another.

use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::block::{ALIGN, Block, Kind, Span};
use crate::code::{Answer, Code};
use crate::driver::Driver;
use crate::entry;

const WINDOW: u64 = 0xD180_0000_0000_0000;
const WINDOW_END: u64 = 0xD190_0000_0000_0000;
const ORDERED: u64 = 0xD188_0000_0000_0000;
const RESERVED: u64 = 0xD18C_0000_0000_0000;

/// INVARIANT: blocks do not overlap.
pub struct Space {
    state: RwLock<State>,
}

struct State {
    blocks: BTreeMap<u64, Listed>,
    next: u64,
    next_ordered: u64,
    next_reserved: u64,
}

struct Listed {
    block: Arc<Block>,
    made: u64,
}

impl Listed {
    fn is_alias(&self, address: u64) -> bool {
        self.block.is_write_combined() && in_window(address)
    }
}

pub struct Live {
    pub address: u64,
    pub kind: Kind,
    pub len: u64,
    pub device: u32,
    pub made: u64,
}

impl Space {
    pub const fn new() -> Self {
        let (next, next_ordered, next_reserved) = (WINDOW + ALIGN, ORDERED + ALIGN, RESERVED + ALIGN);
        Self { state: RwLock::new(State { blocks: BTreeMap::new(), next, next_ordered, next_reserved }) }
    }

    pub fn place(&self, block: &Arc<Block>) -> u64 {
        let mut state = self.write();
        let next = if block.kind == Kind::Ordered { &mut state.next_ordered } else { &mut state.next };
        let address = *next;
        *next = after(address, block.len);
        state.list(address, Arc::clone(block));
        address
    }

    pub fn place_host(&self, block: Block) -> u64 {
        let (address, has_alias) = (host_address(&block), block.is_write_combined());
        let block = Arc::new(block);
        if has_alias {
            self.place(&block);
        }
        self.write().list(address, block);
        address
    }

    /// Returns the address of a new range without memory; `OUT_OF_MEMORY` if the window has no such range left.
    pub fn reserve(&self, len: u64, alignment: u64) -> Answer<u64> {
        let mut state = self.write();
        let address = state.next_reserved.checked_next_multiple_of(alignment).ok_or(Code::OUT_OF_MEMORY)?;
        let end = address.checked_add(len).filter(|&end| end < WINDOW_END).ok_or(Code::OUT_OF_MEMORY)?;
        state.next_reserved = end + ALIGN;
        Ok(address)
    }

    /// Lists a mapping at an address of its reservation.
    pub fn map(&self, address: u64, block: Block) {
        self.write().list(address, Arc::new(block));
    }

    /// Returns the mappings of a range, in the order of their addresses; `INVALID_VALUE` unless they are whole and cover it.
    pub fn mappings(&self, address: u64, len: u64) -> Answer<Vec<(u64, Arc<Block>)>> {
        let end = address.checked_add(len).ok_or(Code::INVALID_VALUE)?;
        let (state, mut covered, mut mappings) = (self.read(), address, Vec::new());
        for (&start, listed) in state.blocks.range(address..end) {
            if listed.block.kind != Kind::Mapped || start != covered {
                break;
            }
            covered = start + listed.block.len;
            mappings.push((start, Arc::clone(&listed.block)));
        }
        if covered == end && len > 0 { Ok(mappings) } else { Err(Code::INVALID_VALUE) }
    }

    pub fn mapping(&self, address: u64) -> Option<Arc<Block>> {
        if !(RESERVED..WINDOW_END).contains(&address) {
            return None;
        }
        self.listed(address, 1).ok().map(|span| span.block)
    }

    pub fn has_memory_in(&self, address: u64, len: u64) -> bool {
        self.read().touches(address, len)
    }

    pub fn device_address(&self, span: &Span) -> Option<u64> {
        let base = if span.block.is_write_combined() {
            *self.read().blocks.iter().find(|(start, listed)| in_window(**start) && Arc::ptr_eq(&listed.block, &span.block))?.0
        } else {
            host_address(&span.block)
        };
        Some(base + span.offset())
    }

    pub fn register(&self, block: Block) -> Answer {
        let (address, len) = (block.place().addr().get() as u64, block.len);
        let mut state = self.write();
        if len == 0 || address.checked_add(len).is_none() || in_window(address) {
            return Err(Code::INVALID_VALUE);
        }
        if state.touches(address, len) {
            return Err(Code::HOST_MEMORY_ALREADY_REGISTERED);
        }
        state.list(address, Arc::new(block));
        Ok(())
    }

    pub fn begins(&self, address: u64, kind: Kind) -> Option<Arc<Block>> {
        self.read()
            .blocks
            .get(&address)
            .filter(|listed| listed.block.kind == kind && !listed.is_alias(address))
            .map(|listed| Arc::clone(&listed.block))
    }

    pub fn remove(&self, address: u64) -> Option<Arc<Block>> {
        let mut state = self.write();
        let block = state.blocks.remove(&address).map(|listed| listed.block)?;
        if block.is_write_combined() {
            state.blocks.retain(|_, listed| !Arc::ptr_eq(&listed.block, &block));
        }
        Some(block)
    }

    pub fn clear(&self, device: u32) -> Vec<Arc<Block>> {
        let mut taken = Vec::new();
        self.write().blocks.retain(|_, listed| {
            let stays = listed.block.device != device || listed.block.kind == Kind::Mapped;
            if !stays {
                taken.push(Arc::clone(&listed.block));
            }
            stays
        });
        taken
    }

    pub fn resolve(&self, address: u64, len: u64) -> Answer<Span> {
        match self.reach(address, len) {
            Ok(span) if span.block.ordered.as_ref().is_none_or(|ordered| !ordered.is_freed()) => Ok(span),
            Err(code) if !self.was_ordered(address) => Err(code),
            _ => {
                Driver::the().violations.of_call(&format!("uses {address:#x} after a stream was told to free it"));
                Err(Code::INVALID_VALUE)
            }
        }
    }

    pub fn reach(&self, address: u64, len: u64) -> Answer<Span> {
        let span = self.listed(address, len)?;
        if span.block.is_write_combined() && !in_window(address) {
            Driver::the().violations.of_call(&format!("uses {address:#x}, the host's address of write-combined memory, on a device"));
            return Err(Code::INVALID_VALUE);
        }
        Ok(span)
    }

    pub fn listed(&self, address: u64, len: u64) -> Answer<Span> {
        let state = self.read();
        let (&start, listed) = state.blocks.range(..=address).next_back().ok_or(Code::INVALID_VALUE)?;
        let offset = address - start;
        Span::new(&listed.block, offset, len).or_else(|| state.across(start, offset, len)).ok_or(Code::INVALID_VALUE)
    }

    pub fn was_ordered(&self, address: u64) -> bool {
        let state = self.read();
        let before = state.blocks.range(..=address).next_back();
        (ORDERED + ALIGN..state.next_ordered).contains(&address)
            && before.is_none_or(|(&start, live)| after(start, live.block.len) <= address)
    }

    pub fn start(&self, address: u64) -> Option<(u64, u64)> {
        self.read().blocks.range(..=address).next_back().map(|(&start, listed)| (start, listed.made))
    }

    pub fn host(&self, pointer: *const u8, len: u64) -> Answer<Span> {
        let place = NonNull::new(pointer.cast_mut()).ok_or(Code::INVALID_VALUE)?;
        let address = place.addr().get() as u64;
        if in_window(address) || address.checked_add(len).is_none() {
            return Err(Code::INVALID_VALUE);
        }
        if self.read().touches(address, len) {
            return self.listed(address, len);
        }
        Span::new(&Arc::new(Block::borrowed(Kind::Pageable, 0, place, len)), 0, len).ok_or(Code::INVALID_VALUE)
    }

    pub fn live(&self) -> Vec<Live> {
        let state = self.read();
        let owed = |block: &Block| block.kind != Kind::Global && block.ordered.as_ref().is_none_or(|ordered| !ordered.is_freed());
        let live = state.blocks.iter().filter(|(address, listed)| owed(&listed.block) && !listed.is_alias(**address));
        live.map(|(&address, listed)| {
            let Block { kind, len, device, .. } = *listed.block;
            Live { address, kind, len, device, made: listed.made }
        })
        .collect()
    }

    fn read(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn list(&mut self, address: u64, block: Arc<Block>) {
        self.blocks.insert(address, Listed { block, made: entry::current().0 });
    }

    /// Mappings at adjacent addresses are of one reservation, so they are adjacent on the host, too.
    fn across(&self, start: u64, offset: u64, len: u64) -> Option<Span> {
        let (mut covered, mut mappings) = (start, Vec::new());
        let end = start.checked_add(offset)?.checked_add(len)?;
        for (&at, listed) in self.blocks.range(start..end) {
            if listed.block.kind != Kind::Mapped || at != covered {
                return None;
            }
            covered += listed.block.len;
            mappings.push(Arc::clone(&listed.block));
        }
        Span::across(mappings, offset, len)
    }

    fn touches(&self, address: u64, len: u64) -> bool {
        let before = self.blocks.range(..address.saturating_add(len.max(1))).next_back();
        before.is_some_and(|(&start, listed)| start + listed.block.len > address)
    }
}

fn after(address: u64, len: u64) -> u64 {
    (address + len).next_multiple_of(ALIGN) + ALIGN
}

fn host_address(block: &Block) -> u64 {
    block.place().addr().get() as u64
}

fn in_window(address: u64) -> bool {
    (WINDOW..WINDOW_END).contains(&address)
}
