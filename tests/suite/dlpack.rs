use std::alloc::Layout;
use std::ffi::c_void;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;

use crate::rig::busy_stream::Held;
use crate::rig::leak_checked::Clean;
use ringmem::backend::host::{Fault, Faults, HostBackend, Verb};
use ringmem::backend::{Backend, Block, Uses};
use ringmem::dlpack::{DlDataType, DlDevice, DlManagedTensorVersioned, DlPackVersion, DlTensor, Element, Lent, Taken, TensorError};
use ringmem::memory::{Buffer, Device, GpuBuffer, Host, HostOnly, HostReadable, Memory, Pinned, Unified};
use ringmem::stream::Stream;
use ringmem::{DeviceBytes, Error, Result};

fn backend() -> Clean {
    Clean::build(HostBackend::builder().device_memory(1 << 20))
}

/// A tensor of another library, and the number of calls of its deleter.
struct Theirs {
    tensor: DlManagedTensorVersioned,
    shape: Vec<i64>,
    strides: Vec<i64>,
    data: Vec<u64>,
    deleted: Arc<AtomicUsize>,
}

unsafe extern "C" fn delete(tensor: *mut DlManagedTensorVersioned) {
    // SAFETY: of `Theirs::made`, and called once.
    let theirs = unsafe { Box::from_raw((*tensor).manager_ctx.cast::<Theirs>()) };
    theirs.deleted.fetch_add(1, Relaxed);
}

impl Theirs {
    /// Elements of 8 bytes, with room for 6.
    fn made<T: Element>(shape: &[i64], strides: Option<&[i64]>, deleted: &Arc<AtomicUsize>) -> NonNull<DlManagedTensorVersioned> {
        let (shape, own_strides) = (shape.to_vec(), strides.unwrap_or_default().to_vec());
        let dl_tensor = DlTensor {
            data: null_mut(),
            device: DlDevice::HOST,
            ndim: shape.len() as i32,
            dtype: T::DATA_TYPE,
            shape: null_mut(),
            strides: null_mut(),
            byte_offset: 0,
        };
        let version = DlPackVersion { major: 1, minor: 3 };
        let tensor = DlManagedTensorVersioned { version, manager_ctx: null_mut(), deleter: Some(delete), flags: 0, dl_tensor };
        let theirs =
            Box::leak(Box::new(Self { tensor, shape, strides: own_strides, data: (1..7).collect(), deleted: Arc::clone(deleted) }));
        theirs.tensor.dl_tensor.data = theirs.data.as_mut_ptr().cast();
        theirs.tensor.dl_tensor.shape = theirs.shape.as_mut_ptr();
        theirs.tensor.dl_tensor.strides = if strides.is_some() { theirs.strides.as_mut_ptr() } else { null_mut() };
        let whole: *mut Self = theirs;
        // SAFETY: live.
        unsafe { (*whole).tensor.manager_ctx = whole.cast() };
        // SAFETY: live.
        unsafe { NonNull::from(&mut (*whole).tensor) }
    }
}

fn taken<T: Element>(tensor: NonNull<DlManagedTensorVersioned>) -> Result<Taken<T>, TensorError> {
    // SAFETY: a tensor of these tests, in memory of the host, which nothing else uses; its deleter may be called in any thread.
    unsafe { Taken::from_raw(tensor) }
}

fn round_trip<M: Memory<Visibility: HostReadable>>(memory: M) {
    let buffer = Buffer::<i16, _>::from_slice(memory, &[1, 2, 3, 4, 5, 6]).expect("room");
    let place = buffer.as_ptr();
    let lent = Lent::new(buffer, &[3, 1, 2]).expect("6 elements");
    let DlTensor { data, device, ndim, dtype, byte_offset, .. } = *lent.tensor();
    assert_eq!((NonNull::new(data.cast()), device, ndim, byte_offset), (place, DlDevice::HOST, 3, 0));
    assert_eq!(dtype, DlDataType { code: DlDataType::INT, bits: 16, lanes: 1 });
    let tensor = lent.into_raw();
    // SAFETY: live.
    let got = unsafe { tensor.as_ref() };
    assert_eq!((got.version, got.flags), (DlPackVersion { major: 1, minor: 0 }, 0));
    // SAFETY: three strides.
    assert_eq!(unsafe { std::slice::from_raw_parts(got.dl_tensor.strides, 3) }, [2, 2, 1]);
    let mut taken = taken::<i16>(tensor).expect("a valid tensor");
    taken.as_mut_slice().expect("writable")[5] = 60;
    assert!(taken.shape().eq([3, 1, 2]) && taken.len() == 6 && !taken.is_empty() && !taken.is_read_only());
    assert_eq!(taken.as_slice().expect("on the host"), [1, 2, 3, 4, 5, 60]);
    assert_eq!(NonNull::new(taken.as_mut_slice().expect("writable").as_mut_ptr()), place, "not a copy");
}

#[test]
fn a_lent_buffer_is_taken_without_a_copy() {
    let backend = backend();
    round_trip(Host::new(&backend, 0));
    round_trip(Pinned::new(&backend, 0));
    round_trip(Unified::new(&backend, 0));
}

#[test]
fn a_lent_tensor_is_freed_once_in_any_thread() {
    let backend = backend();
    let live = || backend.counters().host_live.bytes;
    let lend = || Lent::new(Buffer::<u8, _>::new(Host::new(&backend, 0), 100).expect("room"), &[100]).expect("100 elements");
    let lent = lend();
    assert_eq!(live(), 100);
    drop(lent);
    assert_eq!(live(), 0, "not handed over");
    let taken = taken::<u8>(lend().into_raw()).expect("a valid tensor");
    assert_eq!(live(), 100, "handed over");
    thread::spawn(move || drop(taken)).join().expect("no panic");
    assert_eq!(live(), 0);
    let lent = lend();
    thread::spawn(move || drop(lent)).join().expect("no panic");
    assert_eq!(live(), 0);
    // SAFETY: the deleter of this library ignores null.
    unsafe { lend().into_raw().as_ref().deleter.expect("it has one")(null_mut()) };
    backend.forgets();
}

#[test]
fn a_shape_has_the_elements_of_the_buffer() {
    let backend = backend();
    let buffer = |len| Buffer::<f64, _>::new(Host::new(&backend, 0), len).expect("room");
    for (len, shape, strides) in
        [(1, &[][..], &[][..]), (1, &[1, 1, 1], &[1, 1, 1]), (24, &[2, 3, 4], &[12, 4, 1]), (0, &[0], &[1]), (0, &[3, 0, 2], &[2, 2, 1])]
    {
        let tensor = Lent::new(buffer(len), shape).expect("as many elements");
        let DlTensor { ndim, strides: got, data, .. } = *tensor.tensor();
        // SAFETY: as many strides.
        assert_eq!((unsafe { std::slice::from_raw_parts(got, ndim as usize) }, data.is_null()), (strides, len == 0), "{shape:?}");
        let taken = taken::<f64>(tensor.into_raw()).expect("a valid tensor");
        assert!(taken.shape().eq(shape.iter().copied()) && taken.as_slice().expect("on the host").len() == len);
    }
    let most = [1; 64];
    drop(Lent::new(buffer(1), &most).expect("64 dimensions"));
    let past = i64::MAX as u64 + 1;
    for (shape, expected) in [
        (&[2, 3][..], TensorError::Len { elements: 6, len: 5 }),
        (&[], TensorError::Len { elements: 1, len: 5 }),
        (&[1; 65], TensorError::Dimensions { dimensions: 65, most: 64 }),
        (&[5, past], TensorError::TooLarge { dimension: 1, size: past }),
        (&[0, 1 << 31, 1 << 32], TensorError::TooLarge { dimension: 1, size: 1 << 31 }),
    ] {
        let rejected = Lent::new(buffer(5), shape).expect_err("another number of elements");
        assert!(matches!(rejected.error, Error::Tensor(error) if error == expected), "{shape:?}: {:?}", rejected.error);
        assert_eq!(rejected.value.to_vec().expect("the buffer is returned"), [0.0; 5]);
    }
    let error = Error::from(Lent::new(buffer(2), &[]).expect_err("1 element"));
    assert!(matches!(error, Error::Tensor(TensorError::Len { elements: 1, len: 2 })));
}

#[test]
fn memory_of_a_simulated_device_and_streams_of_the_host_are_unsupported() {
    let backend = backend();
    let stream = Stream::new(&backend, 0).expect("a stream");
    for len in [0, 4] {
        let buffer = GpuBuffer::<u8>::new(Device::new(&backend, 0), len).expect("room");
        let rejected = Lent::new(buffer, &[len as u64]).expect_err("no pointer");
        assert!(matches!(rejected.error, Error::Unsupported { .. }) && rejected.value.len() == len, "{:?}", rejected.error);
    }
    let buffer = Buffer::<u8, _>::new(Pinned::new(&backend, 0), 4).expect("room");
    let rejected = Lent::new_on(buffer, &[4], stream.id()).expect_err("no consumer waits for a stream");
    assert!(matches!(rejected.error, Error::Unsupported { .. }), "{:?}", rejected.error);
}

#[test]
fn lending_without_a_stream_waits_for_the_uses() {
    let backend = backend();
    let stream = Stream::new(&backend, 0).expect("a stream");
    let held = Held::new(&backend, &stream);
    let buffer = Buffer::<u32, _>::new(Pinned::new(&backend, 0), 100).expect("room");
    let buffer = stream.fill(buffer, .., 7).expect("queued").detach();
    let lending = thread::spawn(move || Lent::new(buffer, &[10, 10]).expect("100 elements"));
    thread::sleep(std::time::Duration::from_millis(20));
    assert!(!lending.is_finished(), "the fill is not executed");
    held.let_go();
    let taken = taken::<u32>(lending.join().expect("no panic").into_raw()).expect("a valid tensor");
    assert_eq!(taken.as_slice().expect("on the host"), [7; 100]);
}

#[test]
fn invalid_contents_are_not_lent() {
    let backend = backend();
    let stream = Stream::new(&backend, 0).expect("a stream");
    backend.set_faults(&Faults::new().on(Verb::Fill, Fault::nth(1).when_executed()));
    let buffer = Buffer::<u8, _>::new(Pinned::new(&backend, 0), 8).expect("room");
    let buffer = stream.fill(buffer, .., 7).expect("queued").detach();
    let rejected = Lent::new(buffer, &[8]).expect_err("the fill fails");
    let rejected = Lent::new(rejected.value, &[8]).expect_err("the bytes are invalid");
    assert!(matches!(rejected.error, Error::Tainted { .. }), "{:?}", rejected.error);
}

struct Panics(Host);

// SAFETY: the blocks of the memory below.
unsafe impl Memory for Panics {
    type Visibility = HostOnly;

    fn alloc(&self, layout: Layout, on: Option<&Stream>) -> Result<Block> {
        self.0.alloc(layout, on)
    }
    unsafe fn free(&self, block: &Block, uses: &Uses) -> Result<()> {
        // SAFETY: the caller promises that the block is of this memory and freed once, with its uses; blocks are the host memory's, unchanged.
        unsafe { self.0.free(block, uses) }?;
        panic!("a memory that a test asked for");
    }
    fn backend(&self) -> &Arc<dyn Backend> {
        self.0.backend()
    }
    fn device(&self) -> u32 {
        self.0.device()
    }
}

#[test]
fn a_panic_of_the_memory_does_not_leave_the_deleter() {
    let backend = backend();
    let buffer = Buffer::<u8, _>::new(Panics(Host::new(&backend, 0)), 8).expect("room");
    drop(taken::<u8>(Lent::new(buffer, &[8]).expect("8 elements").into_raw()).expect("a valid tensor"));
    assert_eq!(backend.counters().host_live.bytes, 0);
}

#[test]
fn a_taken_tensor_calls_its_deleter_once() {
    let deleted = Arc::new(AtomicUsize::new(0));
    for strides in [None, Some(&[3, 1][..])] {
        let mut tensor = Theirs::made::<u64>(&[2, 3], strides, &deleted);
        // SAFETY: live.
        unsafe { tensor.as_mut() }.dl_tensor.byte_offset = 0;
        let taken = taken::<u64>(tensor).expect("a valid tensor");
        assert_eq!(taken.as_slice().expect("on the host"), [1, 2, 3, 4, 5, 6]);
        assert_eq!(deleted.swap(0, Relaxed), 0);
        thread::spawn(move || drop(taken)).join().expect("no panic");
        assert_eq!(deleted.swap(0, Relaxed), 1);
    }
    // Sizes below 2, and tensors without elements, may have any strides.
    for (shape, strides, bytes) in [(&[1, 4][..], &[-7, 1][..], 32), (&[3, 0], &[9, 9], 0), (&[], &[], 8)] {
        let taken = taken::<f64>(Theirs::made::<f64>(shape, Some(strides), &deleted)).expect("a valid tensor");
        assert_eq!(size_of_val(taken.as_slice().expect("on the host")), bytes);
    }
    assert_eq!(deleted.load(Relaxed), 3);
    let mut elements = [5_i64, 6];
    let mut shape = [2_i64];
    let mut tensor = DlManagedTensorVersioned {
        version: DlPackVersion { major: 1, minor: 0 },
        manager_ctx: null_mut(),
        deleter: None,
        flags: 0,
        dl_tensor: DlTensor {
            data: elements.as_mut_ptr().cast(),
            device: DlDevice { device_type: DlDevice::CUDA_HOST, device_id: 0 },
            ndim: 1,
            dtype: i64::DATA_TYPE,
            shape: shape.as_mut_ptr(),
            strides: null_mut(),
            byte_offset: 0,
        },
    };
    let mut taken = taken::<i64>(NonNull::from(&mut tensor)).expect("a valid tensor");
    taken.as_mut_slice().expect("writable")[0] = 50;
    drop(taken);
    assert_eq!(elements, [50, 6], "without a deleter");
}

#[test]
fn elements_begin_at_the_byte_offset_and_may_be_read_only() {
    let deleted = Arc::new(AtomicUsize::new(0));
    let mut tensor = Theirs::made::<u64>(&[4], None, &deleted);
    // SAFETY: live.
    let fields = unsafe { tensor.as_mut() };
    fields.dl_tensor.byte_offset = 16;
    fields.flags = DlManagedTensorVersioned::READ_ONLY | DlManagedTensorVersioned::IS_COPIED;
    let mut taken = taken::<u64>(tensor).expect("a valid tensor");
    assert!(taken.is_read_only());
    assert_eq!(taken.as_slice().expect("on the host"), [3, 4, 5, 6]);
    let error = taken.as_mut_slice().expect_err("not for writes");
    assert!(matches!(error, TensorError::ReadOnly), "{error}");
    let mut tensor = Theirs::made::<u64>(&[4], None, &deleted);
    // SAFETY: live. The host does not access the elements.
    unsafe { tensor.as_mut() }.dl_tensor.device = DlDevice { device_type: DlDevice::CUDA, device_id: 3 };
    let mut taken = self::taken::<u64>(tensor).expect("a valid tensor");
    let expected = DlDevice { device_type: 2, device_id: 3 };
    assert!(matches!(taken.as_slice(), Err(TensorError::Device { call: "as_slice", got }) if got == expected));
    assert!(matches!(taken.as_mut_slice(), Err(TensorError::Device { call: "as_mut_slice", .. })));
    assert_eq!(taken.device(), expected);
}

#[test]
fn an_invalid_tensor_stays_the_callers() {
    type Change = fn(&mut DlManagedTensorVersioned);
    type Case = (&'static [i64], Option<&'static [i64]>, Change, fn(&TensorError) -> bool);
    let deleted = Arc::new(AtomicUsize::new(0));
    let odd = |tensor: &mut DlManagedTensorVersioned| tensor.dl_tensor.data = tensor.dl_tensor.data.wrapping_byte_add(4);
    let cases: [Case; 19] = [
        (&[6], None, |t| t.version.major = 2, |e| matches!(e, TensorError::Version { got: DlPackVersion { major: 2, minor: 3 } })),
        (&[6], None, |t| t.version.major = 0, |e| matches!(e, TensorError::Version { .. })),
        (&[6], None, |t| t.dl_tensor.dtype.code = DlDataType::INT, |e| matches!(e, TensorError::Elements { .. })),
        (&[6], None, |t| t.dl_tensor.dtype.bits = 32, |e| matches!(e, TensorError::Elements { .. })),
        (&[6], None, |t| t.dl_tensor.dtype.lanes = 2, |e| matches!(e, TensorError::Elements { got, .. } if got.lanes == 2)),
        (&[6], None, |t| t.dl_tensor.device.device_type = 10, |e| matches!(e, TensorError::Device { call: "from_raw", .. })),
        (&[6], None, |t| t.dl_tensor.ndim = -1, |e| matches!(e, TensorError::Dimensions { dimensions: -1, most: 64 })),
        (&[6], None, |t| t.dl_tensor.ndim = i32::MAX, |e| matches!(e, TensorError::Dimensions { .. })),
        (&[6], None, |t| t.dl_tensor.ndim = 65, |e| matches!(e, TensorError::Dimensions { dimensions: 65, .. })),
        (&[6], None, |t| t.dl_tensor.shape = null_mut(), |e| matches!(e, TensorError::Null { name: "shape" })),
        (&[6], None, |t| t.dl_tensor.data = null_mut::<c_void>(), |e| matches!(e, TensorError::Null { name: "data" })),
        (&[2, -3], None, |_| (), |e| matches!(e, TensorError::Extent { dimension: 1, size: -3 })),
        (&[0, i64::MIN], None, |_| (), |e| matches!(e, TensorError::Extent { dimension: 1, size: i64::MIN })),
        (&[4, 1 << 62], None, |_| (), |e| matches!(e, TensorError::TooLarge { dimension: 0, size: 4 })),
        (&[1 << 60, 1], None, |_| (), |e| matches!(e, TensorError::TooLarge { dimension: 0, size: 0x1000_0000_0000_0000 })),
        (&[2, 3], Some(&[1, 2]), |_| (), |e| matches!(e, TensorError::Strides { dimension: 0, expected: 3, got: 1 })),
        (&[2, 3], Some(&[3, -1]), |_| (), |e| matches!(e, TensorError::Strides { dimension: 1, expected: 1, got: -1 })),
        (&[5], None, odd, |e| matches!(e, TensorError::Address { bytes: 40, align: 8, .. })),
        (&[5], None, |t| t.dl_tensor.byte_offset = u64::MAX - 7, |e| matches!(e, TensorError::Address { .. })),
    ];
    for (shape, strides, change, is_expected) in cases {
        let mut tensor = Theirs::made::<u64>(shape, strides, &deleted);
        // SAFETY: live.
        change(unsafe { tensor.as_mut() });
        let error = taken::<u64>(tensor).expect_err("invalid");
        assert!(is_expected(&error), "{shape:?}: {error}");
        assert_eq!(deleted.swap(0, Relaxed), 0, "not consumed");
        // SAFETY: live, and not used again.
        unsafe { DlManagedTensorVersioned::delete(tensor) };
        assert_eq!(deleted.swap(0, Relaxed), 1);
    }
    // The end is past the address space.
    let mut tensor = Theirs::made::<u64>(&[5], None, &deleted);
    // SAFETY: live.
    let fields = unsafe { tensor.as_mut() };
    fields.dl_tensor.byte_offset = ((usize::MAX - fields.dl_tensor.data.addr()) as u64 - 31) & !7;
    let error = taken::<u64>(tensor).expect_err("invalid");
    assert!(matches!(error, TensorError::Address { .. }), "{error}");
    // SAFETY: live, and not used again.
    unsafe { DlManagedTensorVersioned::delete(tensor) };
}

#[test]
fn an_error_displays_its_facts() {
    let device = DlDevice { device_type: 10, device_id: 1 };
    for (error, text) in [
        (TensorError::Version { got: DlPackVersion { major: 2, minor: 1 } }, "DLPack 2.1 is not supported"),
        (TensorError::Elements { expected: f32::DATA_TYPE, got: i8::DATA_TYPE }, "elements int8, requested float32"),
        (TensorError::Device { call: "as_slice", got: device }, "as_slice cannot use memory of DLPack device type 10, number 1"),
        (TensorError::Strides { dimension: 1, expected: 1, got: 4 }, "dimension 1 has stride 4, a compact row-major tensor has 1"),
        (TensorError::Len { elements: 6, len: 5 }, "the shape has 6 elements, the buffer 5"),
    ] {
        assert!(Error::from(error).to_string().contains(text), "{error}");
    }
    let vector = DlDataType { lanes: 4, ..u16::DATA_TYPE };
    let other = DlDataType { code: 9, bits: 8, lanes: 1 };
    assert_eq!((vector.to_string(), other.to_string()), ("uint16 with 4 lanes".to_owned(), "type 9 with 8 bits and 1 lanes".to_owned()));
    assert_eq!((u64::zeroed(), i64::DATA_TYPE.code, u8::DATA_TYPE.bits, f64::DATA_TYPE.code), (0, 0, 8, 2));
}
