//! Devices and their streams.
//!
//! The process has one CUDA backend, opened by the first call that needs it and kept until the process ends: to open a device takes milliseconds and some of
//! its memory, and to close it could wait for a kernel.

use core::ffi::c_void;
use core::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

use ringmem::__process::Process;
use ringmem::backend::cuda::CudaBackend;
use ringmem::backend::host::HostBackend;
use ringmem::backend::{Address, Backend, Copy, DeviceAddress, Fill, StreamId};

use crate::arguments::{Output, borrowed, close, handle};
use crate::status::{Failure, Status, call, run};
use crate::streams::{AnyBackend, Raw, Streams};

/// Devices: those of the CUDA driver, or simulated ones.
pub struct Devices {
    pub(crate) streams: Arc<Streams>,
}

/// Opened in which process, and the devices.
static CUDA: Mutex<Option<(Process, Arc<Streams>)>> = Mutex::new(None);

/// Returns the process's CUDA devices. A failure is not kept.
pub(crate) fn cuda() -> Result<Arc<Streams>, Failure> {
    let mut cuda = CUDA.lock().unwrap_or_else(PoisonError::into_inner);
    match &*cuda {
        Some((process, streams)) if process.is_this() => Ok(Arc::clone(streams)),
        Some(_) => Err(forked()),
        None => {
            let streams = Arc::new(Streams::new(AnyBackend::Cuda(CudaBackend::open()?)));
            *cuda = Some((Process::this(), Arc::clone(&streams)));
            Ok(streams)
        }
    }
}

pub(crate) fn forked() -> Failure {
    Failure::new(Status::Unsupported, "CUDA cannot be used in a process that was forked after its first use")
}

/// Opens the devices of the CUDA driver, which the process loads here if it has not yet. Their primary contexts are used, as by CUDA's runtime. The first use
/// of a device creates 32 streams and 28 MiB of page-locked memory, which stay until the process ends.
///
/// Any thread. Close them with `ringmem_devices_close`.
///
/// # Safety
///
/// `devices` is null, or valid for the write of a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringmem_cuda_open(devices: *mut *mut Devices) -> Status {
    call(|| {
        // SAFETY: `devices` is null or valid for the write of a pointer, as the caller promises.
        let place = unsafe { Output::new(devices, "devices") }?;
        place.set(handle(Devices { streams: cuda()? }));
        Ok(())
    })
}

/// Opens 1 to 64 simulated devices of `bytes` bytes each, for tests without a GPU. Their addresses are no pointers: `ringmem_copy` reads and writes them.
///
/// Any thread. Close them with `ringmem_devices_close`.
///
/// Errors: INVALID for another number of devices, for 0 bytes, and for more than can have addresses; the text states the limits.
///
/// # Safety
///
/// `devices` is null, or valid for the write of a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringmem_simulated_open(count: u32, bytes: u64, devices: *mut *mut Devices) -> Status {
    call(|| {
        // SAFETY: `devices` is null or valid for the write of a pointer, as the caller promises.
        let place = unsafe { Output::new(devices, "devices") }?;
        if count == 0 {
            return Err(Failure::new(Status::Invalid, "0 devices: expected 1 to 64"));
        }
        let backend = HostBackend::builder().devices(count).device_memory(bytes).build()?;
        place.set(handle(Devices { streams: Arc::new(Streams::new(AnyBackend::Simulated(backend))) }));
        Ok(())
    })
}

/// Closes devices; destroy their streams before. Their pools stay valid, and the streams that pools use. Null is ignored.
///
/// # Safety
///
/// `devices` is null, or open and not used by another call, now or later.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringmem_devices_close(devices: *mut Devices) {
    // SAFETY: null, or of `handle`, and closed once: the caller's promise.
    unsafe { close(devices) };
}

/// Returns the number of devices; 0 for null.
///
/// # Safety
///
/// `devices` is null or open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringmem_devices_count(devices: *const Devices) -> u32 {
    let mut count = 0;
    run(|| {
        // SAFETY: `devices` is null or open, as the caller promises.
        if let Ok(devices) = unsafe { borrowed(devices, "devices") } {
            count = devices.streams.backend().devices();
        }
    });
    count
}

/// Creates a stream of a device. On a CUDA device, `stream` is a `CUstream`, which is a `cudaStream_t`.
///
/// Any thread. Destroy it with `ringmem_stream_destroy`.
///
/// # Safety
///
/// `devices` is null or open; `stream` is null, or valid for the write of a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringmem_stream_create(devices: *const Devices, device: u32, stream: *mut *mut c_void) -> Status {
    call(|| {
        // SAFETY: `devices` is null or open, and `stream` null or valid for the write of a pointer, as the caller promises.
        let (devices, place) = unsafe { (borrowed(devices, "devices")?, Output::new(stream, "stream")?) };
        place.set(core::ptr::without_provenance_mut(devices.streams.create(device)?));
        Ok(())
    })
}

/// Waits for the work of a stream of `ringmem_stream_create`, and destroys it. The stream does not exist afterwards, even if its work has failed, which is
/// the status then.
///
/// Any thread.
///
/// # Safety
///
/// `devices` is null or open. No other call uses the stream, now or later.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringmem_stream_destroy(devices: *const Devices, device: u32, stream: *mut c_void) -> Status {
    call(|| {
        // SAFETY: `devices` is null or open, as the caller promises.
        unsafe { borrowed(devices, "devices") }?.streams.forget(device, stream.addr(), true)
    })
}

/// Waits for the work of a stream of yours that calls of this library were given, also calls that failed. Call it before you destroy the stream: its handle
/// may be given to another stream afterwards. A stream that was not used is no error. Blocks that were allocated or recorded on it may be freed meanwhile.
/// After a failure that leaves its work incomplete, nothing is forgotten: do not destroy the stream.
///
/// Any thread.
///
/// # Safety
///
/// `devices` is null or open. The stream is not yet destroyed. Until it is, no other call uses it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringmem_stream_forget(devices: *const Devices, device: u32, stream: *mut c_void) -> Status {
    call(|| {
        // SAFETY: `devices` is null or open, as the caller promises.
        unsafe { borrowed(devices, "devices") }?.streams.forget(device, stream.addr(), false)
    })
}

/// Waits until the work of a stream is complete.
///
/// Any thread.
///
/// # Safety
///
/// `devices` is null or open. `stream` is 0, of `ringmem_stream_create`, or a stream of the device's primary context, which lives until
/// `ringmem_stream_forget`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringmem_stream_synchronize(devices: *const Devices, device: u32, stream: *mut c_void) -> Status {
    call(|| {
        // SAFETY: `devices` is null or open, and `stream` 0, created here or of the primary context until it is forgotten, as the caller promises.
        let (backend, stream) = unsafe { stream_of(devices, device, stream) }?;
        Ok(backend.synchronize(stream)?)
    })
}

/// Lets a device access the memory of another, also of pools. Once for each direction.
///
/// Any thread.
///
/// # Safety
///
/// `devices` is null or open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringmem_devices_enable_peer(devices: *const Devices, device: u32, peer: u32) -> Status {
    call(|| {
        // SAFETY: `devices` is null or open, as the caller promises.
        unsafe { borrowed(devices, "devices") }?.streams.enable_peer(device, peer)
    })
}

/// Orders later work of a stream after the work that is queued on another stream now, by an event.
///
/// Any thread.
///
/// # Safety
///
/// `devices` is null or open. As `ringmem_stream_synchronize` for both streams.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringmem_stream_wait(devices: *const Devices, device: u32, stream: *mut c_void, other: *mut c_void) -> Status {
    call(|| {
        // SAFETY: `devices` is null or open, and `stream` 0, created here or of the primary context until it is forgotten, as the caller promises.
        let (backend, stream) = unsafe { stream_of(devices, device, stream) }?;
        // SAFETY: the same of `other`.
        let (_, other) = unsafe { stream_of(devices, device, other) }?;
        Ok(backend.stream_wait(backend.record_position(other)?, stream)?)
    })
}

/// The direction of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Direction {
    /// From host memory to device memory.
    ToDevice = 0,
    /// From device memory to host memory.
    ToHost = 1,
    /// Within device memory.
    OnDevice = 2,
}

/// Queues a copy of `bytes` bytes on a stream of `ringmem_stream_create`. `direction` is a `ringmem_direction`.
///
/// Any thread.
///
/// # Safety
///
/// `devices` is null or open. Both places have as many bytes, do not overlap, and are used otherwise only after the copy. A source of
/// 8 bytes is in writable memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringmem_copy(
    devices: *const Devices,
    device: u32,
    to: *mut c_void,
    from: *const c_void,
    bytes: u64,
    direction: i32,
    stream: *mut c_void,
) -> Status {
    call(|| {
        // SAFETY: `devices` is null or open, as the caller promises.
        let (backend, stream) = unsafe { created(devices, device, stream) }?;
        let host =
            |place: *const c_void, name| NonNull::new(place.cast_mut().cast::<u8>()).map(Address::Host).ok_or_else(|| Failure::null(name));
        let on_device = |place: *const c_void| Address::Device(DeviceAddress::new(place.addr() as u64));
        let (to, from) = match direction {
            0 => (on_device(to), host(from, "from")?),
            1 => (host(to, "to")?, on_device(from)),
            2 => (on_device(to), on_device(from)),
            _ => return Err(Failure::new(Status::Invalid, format!("unknown direction {direction}"))),
        };
        // SAFETY: the caller promises that both have that many bytes, without overlap, that they are used otherwise only after the copy, and that a source of
        // one word is writable.
        unsafe { backend.copy(&Copy { to, from, bytes }, stream) }?;
        Ok(())
    })
}

/// Queues a fill of device memory with `bytes` bytes of one value on a stream of `ringmem_stream_create`.
///
/// Any thread.
///
/// # Safety
///
/// `devices` is null or open. The place has as many bytes, and is used otherwise only after the fill.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringmem_fill(
    devices: *const Devices,
    device: u32,
    to: *mut c_void,
    value: u8,
    bytes: u64,
    stream: *mut c_void,
) -> Status {
    call(|| {
        // SAFETY: `devices` is null or open, as the caller promises.
        let (backend, stream) = unsafe { created(devices, device, stream) }?;
        let fill = Fill::of(Address::Device(DeviceAddress::new(to.addr() as u64)), value, bytes);
        // SAFETY: the place has that many bytes, and is used otherwise only after the fill: the caller's promise.
        unsafe { backend.fill(&fill, stream) }?;
        Ok(())
    })
}

type Queued = (Arc<dyn Backend>, StreamId);

/// # Safety
///
/// The devices are null or open; the stream is as [`Streams::id`] demands.
unsafe fn stream_of(devices: *const Devices, device: u32, stream: *mut c_void) -> Result<Queued, Failure> {
    // SAFETY: the devices are null or open, as the caller promises.
    let devices = unsafe { borrowed(devices, "devices") }?;
    // SAFETY: the caller promises that the stream is 0, of `Streams::create`, or of the device's primary context and live until it is forgotten.
    let id = unsafe { devices.streams.id(device, stream.addr()) }?;
    Ok((devices.streams.backend(), id))
}

/// Operations are queued on the library's own streams only: on others, the owner's operations have no numbers here.
///
/// # Safety
///
/// The devices are null or open.
unsafe fn created(devices: *const Devices, device: u32, stream: *mut c_void) -> Result<Queued, Failure> {
    // SAFETY: the devices are null or open, as the caller promises.
    let devices = unsafe { borrowed(devices, "devices") }?;
    let raw: Raw = stream.addr();
    let id = devices.streams.created(device, raw)?.ok_or_else(|| {
        Failure::new(Status::Invalid, format!("stream {raw:#x} is not one of `ringmem_stream_create` on device {device}"))
    })?;
    Ok((devices.streams.backend(), id))
}
