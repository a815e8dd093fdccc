//! A region's table: any bytes, and plans read back.

#![no_main]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use ringmem_layouts::region::{MAGIC, MAX_ENTRIES, Plan, RegionEntry, RegionHeader, VERSION, entries};
use ringmem_layouts::{HostWord, Word};

#[derive(Arbitrary, Debug)]
struct Input {
    len: u16,
    shift: u8,
    abi: u64,
    plan: Vec<(u64, Number, u8)>,
    written: Vec<(u8, Number)>,
    header: Option<i8>,
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Number {
    Small(u16),
    Any(u64),
}

impl Number {
    fn value(self) -> u64 {
        match self {
            Self::Small(value) => value.into(),
            Self::Any(value) => value,
        }
    }
}

const TABLE: u64 = (size_of::<RegionHeader<u64>>() + MAX_ENTRIES * size_of::<RegionEntry<u64>>()) as u64;

struct Memory {
    base: NonNull<u8>,
    allocation: Layout,
}

impl Memory {
    fn zeroed(len: usize) -> Self {
        let allocation = Layout::from_size_align(len.max(1), 64).unwrap();
        // SAFETY: not empty.
        let base = NonNull::new(unsafe { alloc_zeroed(allocation) }).expect("some memory");
        Self { base, allocation }
    }
    fn word(&self, place: usize) -> Option<&HostWord> {
        // SAFETY: that many aligned, initialised words.
        (place < self.allocation.size() / 8).then(|| unsafe { self.base.cast::<HostWord>().add(place).as_ref() })
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated in `zeroed` with this layout.
        unsafe { dealloc(self.base.as_ptr(), self.allocation) };
    }
}

fuzz_target!(|input: Input| {
    let memory = Memory::zeroed(usize::from(input.len) % 4096);
    let len = memory.allocation.size() as u64;

    let mut plan = Plan::new();
    let mut placed = Vec::new();
    for &(kind, size, align) in &input.plan {
        let (before, align) = (plan.size(), if align < 64 { 1_u64 << align } else { u64::from(align) });
        match plan.place(kind, size.value(), align) {
            Ok(offset) => {
                assert!(offset >= before && offset % align == 0 && plan.size() == offset + size.value());
                assert!(i64::try_from(plan.size()).is_ok());
                placed.push((kind, offset, size.value()));
            }
            Err(refused) => assert!(!refused.to_string().is_empty() && plan.size() == before),
        }
    }
    assert!(placed.len() <= MAX_ENTRIES);

    // SAFETY: that many initialised bytes; one thread.
    let written = unsafe { plan.write::<HostWord>(memory.base, len, input.abi) };
    assert_eq!(written.is_ok(), plan.size() <= len);
    if written.is_ok() {
        // SAFETY: that many initialised bytes; one thread.
        let read = unsafe { entries::<HostWord>(memory.base, len, input.abi) }.expect("what was just written");
        assert!(read.iter().map(|entry| (entry.kind, entry.offset, entry.size)).eq(placed));
    }

    for &(place, number) in &input.written {
        if let Some(word) = memory.word(place.into()) {
            Word::store(word, number.value());
        }
    }
    if let Some(more) = input.header {
        for (place, value) in [MAGIC, VERSION, len.wrapping_add_signed(more.into()), input.abi].into_iter().enumerate() {
            memory.word(place).into_iter().for_each(|word| Word::store(word, value));
        }
    }
    let shift = u64::from(input.shift) * 8;
    if shift > len {
        return;
    }
    // SAFETY: within the allocation, or its end.
    let base = unsafe { memory.base.add(shift as usize) };
    let len = len - shift;
    // SAFETY: the rest of the initialised bytes; one thread.
    match unsafe { entries::<HostWord>(base, len, input.abi) } {
        Ok(read) => {
            let size = memory.word(usize::from(input.shift) + 2).map_or(0, Word::load);
            assert!(shift % 64 == 0 && size <= len && len >= TABLE && read.len() <= MAX_ENTRIES);
            for entry in &read {
                assert!(entry.offset >= TABLE && entry.offset.checked_add(entry.size).is_some_and(|end| end <= size), "outside: {entry:?}");
            }
        }
        Err(refused) => assert!(!refused.to_string().is_empty()),
    }
});
