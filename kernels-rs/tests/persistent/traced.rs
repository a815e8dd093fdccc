//! Records all stores to one word.

use std::cell::{Cell, RefCell};
use std::ptr::NonNull;

use ringmem_kernels::{Handler, Launch, Simulated, Single, persistent};
use ringmem_layouts::attach::Corrupt;
use ringmem_layouts::control::State;
use ringmem_layouts::image::KernelHost;
use ringmem_layouts::{Host, HostWord, Machine, RingMessage, Word};

use crate::memory::Device;
use crate::rig::Rig;

thread_local! {
    static WATCHED: Cell<u64> = const { Cell::new(0) };
    static WRITTEN: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

#[repr(transparent)]
pub struct TracedWord(HostWord);

impl TracedWord {
    fn note(&self, value: u64) {
        if WATCHED.get() == (&raw const *self).addr() as u64 {
            WRITTEN.with_borrow_mut(|written| written.push(value));
        }
    }
}

// SAFETY: the host's word; recording keeps the ordering.
unsafe impl Word for TracedWord {
    fn new(value: u64) -> Self {
        Self(Word::new(value))
    }
    fn load(&self) -> u64 {
        Word::load(&self.0)
    }
    fn load_acquire(&self) -> u64 {
        self.0.load_acquire()
    }
    fn store(&self, value: u64) {
        self.note(value);
        Word::store(&self.0, value);
    }
    fn store_release(&self, value: u64) {
        self.note(value);
        self.0.store_release(value);
    }
    fn publish_all<const N: usize>(words: [(&Self, u64); N]) {
        for (word, value) in words {
            word.store_release(value);
        }
    }
}

pub struct Traced<'a>(pub &'a dyn KernelHost);

impl Machine for Traced<'_> {
    type Word = TracedWord;
    type Cell<T> = <Host as Machine>::Cell<T>;
    type Corrupt = Corrupt;

    fn at(&self, address: u64, bytes: u64, align: u64) -> Option<NonNull<u8>> {
        Simulated(self.0).at(address, bytes, align)
    }
}

pub trait Kernel: Send {
    fn run(self, machine: &Traced<'_>, lanes: &Single<'_>, launch: &Launch);
}

impl<F: FnOnce(&Traced<'_>, &Single<'_>, &Launch) + Send> Kernel for F {
    fn run(self, machine: &Traced<'_>, lanes: &Single<'_>, launch: &Launch) {
        self(machine, lanes, launch);
    }
}

pub fn handled<H>(mut handler: H) -> impl Kernel
where
    H: for<'m, 'l> Handler<Traced<'m>, Single<'l>> + Send,
{
    move |machine: &Traced<'_>, lanes: &Single<'_>, launch: &Launch| {
        // SAFETY: the rig outlives it and is the only peer.
        unsafe { persistent(machine, lanes, launch, &mut handler) }
    }
}

pub fn echo() -> impl Kernel {
    |machine: &Traced<'_>, lanes: &Single<'_>, launch: &Launch| {
        // SAFETY: the rig outlives it and is the only peer.
        unsafe { ringmem_kernels::persistent(machine, lanes, launch, &mut ringmem_kernels::echo::Handle::<true>) }
    }
}

pub fn trace<I: RingMessage, O: RingMessage>(
    rig: &mut Rig<'_, I, O>,
    device: &Device,
    kernel: impl Kernel,
    host: impl FnOnce(&mut Rig<'_, I, O>),
) -> (Vec<State>, bool) {
    assert_eq!(rig.state(), Some(State::Created), "as prepared");
    let launch = rig.launch;
    let state_word = (&raw const rig.block.state).addr() as u64;
    let mut written = Vec::new();
    let place = &mut written;
    let watched = move || {
        struct Take<'w>(&'w mut Vec<u64>);
        impl Drop for Take<'_> {
            fn drop(&mut self) {
                *self.0 = WRITTEN.take();
            }
        }
        let _take = Take(place);
        WATCHED.set(state_word);
        kernel.run(&Traced(device), &Single(device), &launch);
    };
    let ((), ended) = rig.run(watched, host);
    (rig.states(&written), ended.is_err())
}
