use std::collections::VecDeque;
use std::mem::forget;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Instant;

use ringmem::backend::host::{Faults, HostBackend, Phase, Verb};
use ringmem::image::{Entry, KernelHost};
use ringmem::manager::MemoryManager;
use ringmem::memory::{Buffer, DeviceReadable, Memory, PinnedBuffer};
use ringmem::stream::{Module, Pending, Stream};
use ringmem::{Abi, Error, Image, LAYOUTS};

use super::{Clean, backend, modelled, pinned, zeros};
use crate::rig::busy_stream::Held;

const KERNELS: &[Entry] = &[
    Entry { name: "affine", arguments: 5, run: affine },
    Entry { name: "sum", arguments: 5, run: sum },
    Entry { name: "none", arguments: 1, run: none },
    Entry { name: "halved", arguments: 4, run: halved },
];

fn elements(host: &dyn KernelHost, address: u64, len: u64) -> NonNull<[u32]> {
    let first = host.translate(address, 4 * len).expect("mapped elements");
    NonNull::slice_from_raw_parts(first.cast(), len as usize)
}

fn affine(host: &dyn KernelHost, arguments: &[u64]) {
    // SAFETY: the launch's own.
    for element in unsafe { elements(host, arguments[0], arguments[1]).as_mut() } {
        *element = element.wrapping_mul(arguments[2] as u32).wrapping_add(arguments[3] as u32);
    }
}

fn sum(host: &dyn KernelHost, arguments: &[u64]) {
    let [a, b, mut to] = [0, 1, 2].map(|index| elements(host, arguments[index], arguments[3]));
    // SAFETY: the launch reads these; other uses read.
    let (a, b) = unsafe { (a.as_ref(), b.as_ref()) };
    // SAFETY: the launch's own buffer.
    for (to, (a, b)) in unsafe { to.as_mut() }.iter_mut().zip(a.iter().zip(b)) {
        *to = *a + *b;
    }
}

fn halved(host: &dyn KernelHost, arguments: &[u64]) {
    // SAFETY: the launch's own.
    unsafe { elements(host, arguments[1], arguments[2]).as_mut() }.iter_mut().for_each(|element| *element /= 2);
}

fn none(_: &dyn KernelHost, arguments: &[u64]) {
    assert_eq!(arguments, [0]);
}

fn load(backend: &Arc<HostBackend>) -> Module {
    Module::load(backend, &Image { ptx: b"", host: KERNELS, abi: Abi::of(LAYOUTS) }, &Abi::of(LAYOUTS)).expect("our ABI")
}

fn stream(backend: &Arc<HostBackend>) -> Stream {
    Stream::new(backend, 0).expect("a stream")
}

fn apply<M>(stream: &Stream, module: &Module, buffer: Buffer<u32, M>, [factor, add, ns]: [u64; 3]) -> Pending<Buffer<u32, M>>
where
    M: Memory<Visibility: DeviceReadable>,
{
    let len = buffer.len() as u64;
    // SAFETY: the kernel accesses that many elements of the launch, and exits.
    unsafe { stream.launch_with(module, "affine", buffer, &[len, factor, add, ns]) }.expect("queued")
}

#[test]
fn nothing_is_copied_between_chained_kernels() {
    let backend = backend();
    let (module, stream) = (load(&backend), stream(&backend));
    let mut buffer = zeros(&backend, 1000);
    let before = backend.counters();
    for _ in 0..10 {
        buffer = apply(&stream, &module, buffer, [3, 1, 0]).detach();
    }
    let after = {
        stream.synchronize().expect("no fault");
        backend.counters()
    };
    assert_eq!(
        [after.uploads, after.downloads, after.device_copies, after.host_copies],
        [before.uploads, before.downloads, before.device_copies, before.host_copies]
    );
    assert_eq!((after.launches - before.launches, after.device_allocations), (10, before.device_allocations));
    assert!(buffer.to_vec().expect("no fault").iter().all(|&element| element == 29_524));
}

#[test]
fn launch_with_passes_operands_in_order() {
    let backend = backend();
    let (module, stream) = (load(&backend), stream(&backend));
    let manager = MemoryManager::new(pinned(&backend));
    let id = manager.register(PinnedBuffer::from_slice(pinned(&backend), &[1; 100]).expect("room")).expect("room");
    let leased = manager.lease(id).expect("registered").into_owned();
    let operands = (leased, (PinnedBuffer::from_slice(pinned(&backend), &[20; 100]).expect("room"), zeros(&backend, 100)));
    // SAFETY: the kernel accesses a hundred elements of each, writes to the last, and exits.
    let (_, (two, sum)) = unsafe { stream.launch_with(&module, "sum", operands, &[100, 0]) }.expect("queued").wait().expect("no fault");
    assert_eq!((sum.to_vec().expect("no fault"), two.as_slice().expect("idle")), (vec![21; 100], &[20; 100][..]));
    // SAFETY: accesses nothing.
    let pending = unsafe { stream.launch_with(&module, "none", zeros(&backend, 0), &[]) }.expect("queued");
    pending.wait().expect("its argument is 0");
}

#[test]
fn a_launch_follows_work_queued_on_its_operands() {
    let backend = backend();
    let (module, first, second) = (load(&backend), stream(&backend), stream(&backend));
    let held = Held::new(&backend, &first);
    backend.set_faults(&Faults::new());
    let buffer = apply(&first, &module, zeros(&backend, 100), [1, 1, 0]).detach();
    let buffer = apply(&second, &module, buffer, [10, 0, 0]);
    assert_eq!((backend.calls(Verb::StreamWait), buffer.is_done()), (Some(1), false));
    held.let_go();
    assert_eq!(buffer.wait().expect("no fault").to_vec().expect("no fault"), [10; 100]);
}

#[test]
fn a_rejected_launch_returns_its_operands_and_queues_nothing() {
    let (backend, other) = (backend(), super::backend());
    let (module, first, second) = (load(&backend), stream(&backend), stream(&backend));
    let mut pair = (apply(&first, &module, zeros(&backend, 4), [1, 1, 0]).detach(), zeros(&other, 4));
    backend.set_faults(&Faults::new());
    for (of, name, arguments) in [(&module, "affine", &[][..]), (&load(&other), "sum", &[0, 0, 0])] {
        // SAFETY: rejected.
        let rejected = unsafe { second.launch_with(of, name, pair, arguments) }.expect_err("of two backends");
        assert!(matches!(rejected.error, Error::OtherBackend { .. }), "{rejected:?}");
        pair = rejected.value;
    }
    assert_eq!([Verb::StreamWait, Verb::Launch].map(|verb| backend.calls(verb)), [Some(0); 2]);
    let mut buffer = pair.0;
    for (name, arguments) in [("affine", &[4_u64][..]), ("efface", &[])] {
        // SAFETY: rejected.
        let rejected = unsafe { first.launch_with(&module, name, buffer, arguments) }.expect_err("no such launch");
        assert!(matches!(rejected.error, Error::Arguments { .. } | Error::NotFound { what: "kernel", .. }), "{rejected:?}");
        buffer = rejected.value;
    }
    assert_eq!(buffer.to_vec().expect("no fault"), [1; 4]);
}

#[test]
fn dropped_operands_are_freed_after_the_kernel() {
    let backend = Clean::build(HostBackend::builder().device_memory(1 << 20).log(true));
    let (module, stream) = (load(&backend), stream(&backend));
    let held = Held::new(&backend, &stream);
    let buffer = zeros(&backend, 100);
    let address = buffer.device_address().expect("it has bytes").get();
    drop(apply(&stream, &module, buffer, [1, 1, 0]));
    forget(apply(&stream, &module, zeros(&backend, 100), [1, 1, 0]));
    backend.forgets();
    held.let_go();
    stream.synchronize().expect("no fault");
    let freed = || backend.call_log().iter().position(|call| call.phase == Phase::Freed && call.from == Some(address));
    let begun = Instant::now();
    let freed = loop {
        match freed() {
            Some(freed) => break freed,
            None => assert!(begun.elapsed() < super::LIMIT, "never freed"),
        }
        std::thread::yield_now();
    };
    let log = backend.call_log();
    let left = log.iter().enumerate().filter(|(_, call)| call.verb == Verb::Launch && call.phase == Phase::Executed).nth(1);
    assert!(left.is_some_and(|(left, call)| left < freed && call.ok), "{log:?}");
}

const COMPUTING: u64 = 15_000;
const LEN: usize = 35_000;

#[test]
fn a_chain_takes_a_third_of_separate_round_trips() {
    let backend = Clean::build(modelled());
    let (module, stream) = (load(&backend), stream(&backend));
    let now = || backend.model_now().expect("a model");
    let mut both = (PinnedBuffer::from_slice(pinned(&backend), &vec![1; LEN]).expect("room"), zeros(&backend, LEN));
    let begun = now();
    for _ in 0..2 {
        let (host, device) = stream.copy(both.0, both.1).expect("queued").detach();
        let device = apply(&stream, &module, device, [2, 0, COMPUTING]).detach();
        let (device, host) = stream.copy(device, host).expect("queued").wait().expect("no fault");
        both = (host, device);
    }
    let apart = now() - begun;
    let begun = now();
    let device = apply(&stream, &module, both.1, [2, 0, COMPUTING]).detach();
    let device = apply(&stream, &module, device, [2, 0, COMPUTING]).wait().expect("no fault");
    let kept = now() - begun;
    assert_eq!((apart, kept), (90_000, 30_000));
    assert!(apart >= 3 * kept);
    assert_eq!(device.to_vec().expect("no fault"), vec![16; LEN]);
}

fn rounds(backend: &Clean, count: u32, pairs: usize) -> u64 {
    let (module, transfers, kernels) = (load(backend), stream(backend), stream(backend));
    let pair = || (PinnedBuffer::<u32>::new(pinned(backend), 1000).expect("room"), zeros(backend, 1000));
    let mut idle: Vec<_> = (0..pairs).map(|_| pair()).collect();
    let mut running = VecDeque::new();
    let begun = backend.model_now().expect("a model");
    for round in 0..count {
        let next = idle.pop().or_else(|| running.pop_front().map(|first: Pending<_>| first.wait().expect("no fault")));
        let (mut host, device) = next.expect("idle or running");
        host.as_mut_slice().expect("idle").fill(2 * round);
        backend.model_work(10_000);
        let both = transfers.copy(host, device).expect("queued").detach();
        // SAFETY: the kernel accesses a thousand elements of the launch, and exits.
        running.push_back(unsafe { kernels.launch_with(&module, "halved", both, &[1000, COMPUTING]) }.expect("queued"));
    }
    let last = running.into_iter().map(|round| round.wait().expect("no fault")).last().expect("a round");
    let took = backend.model_now().expect("a model") - begun;
    assert_eq!(last.1.to_vec().expect("no fault"), vec![count - 1; 1000]);
    took
}

#[test]
fn double_buffering_hides_the_fill_behind_the_kernel() {
    const ROUNDS: u32 = 100;
    let longer = COMPUTING * u64::from(ROUNDS);
    let both = rounds(&Clean::build(modelled()), ROUNDS, 2);
    assert!(both * 10 <= longer * 11, "{both} ns");
    assert_eq!(rounds(&Clean::build(modelled()), ROUNDS, 1), (10_000 + 1400 + COMPUTING) * u64::from(ROUNDS), "one after the other");
}
