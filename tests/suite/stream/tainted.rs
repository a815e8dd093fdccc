use ringmem::backend::host::{Fault, Faults, Verb};
use ringmem::backend::{Backend, Operand};
use ringmem::image::{Entry, KernelHost};
use ringmem::manager::{BufferConfig, MemoryManager};
use ringmem::memory::{Buffer, Host, Memory, Unified};
use ringmem::mirror::{Access, MirroredBuffer, State};
use ringmem::pool::Pool;
use ringmem::stream::Module;
use ringmem::{Abi, Error, Image, LAYOUTS, double_buffer};

use super::*;

const BYTES: usize = 64;

fn fill_fails(backend: &Clean) {
    backend.set_faults(&Faults::new().on(Verb::Fill, Fault::nth(1).when_executed()));
}

fn names<T>(outcome: Result<T, Error>, stream: &Stream) -> bool {
    match outcome {
        Err(Error::Tainted { stream: id, number: 1, cause }) => id == stream.id().get() && cause.contains("fill"),
        _ => false,
    }
}

fn tainted(backend: &Clean, stream: &Stream) -> GpuBuffer<u8> {
    fill_fails(backend);
    stream.fill(gpu(backend, BYTES), .., 7).expect("queued").detach()
}

#[test]
fn a_copy_of_a_failed_fill_fails_with_its_cause_on_any_stream() {
    let backend = build(builder());
    let (first, second, third) = (stream(&backend), stream(&backend), stream(&backend));
    for last in [&first, &second, &third] {
        let one = stream(&backend);
        let device = tainted(&backend, &one);
        let (device, host) = second.copy(device, pinned(&backend, BYTES)).expect("queued").detach();
        let rejected = last.copy(host, gpu(&backend, BYTES)).expect("queued").wait().expect_err("there is nothing to copy");
        assert!(names(Err::<(), _>(rejected.error), &one));
        let (host, copied) = rejected.value;
        assert!(names(device.to_vec(), &one));
        assert!(names(copied.to_vec(), &one));
        assert!(names(host.as_slice().map(drop), &one));
    }
}

#[test]
fn reading_tainted_memory_fails_until_it_is_written() {
    let backend = build(builder());
    let stream = stream(&backend);
    fill_fails(&backend);
    let mut pinned = stream.fill(pinned(&backend, BYTES), 8..24, 7).expect("queued").wait().expect_err("planned").value;
    assert!(names(pinned.as_slice().map(drop), &stream));
    assert!(names(pinned.as_mut_slice().map(drop), &stream));
    assert!(names(pinned.to_vec(), &stream));
    assert!(names(pinned.read(|_| ()), &stream) && names(pinned.update(|_| ()), &stream));
    let mut other = gpu(&backend, BYTES);
    assert!(names(other.as_view_mut().copy_from_view(pinned.as_view()), &stream));
    for valid in [0..8, 24..BYTES] {
        assert!(pinned.slice(valid.clone()).expect("within").as_slice().is_ok(), "{valid:?} was not the fill's");
    }
    pinned.copy_from_at(8, &[1; 8]).expect("written in part");
    assert!(pinned.slice(..16).expect("within").as_slice().is_ok());
    assert!(names(pinned.slice(15..17).expect("within").to_vec(), &stream));
    let mut pinned = stream.fill(pinned, 16..24, 2).expect("queued").wait().expect("no fault any more");
    assert_eq!(pinned.as_slice().expect("valid again")[8..24], [[1; 8], [2; 8]].concat());
    fill_fails(&backend);
    pinned = stream.fill(pinned, .., 7).expect("queued").wait().expect_err("planned").value;
    pinned.write(|bytes| bytes.fill(3)).expect("written as a whole");
    assert_eq!(pinned.to_vec().expect("valid again"), [3; BYTES]);
}

#[test]
fn as_slice_reports_a_failed_fill_without_a_waiter() {
    let backend = build(builder());
    let stream = stream(&backend);
    fill_fails(&backend);
    let host = Buffer::<u8, _>::new(Host::new(&*backend, 0), BYTES).expect("room");
    let host = stream.fill(host, .., 7).expect("queued").detach();
    stream.record().expect("queued").wait().expect_err("the fill");
    assert!(names(host.as_slice().map(drop), &stream));
}

#[test]
fn reallocated_memory_is_not_tainted() {
    let backend = build(builder());
    let (stream, pool) = (stream(&backend), Pool::builder(Device::new(&*backend, 0)).slab(1 << 16).build().expect("a pool"));
    for _ in 0..2 {
        fill_fails(&backend);
        let buffer = Buffer::<u8, _>::new(pool.clone(), BYTES).expect("room");
        let address = buffer.device_address();
        let buffer = stream.fill(buffer, .., 7).expect("queued").wait().expect_err("planned").value;
        drop(buffer);
        let buffer = Buffer::<u8, _>::new(pool.clone(), BYTES).expect("room");
        assert_eq!(buffer.device_address(), address, "the same block");
        assert!(buffer.to_vec().is_ok());
    }
    fill_fails(&backend);
    drop(stream.fill(gpu(&backend, BYTES), .., 7).expect("queued").wait().expect_err("planned"));
    let device = Device::new(&backend, 0);
    let block = device.alloc(std::alloc::Layout::new::<[u8; BYTES]>(), None).expect("room");
    // SAFETY: within the block.
    let place = unsafe { block.address_at(0) }.expect("it has bytes");
    assert!(backend.taints().expect("tracked").check(place, BYTES as u64).is_ok(), "also below the buffers");
    // SAFETY: just allocated, unused.
    unsafe { device.free(&block, &ringmem::backend::Uses::NONE) }.expect("once");
}

#[test]
fn an_old_operation_does_not_taint_a_reused_block() {
    let backend = build(builder());
    let stream = stream(&backend);
    let pool = Pool::builder(Device::new(&backend, 0)).slab(1 << 16).build().expect("a pool");
    let module = module(&backend);
    for by_address in [false, true] {
        let held = Held::new(&backend, &stream);
        fill_fails(&backend);
        let previous = Buffer::<u8, _>::new(pool.clone(), BYTES).expect("room");
        let address = previous.device_address();
        drop(stream.fill(previous, .., 7).expect("queued"));
        let buffer = Buffer::<u8, _>::new_on(pool.clone(), BYTES, &stream).expect("room");
        assert_eq!(buffer.device_address(), address, "the same block, while the fill is queued");
        let written = if by_address {
            let arguments = [address.expect("it has bytes").get(), 0];
            // SAFETY: the kernel uses the buffer, which outlives the wait.
            let launched = unsafe { stream.launch(&module, "add_one", &arguments) }.expect("queued");
            held.let_go();
            launched.wait().expect("it runs");
            buffer
        } else {
            // SAFETY: the kernel uses its operand.
            let launched = unsafe { stream.launch_with(&module, "add_one", buffer, &[0]) }.expect("queued");
            held.let_go();
            launched.wait().expect("it runs")
        };
        stream.synchronize().ok();
        let mut bytes = [0; BYTES];
        let read = written.copy_to(&mut bytes).or_else(|_| written.copy_to(&mut bytes));
        read.expect("no operation of this owner failed");
        drop(written);
        let mut own = Buffer::<u8, _>::new_on(pool.clone(), BYTES, &stream).expect("room");
        own.zero().ok();
        fill_fails(&backend);
        let own = stream.fill(own, .., 7).expect("queued").wait().expect_err("planned").value;
        assert!(matches!(own.to_vec(), Err(Error::Tainted { .. })));
    }
}

unsafe fn add_one(host: &dyn KernelHost, arguments: &[u64]) {
    let first = host.translate(arguments[0], BYTES as u64).expect("the operand");
    assert_eq!(arguments[1], 0, "asked to panic");
    for at in 0..BYTES {
        // SAFETY: translated for this many bytes of the launch.
        unsafe { *first.add(at).as_mut() += 1 };
    }
}

fn module(backend: &Clean) -> Module {
    const KERNELS: &[Entry] = &[Entry { name: "add_one", arguments: 2, run: add_one }];
    Module::load(&**backend, &Image { ptx: b"", host: KERNELS, abi: Abi::of(LAYOUTS) }, &Abi::of(LAYOUTS)).expect("our ABI")
}

#[test]
fn a_launch_fails_on_tainted_operands_and_a_panic_taints_them() {
    let backend = build(builder());
    let (other, stream, module) = (stream(&backend), stream(&backend), module(&backend));
    let device = tainted(&backend, &other);
    // SAFETY: the kernel uses its operand.
    let rejected = unsafe { stream.launch_with(&module, "add_one", device, &[0]) }.expect("queued").wait().expect_err("nothing to add to");
    assert!(names(Err::<(), _>(rejected.error), &other));
    let mut device = rejected.value;
    device.copy_from(&[1; BYTES]).expect("written as a whole");
    // SAFETY: the kernel uses its operand.
    let device = unsafe { stream.launch_with(&module, "add_one", device, &[0]) }.expect("queued").wait().expect("valid");
    assert_eq!(device.to_vec().expect("valid"), [2; BYTES]);
    // SAFETY: the kernel uses its operand.
    let panicked = unsafe { stream.launch_with(&module, "add_one", device, &[1]) }.expect("queued").wait().expect_err("asked to panic");
    assert!(matches!(panicked.error, Error::KernelPanicked { .. }));
    let error = panicked.value.to_vec().expect_err("half of it may be written");
    assert!(matches!(error, Error::Tainted { stream: id, .. } if id == stream.id().get()), "{error}");
}

#[test]
fn a_panicking_kernel_does_not_taint_read_only_operands() {
    let backend = build(builder());
    let (stream, module) = (stream(&backend), module(&backend));
    let buffers = [0; 2].map(|_| GpuBuffer::<u8>::from_slice(Device::new(&*backend, 0), &[1; BYTES]).expect("room"));
    let place = |of: &GpuBuffer<u8>| ringmem::backend::Address::Device(of.device_address().expect("it has bytes"));
    let operands = [false, true].map(|is_written| {
        let place = place(&buffers[usize::from(is_written)]);
        Operand { address: place, bytes: BYTES as u64, is_written }
    });
    let address = buffers[0].device_address().expect("it has bytes").get();
    let loaded = backend.load(
        &Image { ptx: b"", host: &[Entry { name: "add_one", arguments: 2, run: add_one }], abi: Abi::of(LAYOUTS) },
        &Abi::of(LAYOUTS),
    );
    let launch = ringmem::backend::Launch {
        module: loaded.expect("our ABI"),
        name: "add_one",
        arguments: &[address, 1],
        groups: 1,
        warps: 1,
        stays: false,
        operands: &operands,
        elements: None,
    };
    // SAFETY: it only panics.
    let ticket = unsafe { backend.launch(&launch, stream.id()) }.expect("queued");
    backend.wait(ticket, None).expect_err("asked to panic");
    assert!(buffers[0].to_vec().is_ok() && matches!(buffers[1].to_vec(), Err(Error::Tainted { .. })));
    drop(module);
}

#[test]
fn a_frame_of_tainted_elements_fails_and_the_next_arrives() {
    let backend = build(builder());
    let work = stream(&backend);
    let (mut writer, mut reader) =
        double_buffer::pair::<u8, _>(Pinned::new(&*backend, 0), 2, double_buffer::Policy::Every { wait: LIMIT }).expect("room");
    let mut source = tainted(&backend, &work);
    writer.start(&mut source, ..).expect("queued");
    let failed = reader.next(LIMIT).expect_err("there is nothing to read");
    assert!(names(Err::<(), _>(failed.error), &work));
    source.fill(5).expect("written as a whole");
    writer.start(&mut source, ..).expect("queued");
    let frame = reader.next(LIMIT).expect("valid").expect("in time");
    assert_eq!(frame.elements, [5; BYTES]);
}

#[test]
fn a_mirror_reports_a_failed_device_write_on_both_sides() {
    let backend = build(builder());
    let work = stream(&backend);
    let mut mirror = MirroredBuffer::<u8, _, _>::new(Pinned::new(&backend, 0), Device::new(&backend, 0), BYTES).expect("room");
    let fill = |mirror: &mut MirroredBuffer<u8, _, _>| {
        mirror.through(Access::Write, |device| (work.fill(device, .., 7).expect("queued").detach(), ())).expect("lent");
    };
    fill_fails(&backend);
    fill(&mut mirror);
    mirror.sync_to_host_on(&work).expect("queued");
    for _ in 0..3 {
        assert!(matches!(mirror.host().map(drop), Err(Error::Tainted { number: 1, .. })));
        assert_ne!(mirror.state(), State::Synchronized);
    }
    fill(&mut mirror);
    assert_eq!(mirror.host().expect("written as a whole"), [7; BYTES]);
}

#[test]
fn resize_reports_a_failed_upload() {
    let backend = build(builder());
    let (work, manager) = (stream(&backend), MemoryManager::new(Device::new(&backend, 0)));
    let id = manager.create::<u8>("bytes", BYTES, BufferConfig::default().with_async(true)).expect("room");
    let mut lease = manager.lease_mut(id).expect("nobody else");
    backend.set_faults(&Faults::new().on(Verb::Copy, Fault::nth(1).when_executed()));
    drop(lease.upload(&work, pinned(&backend, BYTES), 0).expect("queued"));
    let outcome = lease.resize_on(64 * BYTES, &work).and_then(|()| lease.to_vec());
    assert!(matches!(outcome, Err(Error::Injected { call: "copy", .. })), "the upload is reported first: {outcome:?}");
    let outcome = lease.to_vec();
    assert!(matches!(&outcome, Err(Error::Tainted { cause, .. }) if cause.contains("copy")), "{outcome:?}");
    lease.slice_mut(..BYTES).expect("within").copy_from(&[1; BYTES]).expect("written as a whole");
    assert_eq!(lease.slice(..BYTES).expect("within").to_vec().expect("valid again"), [1; BYTES]);
}

#[test]
fn as_slice_of_managed_memory_fails_after_a_failed_fill() {
    let backend = build(builder());
    let work = stream(&backend);
    let managed = Buffer::<u8, _>::new(Unified::new(&backend, 0), BYTES).expect("room");
    fill_fails(&backend);
    let managed = work.fill(managed, .., 7).expect("queued").wait().expect_err("planned").value;
    assert!(names(managed.as_slice().map(drop), &work));
}

#[test]
fn a_relocated_block_stays_tainted() {
    let backend = build(builder());
    let (work, pool) = (stream(&backend), Pool::builder(Device::new(&backend, 0)).slab(1 << 16).build().expect("a pool"));
    let manager = MemoryManager::new(pool.clone());
    let first = Buffer::<u8, _>::new(pool.clone(), 8192).expect("room");
    let second = Buffer::<u8, _>::new(pool.clone(), 8192).expect("room");
    fill_fails(&backend);
    let second = work.fill(second, .., 7).expect("queued").wait().expect_err("planned").value;
    let id = manager.register(second).expect("room");
    drop(first);
    let relocated = manager.defragment().expect("the contents move as they are");
    assert_eq!(relocated.moved, 1);
    assert!(names(manager.lease(id).expect("registered").view().to_vec(), &work));
}

#[test]
fn a_fill_by_copies_fails_as_a_whole() {
    for (verb, len, calls) in [(Verb::Copy, 3, 3), (Verb::Copy, 21, 6), (Verb::StreamWait, 21, 1)] {
        for nth in 1.. {
            let fault = Fault::nth(nth);
            let mut struck = 0;
            for (fault, when_executed) in [(fault, false), (fault.when_executed(), true)] {
                let backend = build(builder());
                let (work, other) = (stream(&backend), stream(&backend));
                let buffer = GpuBuffer::<[u8; 3]>::new(Device::new(&backend, 0), len).expect("room");
                let buffer = other.fill(buffer, .., [7; 3]).expect("queued").detach();
                backend.set_faults(&Faults::new().on(verb, fault));
                let outcome = work.fill(buffer, .., [1, 2, 3]).and_then(ringmem::stream::Pending::wait);
                backend.set_faults(&Faults::new());
                let mut buffer = match outcome {
                    Ok(buffer) => {
                        assert_eq!(buffer.to_vec().expect("valid"), vec![[1, 2, 3]; len]);
                        continue;
                    }
                    Err(rejected) => rejected.value,
                };
                struck += 1;
                if when_executed && verb == Verb::Copy {
                    let error = buffer.to_vec().expect_err("half of it");
                    assert!(matches!(error, Error::Tainted { .. } | Error::Injected { .. }), "{error}");
                }
                buffer.fill([4, 5, 6]).expect("no fault any more");
                assert_eq!(buffer.to_vec().expect("valid"), vec![[4, 5, 6]; len]);
            }
            if struck == 0 {
                assert_eq!(nth, calls + 1, "{verb:?} of {len}");
                break;
            }
        }
    }
}
