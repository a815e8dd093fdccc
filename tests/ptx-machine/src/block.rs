use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::cell::Cell;
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

use ringmem_layouts::image::KernelHost;

use crate::alu;
use crate::clock::{self, Clock};
use crate::code::{Class, Function, Logic, Operation, Order, Place, Shuffle, Source, Space, Special, Type, Vote};
use crate::fault::{Answer, Fault, Kind};
use crate::image::{Image, LOCAL, SHARED, WINDOW};
use crate::lane::{Lane, State, Wait};
use crate::memory::{Access, Memory, Random, SHADOW_PAGE, View};

const WARP: usize = 32;
const LONGEST_BURST: u64 = 128;
const LOOK_EVERY: u64 = 8;
const WAKE_EVERY: u64 = 16;
const YIELD_EVERY: u64 = 1 << 14;

struct SharedMemory {
    base: NonNull<u8>,
    /// INVARIANT: the layout with which `base` was allocated.
    layout: Layout,
}

impl SharedMemory {
    fn new(bytes: u64) -> Option<Self> {
        let bytes = usize::try_from(bytes).ok().filter(|bytes| *bytes > 0)?;
        let layout = Layout::from_size_align(bytes.next_multiple_of(SHADOW_PAGE), SHADOW_PAGE).ok()?;
        // SAFETY: not empty.
        Some(Self { base: NonNull::new(unsafe { alloc_zeroed(layout) })?, layout })
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // SAFETY: by the invariant `base` was allocated with this layout.
        unsafe { dealloc(self.base.as_ptr(), self.layout) };
    }
}

pub struct Block<'a> {
    image: &'a Image,
    host: &'a dyn KernelHost,
    memory: &'a Mutex<Memory>,
    grid: u64,
    number: u32,
    lanes: Vec<Lane>,
    /// Of its first dimension.
    columns: usize,
    shared: Option<SharedMemory>,
    random: Random,
    recent: Cell<u64>,
}

/// An unwritten operand is an error only if it decides something.
fn demand(known: bool, line: u32, what: &str) -> Answer {
    if known { Ok(()) } else { Err(Fault::new(Kind::Undefined, line, format!("{what} depends on a register that was never written"))) }
}

impl<'a> Block<'a> {
    pub fn new(
        image: &'a Image,
        entry: usize,
        arguments: &[u64],
        host: &'a dyn KernelHost,
        memory: &'a Mutex<Memory>,
        (threads, grid, is_peer): (crate::Threads, u64, bool),
        seed: u64,
    ) -> Self {
        let (number, now) = {
            let mut memory = lock(memory);
            (memory.begin(grid, is_peer), memory.now())
        };
        let columns = threads.x as usize;
        let threads = threads.x * threads.y;
        let lane = |index| {
            let lane = clock::Lane { block: number, index };
            Lane::new(View::new(lane, Clock::new(lane, threads as usize, now)), entry, &image.functions[entry], arguments)
        };
        let random = Random::new(seed ^ u64::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let shared = SharedMemory::new(image.shared_bytes);
        Self { image, host, memory, number, grid, lanes: (0..threads).map(lane).collect(), columns, shared, random, recent: Cell::new(0) }
    }

    pub fn run(mut self) -> Answer {
        let ended = self.run_lanes();
        let shared = self.shared.as_ref().map(|shared| (shared.base, shared.layout.size() as u64 - 1));
        lock(self.memory).end(self.number, self.host.groups(), ended.as_ref().err(), shared);
        ended
    }

    fn run_lanes(&mut self) -> Answer {
        let mut ready = Vec::with_capacity(self.lanes.len());
        let mut steps = 0;
        loop {
            lock(self.memory).tick(self.grid)?;
            // Ready lanes may wait for sleeping ones.
            let wakes = self.random.next().is_multiple_of(WAKE_EVERY);
            let can_run = |lane: &Lane| matches!(lane.state, State::Ready) || wakes && matches!(lane.state, State::Sleeping(_));
            ready.clear();
            ready.extend((0..self.lanes.len()).filter(|&lane| can_run(&self.lanes[lane])));
            if ready.is_empty() {
                if !self.wake()? {
                    return Ok(());
                }
                continue;
            }
            let lane = ready[self.random.next() as usize % ready.len()];
            self.lanes[lane].state = State::Ready;
            let burst = 1 + self.random.next() % LONGEST_BURST;
            for _ in 0..burst {
                self.step(lane)?;
                if !matches!(self.lanes[lane].state, State::Ready) {
                    break;
                }
            }
            if self.random.next().is_multiple_of(LOOK_EVERY) {
                self.look_around(self.recent.get(), 1, Memory::look_again);
            }
            steps += burst;
            if steps >= YIELD_EVERY {
                steps = 0;
                std::thread::yield_now();
            }
        }
    }

    fn wake(&mut self) -> Answer<bool> {
        let mut longest = None;
        for lane in &mut self.lanes {
            if let State::Sleeping(ns) = lane.state {
                longest = longest.max(Some(ns));
                lane.state = State::Ready;
            }
        }
        if let Some(ns) = longest {
            self.host.pause(if ns < 1000 { 100 } else { 2000 });
            return Ok(true);
        }
        let mut waiting = self.lanes.iter().filter(|lane| matches!(lane.state, State::Waiting(_)));
        let Some(first) = waiting.next() else { return Ok(false) };
        let line = |lane: &Lane| self.image.functions[lane.function].code[lane.at].line;
        let other = waiting.map(line).find(|other| *other != line(first)).unwrap_or_else(|| line(first));
        let text =
            format!("divergent barrier: lane {} waits here for lanes that wait at line {other} or not at all", first.view.lane.index);
        Err(Fault::new(Kind::Divergent, line(first), text))
    }

    fn special(&self, lane: usize, name: Special) -> u64 {
        let in_warp = lane % WARP;
        match name {
            Special::Lane => in_warp as u64,
            Special::Warp => (lane / WARP) as u64,
            Special::Warps => self.lanes.len().div_ceil(WARP) as u64,
            Special::Thread(0) => (lane % self.columns) as u64,
            Special::Thread(1) => (lane / self.columns) as u64,
            Special::Threads(0) => self.columns as u64,
            Special::Threads(1) => (self.lanes.len() / self.columns) as u64,
            Special::Block(0) => self.host.group(),
            Special::Blocks(0) => self.host.groups(),
            Special::Thread(_) | Special::Block(_) => 0,
            Special::Threads(_) | Special::Blocks(_) => 1,
            Special::Grid => self.grid,
            Special::Multiprocessor => self.host.group(),
            Special::Time => self.host.now_ns(),
            Special::TimeHigh => self.host.now_ns() >> 32,
            Special::MaskEqual => 1 << in_warp,
            Special::MaskLessEqual => (2 << in_warp) - 1,
            Special::MaskLess => (1 << in_warp) - 1,
            Special::MaskGreaterEqual => !((1_u64 << in_warp) - 1) & 0xffff_ffff,
            Special::MaskGreater => !((2_u64 << in_warp) - 1) & 0xffff_ffff,
        }
    }

    fn read(&self, lane: usize, source: Source, known: &mut bool) -> u64 {
        self.lanes[lane].read(source, known, |name| self.special(lane, name))
    }

    fn step(&mut self, index: usize) -> Answer {
        let image = self.image;
        let lane = &self.lanes[index];
        let function: &Function = &image.functions[lane.function];
        let instruction = &function.code[lane.at];
        let line = instruction.line;
        image.executes(line);
        let mut known = true;
        if let Some((predicate, negated)) = instruction.guard {
            let holds = self.read(index, Source::Register(predicate), &mut known) & 1 != 0;
            demand(known, line, "a predicate")?;
            if holds == negated {
                self.lanes[index].at += 1;
                return Ok(());
            }
        }
        let unknown = || Fault::new(Kind::UnknownOpcode, line, "the machine does not implement this opcode for this type");
        macro_rules! get {
            ($source:expr) => {
                self.read(index, *$source, &mut known)
            };
        }
        macro_rules! set {
            ($register:expr, $value:expr) => {{
                let value = $value;
                self.lanes[index].write(*$register, value, known);
            }};
        }
        match &instruction.operation {
            Operation::Nop => {}
            Operation::Unary(operation, ty, to, a) => {
                let a = get!(a);
                set!(to, alu::unary(*operation, *ty, a).ok_or_else(unknown)?);
            }
            Operation::Binary(operation, ty, to, a, b) => {
                let (a, b) = (get!(a), get!(b));
                set!(to, alu::binary(*operation, *ty, a, b).ok_or_else(unknown)?);
            }
            Operation::Carry { subtract, reads, writes, ty, to, a, b } => {
                let (a, b) = (ty.cut(get!(a)), ty.cut(get!(b)));
                let read = if *reads { self.lanes[index].carry } else { Some(false) };
                known &= read.is_some();
                let carry = u128::from(read.unwrap_or(false));
                let (a, b) = (u128::from(a), u128::from(b));
                let value = if *subtract { a.wrapping_sub(b).wrapping_sub(carry) } else { a + b + carry };
                if *writes {
                    self.lanes[index].carry = known.then_some(value >> ty.bits() & 1 != 0);
                }
                set!(to, ty.cut(value as u64));
            }
            Operation::Multiply(half, ty, to, a, b) => {
                let (a, b) = (get!(a), get!(b));
                set!(to, alu::multiply(*half, *ty, a, b));
            }
            Operation::MultiplyAdd(half, ty, to, [a, b, c]) => {
                let operands = [get!(a), get!(b), get!(c)];
                set!(to, alu::multiply_add(*half, *ty, operands));
            }
            Operation::FusedMultiplyAdd(ty, to, [a, b, c]) => {
                let operands = [get!(a), get!(b), get!(c)];
                set!(to, alu::fused_multiply_add(*ty, operands));
            }
            Operation::Funnel { left, wraps, to, low, high, count } => {
                let both = (get!(high) & 0xffff_ffff) << 32 | get!(low) & 0xffff_ffff;
                let count = get!(count) & 0xffff_ffff;
                let count = if *wraps { count & 31 } else { count.min(32) };
                set!(to, if *left { (u128::from(both) << count >> 32) as u64 & 0xffff_ffff } else { both >> count & 0xffff_ffff });
            }
            Operation::BitField { ty, to, from, at, length } => {
                let (from, at, length) = (ty.cut(get!(from)), get!(at) as u32 & 0xff, get!(length) as u32 & 0xff);
                let sign_at = (at + length).saturating_sub(1).min(ty.bits() - 1);
                let sign = ty.is_signed() && length > 0 && from >> sign_at & 1 != 0;
                let shifted = if at < ty.bits() { from >> at } else { 0 };
                let mask = if length >= 64 { u64::MAX } else { (1 << length) - 1 };
                let present = ty.bits().saturating_sub(at).min(length);
                let have = if present >= 64 { u64::MAX } else { (1 << present) - 1 };
                set!(to, ty.cut(shifted & mask & have | if sign { !(mask & have) } else { 0 }));
            }
            Operation::BitInsert { ty, to, field, into, at, length } => {
                let (field, into) = (get!(field), get!(into));
                let (at, length) = (get!(at) as u32 & 0xff, get!(length) as u32 & 0xff);
                let ones = if length >= 64 { u64::MAX } else { (1 << length) - 1 };
                let mask = if at < 64 { ones << at } else { 0 };
                let moved = if at < 64 { field << at } else { 0 };
                set!(to, ty.cut(into & !mask | moved & mask));
            }
            Operation::Permute(to, [a, b, selector]) => {
                let bytes = ((get!(b) & 0xffff_ffff) << 32 | get!(a) & 0xffff_ffff).to_le_bytes();
                let selector = get!(selector);
                let chosen = (0..4).fold(0, |value, byte| {
                    let nibble = selector >> (byte * 4) & 0xf;
                    let chosen = bytes[nibble as usize & 7];
                    let chosen = if nibble & 8 == 0 { chosen } else { (chosen.cast_signed() >> 7).cast_unsigned() };
                    value | u64::from(chosen) << (byte * 8)
                });
                set!(to, chosen);
            }
            Operation::Logic3(to, [a, b, c], table) => {
                let (a, b, c) = (get!(a), get!(b), get!(c));
                let mut value = 0;
                for case in 0..8 {
                    if table >> case & 1 != 0 {
                        let pick = |operand: u64, bit: u8| if case >> bit & 1 != 0 { operand } else { !operand };
                        value |= pick(a, 2) & pick(b, 1) & pick(c, 0);
                    }
                }
                set!(to, value & 0xffff_ffff);
            }
            Operation::Pack(ty, to, parts) => {
                let each = ty.bits() / parts.len() as u32;
                let mut value = 0;
                for (part, source) in parts.iter().enumerate() {
                    value |= (get!(source) & ((1 << each) - 1)) << (part as u32 * each);
                }
                set!(to, value);
            }
            Operation::Unpack(ty, targets, from) => {
                let each = ty.bits() / targets.len() as u32;
                let value = get!(from);
                for (part, target) in targets.iter().enumerate() {
                    if let Some(target) = target {
                        set!(target, value >> (part as u32 * each) & ((1 << each) - 1));
                    }
                }
            }
            Operation::SetPredicate { compare, unordered, ty, to, negated, a, b, with } => {
                let (a, b) = (get!(a), get!(b));
                let holds = alu::compare(*compare, *ty, a, b, *unordered);
                let combined = |holds: bool, other: Option<(Logic, bool)>| match other {
                    None => holds,
                    Some((Logic::And, other)) => holds && other,
                    Some((Logic::Or, other)) => holds || other,
                    Some((Logic::Xor, other)) => holds ^ other,
                };
                let other = with.as_ref().map(|(logic, source, is_negated)| (*logic, (get!(source) & 1 != 0) != *is_negated));
                set!(to, combined(holds, other).into());
                if let Some(negated) = negated {
                    set!(negated, combined(!holds, other).into());
                }
            }
            Operation::Select(to, a, b, predicate) => {
                let holds = get!(predicate) & 1 != 0;
                let value = if holds { get!(a) } else { get!(b) };
                set!(to, value);
            }
            Operation::Convert { to, from, rounding, saturates, target, source } => {
                let source = get!(source);
                set!(target, alu::convert(*to, *from, *rounding, *saturates, source).ok_or_else(unknown)?);
            }
            Operation::Load { place, ty, order, targets } => self.load(index, line, place, *ty, *order, targets)?,
            Operation::Store { place, ty, order, sources } => self.store(index, line, place, *ty, *order, sources)?,
            Operation::Atomic { update, place, ty, order, target, sources } => {
                let sources = [get!(&sources[0]), get!(&sources[1])];
                demand(known, line, "an update")?;
                let address = self.address(index, line, place)?;
                let access = self.access(address, ty.bytes, line, *order, ty.bytes.into(), "updates")?;
                if ty.bytes < 4 || ty.class == Class::Float && ty.bytes == 2 {
                    return Err(unknown());
                }
                let old = lock(self.memory).update(&mut self.lanes[index].view, &access, *update, *ty, sources)?;
                if let Some(target) = target {
                    set!(target, old);
                }
            }
            Operation::Fence { scope, acquires, releases } => {
                lock(self.memory).fence(&mut self.lanes[index].view, *scope, [*acquires, *releases]);
            }
            Operation::Branch(target) => {
                self.lanes[index].at = *target;
                return Ok(());
            }
            Operation::BranchTable(source, targets) => {
                let choice = get!(source) & 0xffff_ffff;
                demand(known, line, "a branch")?;
                let target = usize::try_from(choice).ok().and_then(|choice| targets.get(choice));
                self.lanes[index].at = *target.ok_or_else(|| {
                    Fault::new(Kind::OutOfBounds, line, format!("branches to entry {choice} of a table of {}", targets.len()))
                })?;
                return Ok(());
            }
            Operation::Call { function, results, arguments } => {
                self.lanes[index].at += 1;
                return self.lanes[index].call(*function, &image.functions[*function], results, arguments, line);
            }
            Operation::Return => {
                if self.lanes[index].leave(&function.results) {
                    return Ok(());
                }
                self.lanes[index].state = State::Exited;
                return self.meet(index);
            }
            Operation::Exit => {
                self.lanes[index].state = State::Exited;
                return self.meet(index);
            }
            Operation::Trap => return Err(Fault::new(Kind::Trap, line, format!("lane {index} executes `trap`"))),
            Operation::BarrierWarp(mask) => {
                let mask = get!(mask) as u32;
                demand(known, line, "a barrier")?;
                return self.wait(index, line, Wait::BarrierWarp { mask });
            }
            Operation::BarrierBlock { number, is_aligned } => {
                let number = get!(number);
                demand(known, line, "a barrier")?;
                return self.wait(index, line, Wait::BarrierBlock { number, is_aligned: *is_aligned });
            }
            Operation::Shuffle { mode, to, valid, value, lane, clamp, mask } => {
                let (lane, clamp, mask) = (get!(lane) as u32, get!(clamp) as u32, get!(mask) as u32);
                demand(known, line, "a shuffle")?;
                let value = get!(value);
                let value = known.then_some(value);
                return self.wait(index, line, Wait::Shuffle { mode: *mode, to: *to, valid: *valid, value, lane, clamp, mask });
            }
            Operation::Vote { mode, to, answer, negated, mask } => {
                let answer = (get!(answer) & 1 != 0) != *negated;
                let mask = get!(mask) as u32;
                demand(known, line, "a vote")?;
                return self.wait(index, line, Wait::Vote { mode: *mode, to: *to, answer, mask });
            }
            Operation::ActiveMask(to) => {
                let first = index / WARP * WARP;
                let here = (self.lanes[index].function, self.lanes[index].at);
                let is_here = |lane: &Lane| matches!(lane.state, State::Ready) && (lane.function, lane.at) == here;
                let mask =
                    (0..WARP).filter(|lane| self.lanes.get(first + lane).is_some_and(is_here)).fold(0, |mask, lane| mask | 1 << lane);
                set!(to, mask);
            }
            Operation::Sleep(ns) => {
                let ns = get!(ns) & 0xffff_ffff;
                self.lanes[index].state = State::Sleeping(ns);
            }
        }
        self.lanes[index].at += 1;
        Ok(())
    }

    fn address(&self, index: usize, line: u32, place: &Place) -> Answer<u64> {
        let mut known = true;
        let base = self.read(index, place.base, &mut known);
        demand(known, line, "an address")?;
        let address = base.wrapping_add(place.offset);
        Ok(match place.space {
            Space::Shared if address < WINDOW => SHARED + address,
            Space::Local if address < WINDOW => LOCAL + address,
            _ => address,
        })
    }

    fn access(&self, address: u64, bytes: u8, line: u32, order: Order, whole: u64, verb: &str) -> Answer<Access> {
        if !address.is_multiple_of(u64::from(bytes)) || whole > 8 && !address.is_multiple_of(u64::from(bytes)) {
            return Err(Fault::new(
                Kind::Misaligned,
                line,
                format!("{verb} {bytes} bytes at {address:#x}, which is not a multiple of {bytes}"),
            ));
        }
        let outside = || Fault::new(Kind::OutOfBounds, line, format!("{verb} {bytes} bytes at {address:#x}, outside all allocations"));
        if (SHARED..SHARED + WINDOW).contains(&address) {
            let offset = address - SHARED;
            let shared = self.shared.as_ref().ok_or_else(outside)?;
            if offset + u64::from(bytes) > self.image.shared_bytes {
                return Err(outside());
            }
            // SAFETY: within the allocation, as checked.
            let place = unsafe { shared.base.add(offset as usize) };
            return Ok(Access { line, address, place, bytes, order, is_private: true });
        }
        let place =
            self.image.translate(address, bytes.into()).or_else(|| self.host.translate(address, bytes.into())).ok_or_else(outside)?;
        self.recent.set(address);
        if !lock(self.memory).knows(place) {
            self.look_around(address, 4, Memory::look);
        }
        Ok(Access { line, address, place, bytes, order, is_private: false })
    }

    fn look_around(&self, address: u64, pages: u64, look: impl Fn(&mut Memory, NonNull<u8>, u64)) {
        const PART: u64 = 256;
        let page = SHADOW_PAGE as u64;
        let first = address / page * page;
        for part in (first..first.saturating_add(pages * page)).step_by(PART as usize) {
            let (from, to) = (part.min(address), (part + PART).max(address));
            if self.host.translate(from, to - from).is_some()
                && let Some(place) = self.host.translate(part, PART)
            {
                look(&mut lock(self.memory), place, PART);
            }
        }
    }

    fn check_vector(address: u64, ty: Type, count: usize, line: u32, verb: &str) -> Answer {
        let whole = u64::from(ty.bytes) * count as u64;
        if address.is_multiple_of(whole) {
            return Ok(());
        }
        Err(Fault::new(Kind::Misaligned, line, format!("{verb} {whole} bytes at {address:#x}, which is not a multiple of {whole}")))
    }

    fn load(&mut self, index: usize, line: u32, place: &Place, ty: Type, order: Order, targets: &[Option<u32>]) -> Answer {
        let address = self.address(index, line, place)?;
        if place.space == Space::Parameter {
            for (element, target) in (0..).zip(targets) {
                let outside = || Fault::new(Kind::OutOfBounds, line, "loads outside the parameters");
                let (value, known) = self.lanes[index].load_parameter(address + element * u64::from(ty.bytes), ty).ok_or_else(outside)?;
                if let Some(target) = target {
                    self.lanes[index].write(*target, ty.extend(value), known);
                }
            }
            return Ok(());
        }
        Self::check_vector(address, ty, targets.len(), line, "loads")?;
        for (element, target) in (0..).zip(targets) {
            let at = address + element * u64::from(ty.bytes);
            let (value, known) = if (LOCAL..LOCAL + WINDOW).contains(&at) {
                let outside =
                    || Fault::new(Kind::OutOfBounds, line, format!("loads {} bytes at {at:#x}, outside the local memory", ty.bytes));
                self.lanes[index].load_local(at - LOCAL, ty).ok_or_else(outside)?
            } else {
                let access = self.access(at, ty.bytes, line, order, 0, "loads")?;
                (lock(self.memory).load(&mut self.lanes[index].view, &access)?, true)
            };
            if let Some(target) = target {
                self.lanes[index].write(*target, ty.extend(value), known);
            }
        }
        Ok(())
    }

    fn store(&mut self, index: usize, line: u32, place: &Place, ty: Type, order: Order, sources: &[Source]) -> Answer {
        let address = self.address(index, line, place)?;
        if place.space != Space::Parameter {
            Self::check_vector(address, ty, sources.len(), line, "stores")?;
        }
        for (element, source) in (0..).zip(sources) {
            let at = address + element * u64::from(ty.bytes);
            let mut known = true;
            let value = ty.cut(self.read(index, *source, &mut known));
            if place.space == Space::Parameter {
                let outside = || Fault::new(Kind::OutOfBounds, line, "stores outside the parameters");
                self.lanes[index].store_parameter(at, ty, value, known).ok_or_else(outside)?;
            } else if (LOCAL..LOCAL + WINDOW).contains(&at) {
                let outside =
                    || Fault::new(Kind::OutOfBounds, line, format!("stores {} bytes at {at:#x}, outside the local memory", ty.bytes));
                self.lanes[index].store_local(at - LOCAL, ty, value, known).ok_or_else(outside)?;
            } else {
                demand(known, line, "a stored value")?;
                let access = self.access(at, ty.bytes, line, order, 0, "stores")?;
                lock(self.memory).store(&mut self.lanes[index].view, &access, value)?;
            }
        }
        Ok(())
    }

    fn wait(&mut self, index: usize, line: u32, wait: Wait) -> Answer {
        if let Wait::BarrierWarp { mask } | Wait::Shuffle { mask, .. } | Wait::Vote { mask, .. } = wait
            && mask >> (index % WARP) & 1 == 0
        {
            return Err(Fault::new(Kind::Divergent, line, format!("lane {index} is not in the mask {mask:#x} of its own instruction")));
        }
        self.lanes[index].state = State::Waiting(wait);
        self.meet(index)
    }

    fn meet(&mut self, index: usize) -> Answer {
        let first = index / WARP * WARP;
        let warp = first..(first + WARP).min(self.lanes.len());
        // An exit may complete any waiting lane's instruction.
        for leader in warp.clone() {
            let State::Waiting(wait) = self.lanes[leader].state else { continue };
            let mask = match wait {
                Wait::BarrierWarp { mask } | Wait::Shuffle { mask, .. } | Wait::Vote { mask, .. } => mask,
                Wait::BarrierBlock { .. } => continue,
            };
            let members = warp.clone().filter(|lane| mask >> (lane - first) & 1 != 0 && !matches!(self.lanes[*lane].state, State::Exited));
            let agrees = |lane: usize| match self.lanes[lane].state {
                State::Waiting(other) => is_same(wait, other),
                _ => false,
            };
            // Mostly some lane has not arrived: collect only complete members.
            if members.clone().all(agrees) {
                let members: Vec<usize> = members.collect();
                self.complete(&members, first);
            }
        }
        self.meet_block()
    }

    fn meet_block(&mut self) -> Answer {
        let mut barrier = None;
        let mut members = Vec::new();
        for (index, lane) in self.lanes.iter().enumerate() {
            match lane.state {
                State::Exited => {}
                State::Waiting(Wait::BarrierBlock { number, .. }) if barrier.is_none_or(|first| first == number) => {
                    barrier = Some(number);
                    members.push(index);
                }
                _ => return Ok(()),
            }
        }
        for pair in members.windows(2).filter(|pair| pair[0] / WARP == pair[1] / WARP) {
            let [first, second] = [pair[0], pair[1]].map(|lane| &self.lanes[lane]);
            let is_aligned = |lane: &Lane| matches!(lane.state, State::Waiting(Wait::BarrierBlock { is_aligned: true, .. }));
            if (first.function, first.at) != (second.function, second.at) && (is_aligned(first) || is_aligned(second)) {
                let line = |lane: &Lane| self.image.functions[lane.function].code[lane.at].line;
                let text = format!("aligned barrier: a lane of the same warp waits at line {}", line(second));
                return Err(Fault::new(Kind::Divergent, line(first), text));
            }
        }
        self.join(&members);
        members.iter().for_each(|lane| self.go_on(*lane));
        Ok(())
    }

    fn go_on(&mut self, lane: usize) {
        self.lanes[lane].state = State::Ready;
        self.lanes[lane].at += 1;
    }

    fn join(&mut self, members: &[usize]) {
        let Some((first, rest)) = members.split_first() else { return };
        let mut joined = self.lanes[*first].view.clock.clone();
        rest.iter().for_each(|lane| joined.join(&self.lanes[*lane].view.clock));
        for lane in members {
            let clock = &mut self.lanes[*lane].view.clock;
            *clock = joined.clone();
            clock.step(*lane as u32);
        }
    }

    fn complete(&mut self, members: &[usize], first: usize) {
        let waits: Vec<(usize, Wait)> = members
            .iter()
            .filter_map(|lane| match self.lanes[*lane].state {
                State::Waiting(wait) => Some((*lane, wait)),
                _ => None,
            })
            .collect();
        if matches!(waits.first(), Some((_, Wait::BarrierWarp { .. }))) {
            self.join(members);
        }
        let (mut ballot, mut values) = (0_u32, [None; WARP]);
        for (lane, wait) in &waits {
            match wait {
                Wait::Vote { answer, .. } => ballot |= u32::from(*answer) << (lane - first),
                Wait::Shuffle { value, .. } => values[lane - first] = *value,
                _ => {}
            }
        }
        let everybody = members.iter().fold(0_u32, |mask, lane| mask | 1 << (lane - first));
        for (lane, wait) in waits {
            match wait {
                Wait::Vote { mode, to, .. } => {
                    let value = match mode {
                        Vote::Ballot => ballot.into(),
                        Vote::Any => (ballot != 0).into(),
                        Vote::All => (ballot == everybody).into(),
                        Vote::Uniform => (ballot == 0 || ballot == everybody).into(),
                    };
                    self.lanes[lane].write(to, value, true);
                }
                Wait::Shuffle { mode, to, valid, lane: argument, clamp, .. } => {
                    let (from, is_valid) = shuffle_source(mode, (lane - first) as u32, argument, clamp);
                    let value = values[from as usize];
                    self.lanes[lane].write(to, value.unwrap_or(0) & 0xffff_ffff, value.is_some());
                    if let Some(valid) = valid {
                        self.lanes[lane].write(valid, is_valid.into(), true);
                    }
                }
                _ => {}
            }
            self.go_on(lane);
        }
    }
}

fn is_same(a: Wait, b: Wait) -> bool {
    match (a, b) {
        (Wait::BarrierWarp { mask: a }, Wait::BarrierWarp { mask: b }) => a == b,
        (Wait::Shuffle { mode, mask, .. }, Wait::Shuffle { mode: other, mask: others, .. }) => mode == other && mask == others,
        (Wait::Vote { mode, mask, .. }, Wait::Vote { mode: other, mask: others, .. }) => mode == other && mask == others,
        _ => false,
    }
}

fn shuffle_source(mode: Shuffle, lane: u32, argument: u32, clamp: u32) -> (u32, bool) {
    let (argument, segment, clamp) = (argument & 31, clamp >> 8 & 31, clamp & 31);
    let most = lane & segment | clamp & !segment & 31;
    let least = lane & segment;
    let (from, is_valid) = match mode {
        Shuffle::Up => {
            let from = lane.checked_sub(argument);
            (from.unwrap_or(lane), from.is_some_and(|from| from >= most))
        }
        Shuffle::Down => (lane + argument, lane + argument <= most),
        Shuffle::Butterfly => (lane ^ argument, lane ^ argument <= most),
        Shuffle::Index => (least | argument & !segment & 31, least | argument & !segment & 31 <= most),
    };
    (if is_valid { from } else { lane }, is_valid)
}

fn lock(memory: &Mutex<Memory>) -> MutexGuard<'_, Memory> {
    memory.lock().unwrap_or_else(PoisonError::into_inner)
}
