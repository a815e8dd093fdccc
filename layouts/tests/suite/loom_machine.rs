//! A machine over loom's atomics and cell that can weaken them.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::process::Command;
use std::ptr::NonNull;
use std::sync::Once;
use std::{env, thread};

use loom::cell::UnsafeCell;
use loom::sync::atomic::AtomicU64;
use loom::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use ringmem_layouts::{Counter, Machine, RmwWord, SlotCell, Word};

pub const STRONG: u8 = 0;
pub const WRITER_PUBLISHES_RELAXED: u8 = 1;
pub const READER_LOOKS_RELAXED: u8 = 2;
pub const READER_RELEASES_RELAXED: u8 = 3;
pub const WRITER_LOOKS_RELAXED: u8 = 4;

#[allow(dead_code, reason = "for the models of those who sleep")]
pub const RMW_RELAXED: u8 = 5;

#[allow(dead_code, reason = "for the model of those who take turns")]
pub const TURN_PASSED_RELAXED: u8 = 6;

#[allow(dead_code, reason = "for the model of those who leave")]
pub const EXCHANGE_RELAXED: u8 = 7;

#[derive(Clone, Copy, PartialEq)]
pub enum Side {
    Writer,
    Reader,
}

loom::thread_local! {
    static SIDE: Cell<Option<Side>> = Cell::new(None);
}

pub fn take_side(side: Side) {
    SIDE.with(|cell| cell.set(Some(side)));
}

#[allow(dead_code, reason = "for models that weaken one operation alone")]
pub fn leave_side() {
    SIDE.with(|cell| cell.set(None));
}

fn is(side: Side) -> bool {
    SIDE.with(|cell| cell.get() == Some(side))
}

pub struct Loom<const WEAK: u8>;

impl<const WEAK: u8> Machine for Loom<WEAK> {
    type Word = LoomWord<WEAK>;
    type Cell<T> = LoomCell<T>;
    type Corrupt = ringmem_layouts::attach::Corrupt;

    fn at(&self, _address: u64, _bytes: u64, _align: u64) -> Option<NonNull<u8>> {
        None
    }
}

pub struct LoomWord<const WEAK: u8>(AtomicU64);

// SAFETY: `STRONG` is atomic. The others are broken on purpose; loom refuses a racy access before it happens.
unsafe impl<const WEAK: u8> Word for LoomWord<WEAK> {
    fn new(value: u64) -> Self {
        Self(AtomicU64::new(value))
    }
    fn load(&self) -> u64 {
        if std::thread::panicking() {
            return 0;
        }
        self.0.load(Relaxed)
    }
    fn load_acquire(&self) -> u64 {
        let weak = (WEAK == READER_LOOKS_RELAXED && is(Side::Reader)) || (WEAK == WRITER_LOOKS_RELAXED && is(Side::Writer));
        self.0.load(if weak { Relaxed } else { Acquire })
    }
    fn store(&self, value: u64) {
        self.0.store(value, Relaxed);
    }
    fn store_release(&self, value: u64) {
        let weak = (WEAK == WRITER_PUBLISHES_RELAXED && is(Side::Writer)) || (WEAK == READER_RELEASES_RELAXED && is(Side::Reader));
        self.0.store(value, if weak { Relaxed } else { Release });
    }
    fn publish_all<const N: usize>(words: [(&Self, u64); N]) {
        for (word, value) in words {
            word.store_release(value);
        }
    }
}

// SAFETY: single atomic operations, some weakened on purpose.
unsafe impl<const WEAK: u8> RmwWord for LoomWord<WEAK> {
    fn compare_exchange(&self, current: u64, new: u64) -> Result<u64, u64> {
        let (found, not) = if WEAK == EXCHANGE_RELAXED { (Relaxed, Relaxed) } else { (AcqRel, Acquire) };
        self.0.compare_exchange(current, new, found, not)
    }
    fn fetch_add(&self, value: u64) -> u64 {
        // A failed model must not call loom.
        if std::thread::panicking() {
            return 0;
        }
        self.0.fetch_add(value, if WEAK == RMW_RELAXED { Relaxed } else { AcqRel })
    }
    fn swap(&self, value: u64) -> u64 {
        self.0.swap(value, AcqRel)
    }
}

// SAFETY: single atomic operations, some weakened on purpose.
unsafe impl<const WEAK: u8> Counter for LoomWord<WEAK> {
    fn exchange_if(&self, current: u64, new: u64) -> Result<(), u64> {
        self.0.compare_exchange(current, new, Relaxed, Relaxed).map(drop)
    }
    fn add_release(&self, value: u64) {
        self.0.fetch_add(value, if WEAK == TURN_PASSED_RELAXED { Relaxed } else { Release });
    }
}

pub struct LoomCell<T>(UnsafeCell<T>);

// SAFETY: the pointer of loom's cell.
unsafe impl<T> SlotCell<T> for LoomCell<T> {
    fn new(value: T) -> Self {
        Self(UnsafeCell::new(value))
    }
    fn with<R>(&self, read: impl FnOnce(*const T) -> R) -> R {
        self.0.with(read)
    }
    fn with_mut<R>(&self, write: impl FnOnce(*mut T) -> R) -> R {
        self.0.with_mut(write)
    }
}

/// Explores the model, or runs the whole test in a process of its own, because loom's mappings in one process wait for each other; returns whether
/// it explored.
pub fn check(preemptions: usize, model: impl Fn() + Sync + Send + 'static) -> bool {
    const ALONE: &str = "RINGMEM_MODEL_ALONE";
    thread_local! {
        static IS_DONE: Cell<bool> = const { Cell::new(false) };
    }
    let test = thread::current().name().unwrap_or("main").to_owned();
    // With one thread the tests run on "main".
    if test == "main" || env::var_os(ALONE).is_some() {
        explore(preemptions, model);
        return true;
    }
    if IS_DONE.replace(true) {
        return false;
    }
    let mut alone = Command::new(env::current_exe().unwrap());
    let output = alone.args([&test, "--exact", "--include-ignored"]).env(ALONE, "1").output().unwrap();
    let [said, failed] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    assert!(output.status.success() && said.contains(" 1 passed"), "{said}{failed}");
    false
}

fn explore(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound.get_or_insert(preemptions);
    builder.max_branches = 20_000;
    builder.check(model);
}

thread_local! {
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Running out of branches proves nothing: the model must fail with `phrase`.
pub fn must_fail(phrase: &str, preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let loud = take_hook();
        set_hook(Box::new(move |info| {
            if !QUIET.get() {
                loud(info);
            }
        }));
    });
    QUIET.set(true);
    let outcome = catch_unwind(AssertUnwindSafe(|| explore(preemptions, model)));
    QUIET.set(false);
    let Err(cause) = outcome else { panic!("the weakened model passed: the test sees nothing") };
    let cause =
        cause.downcast::<String>().map_or_else(|cause| cause.downcast::<&str>().map_or_else(|_| String::new(), |s| (*s).into()), |s| *s);
    assert!(cause.contains(phrase), "the weakened model failed with `{cause}`, not with `{phrase}`");
}
