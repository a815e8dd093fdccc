//! Tensors that consumers and producers use on streams. Copies on the double stand for their kernels.

use std::ffi::c_void;
use std::ptr::{NonNull, null_mut, without_provenance_mut};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::{sleep, spawn};
use std::time::Duration;

use ringmem::Error;
use ringmem::backend::cuda::CudaBackend;
use ringmem::backend::cuda::cudarc::driver::result::memcpy_dtod_async;
use ringmem::backend::cuda::cudarc::driver::{CudaContext, CudaSlice, CudaStream, DevicePtr};
use ringmem::backend::{Backend, StreamId};
use ringmem::dlpack::{DlDevice, DlManagedTensorVersioned, DlPackVersion, DlTensor, Element, Lent, Taken, TensorError};
use ringmem::memory::{Buffer, Device, GpuBuffer, Host, Pinned, Unified};
use ringmem::pool::Pool;
use ringmem::stream::Stream;

use crate::rig::{self, Alone, Double, LIMIT, Step, alone, soon};

const BYTES: usize = 4096;

/// A tensor of cudarc's memory, and the number of calls of its deleter.
struct Theirs {
    tensor: DlManagedTensorVersioned,
    size: i64,
    slice: CudaSlice<u8>,
    deleted: Arc<AtomicUsize>,
}

unsafe extern "C" fn delete(tensor: *mut DlManagedTensorVersioned) {
    // SAFETY: of `Theirs::made`, and called once.
    let theirs = unsafe { Box::from_raw((*tensor).manager_ctx.cast::<Theirs>()) };
    theirs.deleted.fetch_add(1, Relaxed);
}

impl Theirs {
    fn made(stream: &Arc<CudaStream>, device: i32, deleted: &Arc<AtomicUsize>) -> NonNull<DlManagedTensorVersioned> {
        let slice = stream.clone_htod(&[3_u8; BYTES]).expect("memory");
        let dl_tensor = DlTensor {
            data: without_provenance_mut(slice.device_ptr(stream).0 as usize),
            device: DlDevice { device_type: DlDevice::CUDA, device_id: device },
            ndim: 1,
            dtype: u8::DATA_TYPE,
            shape: null_mut(),
            strides: null_mut(),
            byte_offset: 0,
        };
        let version = DlPackVersion { major: 1, minor: 1 };
        let tensor = DlManagedTensorVersioned { version, manager_ctx: null_mut(), deleter: Some(delete), flags: 0, dl_tensor };
        let theirs = Box::into_raw(Box::new(Self { tensor, size: BYTES as i64, slice, deleted: Arc::clone(deleted) }));
        // SAFETY: live.
        let fields = unsafe { &mut *theirs };
        (fields.tensor.dl_tensor.shape, fields.tensor.manager_ctx) = (&raw mut fields.size, theirs.cast::<c_void>());
        assert_eq!(fields.slice.len(), BYTES);
        NonNull::from(&mut fields.tensor)
    }
}

fn taken(tensor: NonNull<DlManagedTensorVersioned>) -> Taken<u8> {
    // SAFETY: a valid tensor, whose memory nothing else uses, except work on the stream that the test passes on.
    unsafe { Taken::from_raw(tensor) }.expect("a valid tensor")
}

/// Queues the other library's work on two of its places.
fn queue_copy(stream: &Arc<CudaStream>, to: u64, from: u64) {
    stream.context().bind_to_thread().expect("its context");
    // SAFETY: live memory, which outlives the copy.
    unsafe { memcpy_dtod_async(to, from, BYTES, stream.cu_stream()) }.expect("queued");
}

/// A stream of another library, and its number here.
fn other(backend: &CudaBackend) -> (Arc<CudaStream>, StreamId) {
    let stream = CudaContext::new(0).expect("cudarc's").new_stream().expect("a stream");
    let id = backend.adopt_stream(&stream).expect("of the primary context");
    (stream, id)
}

alone! {
    fn the_device_of_a_tensor_is_that_of_its_memory() with("RINGMEM_DOUBLE_DEVICES" = "2") {
        let backend = rig::open();
        let device = |lent: Lent| (lent.tensor().device.device_type, lent.tensor().device.device_id);
        for len in [0, 100] {
            let buffer = GpuBuffer::<u8>::new(Device::new(&backend, 1), len).expect("room");
            let address = buffer.device_address().map_or(0, |address| address.get());
            let lent = Lent::new(buffer, &[len as u64]).expect("as many elements");
            assert_eq!(lent.tensor().data.addr() as u64, address);
            assert_eq!(device(lent), (DlDevice::CUDA, 1));
        }
        let lent = Lent::new(Buffer::<u8, _>::new(Pinned::new(&backend, 1), 100).expect("room"), &[100]);
        assert_eq!(device(lent.expect("100 elements")), (DlDevice::CUDA_HOST, 0));
        let lent = Lent::new(Buffer::<u8, _>::new(Unified::new(&backend, 1), 100).expect("room"), &[100]);
        assert_eq!(device(lent.expect("100 elements")), (DlDevice::CUDA_MANAGED, 0));
        let lent = Lent::new(Buffer::<u8, _>::new(Host::new(&backend, 1), 100).expect("room"), &[100]);
        assert_eq!(device(lent.expect("100 elements")), (DlDevice::CPU, 0));
    }

    fn the_stream_of_a_consumer_waits_for_the_uses() {
        let (backend, double) = (rig::open(), Double::new());
        let (theirs, id) = other(&backend);
        let ours = Stream::new(&backend, 0).expect("a stream");
        let [from, to] = [7, 0].map(|value| {
            let mut buffer = GpuBuffer::<u8>::new(Device::new(&backend, 0), BYTES).expect("room");
            buffer.fill(value).expect("filled");
            buffer
        });
        double.hold(Step::Copy, 1);
        let (from, to) = ours.copy(from, to).expect("queued").detach();
        let lent = Lent::new_on(to, &[BYTES as u64], id).expect("as many elements");
        let position = backend.record_position(id).expect("it is open");
        assert_eq!(double.executed(Step::Copy), 0, "no call has waited");
        assert!(!backend.wait(position, Some(Duration::from_millis(50))).expect("no failure"), "the copy is not executed");
        double.hold(Step::Copy, 0);
        assert!(backend.wait(position, Some(LIMIT)).expect("no failure"));
        theirs.synchronize().expect("no failure");
        drop((from, lent));
        ours.synchronize().expect("no failure");
        backend.close_stream(id);
    }

    fn the_deleter_frees_memory_after_the_work_of_the_consumer() {
        let (backend, double) = (rig::open(), Double::new());
        let (theirs, id) = other(&backend);
        let pool = Pool::builder(Device::new(&backend, 0)).build().expect("a pool");
        let into = theirs.alloc_zeros::<u8>(BYTES).expect("memory");
        let mut buffer = Buffer::<u8, _>::new(pool.clone(), BYTES).expect("room");
        buffer.fill(5).expect("filled");
        theirs.synchronize().expect("no failure");
        let address = buffer.device_address();
        let tensor = Lent::new_on(buffer, &[BYTES as u64], id).expect("as many elements").into_raw();
        double.hold(Step::Copy, 1);
        // SAFETY: live.
        queue_copy(&theirs, into.device_ptr(&theirs).0, unsafe { tensor.as_ref() }.dl_tensor.data.addr() as u64);
        let deleting = tensor.as_ptr().expose_provenance();
        spawn(move || {
            let tensor = NonNull::new(std::ptr::with_exposed_provenance_mut(deleting)).expect("not null");
            // SAFETY: live, and not used again.
            unsafe { DlManagedTensorVersioned::delete(tensor) };
        }).join().expect("no panic");
        let another = Buffer::<u8, _>::new(pool.clone(), BYTES).expect("room");
        assert_ne!(another.device_address(), address, "the copy reads it");
        assert_eq!(double.executed(Step::Copy), 0, "the deleter has not waited");
        double.hold(Step::Copy, 0);
        theirs.synchronize().expect("no failure");
        drop(another);
        let is_free = || {
            pool.trim_to(0);
            backend.counters().device_live.bytes == 0
        };
        assert!(soon(is_free), "the copy is complete");
        backend.close_stream(id);
    }

    fn lending_device_memory_without_a_stream_waits_for_the_uses() {
        let (backend, double) = (rig::open(), Double::new());
        let ours = Stream::new(&backend, 0).expect("a stream");
        let [from, to] = [(); 2].map(|()| GpuBuffer::<u8>::new(Device::new(&backend, 0), BYTES).expect("room"));
        double.hold(Step::Copy, 1);
        let (from, to) = ours.copy(from, to).expect("queued").detach();
        let lending = spawn(move || Lent::new(to, &[BYTES as u64]).expect("as many elements"));
        sleep(Duration::from_millis(20));
        assert!(!lending.is_finished(), "the copy is not executed");
        double.hold(Step::Copy, 0);
        drop((lending.join().expect("no panic"), from));
    }

    fn a_tensor_of_another_library_becomes_a_buffer() {
        let (backend, double) = (rig::open(), Double::new());
        let deleted = Arc::new(AtomicUsize::new(0));
        let (theirs, id) = other(&backend);
        let tensor = Theirs::made(&theirs, 0, &deleted);
        theirs.synchronize().expect("no failure");
        let ours = Stream::new(&backend, 0).expect("a stream");
        let source = theirs.clone_htod(&[9_u8; BYTES]).expect("memory");
        theirs.synchronize().expect("no failure");
        double.hold(Step::Copy, 1);
        // SAFETY: live. The producer writes its memory, on the stream that is passed on.
        queue_copy(&theirs, unsafe { tensor.as_ref() }.dl_tensor.data.addr() as u64, source.device_ptr(&theirs).0);
        sleep(Duration::from_millis(20));
        let buffer = taken(tensor).into_buffer(&backend, Some(id)).expect("memory of device 0");
        let to = GpuBuffer::<u8>::new(Device::new(&backend, 0), BYTES).expect("room");
        let (buffer, to) = ours.copy(buffer, to).expect("queued").detach();
        sleep(Duration::from_millis(20));
        assert_eq!(double.executed(Step::Copy), 0, "after the copy of the producer, and no call has waited");
        drop(buffer);
        assert_eq!(deleted.load(Relaxed), 0, "the copy reads it");
        double.hold(Step::Copy, 0);
        assert_eq!(to.to_vec().expect("copied"), [9; BYTES], "after the work of the producer");
        ours.synchronize().expect("no failure");
        assert!(soon(|| {
            backend.free_deferred();
            deleted.load(Relaxed) == 1
        }));
        backend.close_stream(id);
    }

    fn a_rejected_tensor_is_returned() {
        let backend = rig::open();
        let deleted = Arc::new(AtomicUsize::new(0));
        let (theirs, id) = other(&backend);
        let mut tensor = Theirs::made(&theirs, 7, &deleted);
        let rejected = taken(tensor).into_buffer(&backend, None).expect_err("no such device");
        assert!(matches!(rejected.error, Error::NoDevice { asked: 7, .. }), "{:?}", rejected.error);
        drop(rejected);
        assert_eq!(deleted.swap(0, Relaxed), 1);
        for device in [DlDevice { device_type: DlDevice::CUDA, device_id: -1 }, DlDevice { device_type: DlDevice::CUDA_MANAGED, device_id: 0 }] {
            tensor = Theirs::made(&theirs, 0, &deleted);
            // SAFETY: live.
            unsafe { tensor.as_mut() }.dl_tensor.device = device;
            let rejected = taken(tensor).into_buffer(&backend, None).expect_err("not device memory");
            assert!(matches!(rejected.error, Error::Tensor(TensorError::Device { call: "into_buffer", .. })), "{:?}", rejected.error);
        }
        tensor = Theirs::made(&theirs, 0, &deleted);
        // SAFETY: live.
        unsafe { tensor.as_mut() }.flags = DlManagedTensorVersioned::READ_ONLY;
        let rejected = taken(tensor).into_buffer(&backend, None).expect_err("buffers are written");
        assert!(matches!(rejected.error, Error::Tensor(TensorError::ReadOnly)), "{:?}", rejected.error);
        drop(rejected);
        assert_eq!(deleted.swap(0, Relaxed), 3);
        // Memory of this backend already has an owner here.
        let ours = GpuBuffer::<u8>::new(Device::new(&backend, 0), BYTES).expect("room");
        let tensor = Lent::new(ours, &[BYTES as u64]).expect("as many elements").into_raw();
        let rejected = taken(tensor).into_buffer(&backend, None).expect_err("listed");
        assert!(matches!(rejected.error, Error::Unsupported { .. }), "{:?}", rejected.error);
        assert_eq!(backend.counters().device_live.bytes, BYTES as u64, "the tensor is returned");
        drop(rejected);
        assert_eq!(backend.counters().device_live.bytes, 0);
        let mut empty = Theirs::made(&theirs, 0, &deleted);
        // SAFETY: live, with one size.
        unsafe { *empty.as_mut().dl_tensor.shape = 0 };
        assert!(taken(empty).into_buffer(&backend, None).expect("no elements").is_empty());
        assert_eq!(deleted.load(Relaxed), 1);
        theirs.synchronize().expect("no failure");
        backend.close_stream(id);
    }
}

/// By hand, since the memory leaks.
#[test]
fn a_deleter_that_finds_the_stream_closed_keeps_the_memory() {
    let alone = Alone::new(concat!(module_path!(), "::a_deleter_that_finds_the_stream_closed_keeps_the_memory"));
    if !alone.is_here() {
        let said = alone.run();
        assert!(!said.contains("violation"), "{said}");
        return;
    }
    let backend = rig::open();
    let (_theirs, id) = other(&backend);
    let buffer = || GpuBuffer::<u8>::new(Device::new(&backend, 0), BYTES).expect("room");
    let lent = Lent::new_on(buffer(), &[BYTES as u64], id).expect("as many elements");
    backend.close_stream(id);
    drop(lent);
    assert_eq!(backend.counters().device_live.bytes, BYTES as u64, "work of the consumer may use it");
    let rejected = Lent::new_on(buffer(), &[BYTES as u64], id).expect_err("closed");
    assert!(matches!(rejected.error, Error::Closed { .. }), "{:?}", rejected.error);
    drop(rejected);
    assert_eq!(backend.counters().device_live.bytes, BYTES as u64);
}
