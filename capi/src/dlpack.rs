//! Blocks of pools as DLPack tensors, for NumPy, PyTorch, CuPy and others. Nothing is copied.
//!
//! From the call on the tensor owns the block, and keeps the pool's memory alive. Its deleter may be called in any thread, also after the pool was closed, and
//! in a forked process, where it does nothing: the block is the parent's.

use core::ffi::c_void;
use core::mem::ManuallyDrop;
use core::slice;
use std::sync::Arc;

use ringmem::__dlpack::{Extents, managed};
use ringmem::Error;
use ringmem::dlpack::{DlDataType, TensorError};

use crate::arguments::{Output, borrowed};
use crate::pool::{Loan, Pool, PoolHandle};
use crate::status::{Failure, Status, call, note};

/// A tensor of `dlpack.h`, version 1.0.
pub struct Tensor {
    _opaque: [u8; 0],
}

struct Loaned {
    pool: ManuallyDrop<Arc<Pool>>,
    // INVARIANT: a block of `pool` that is lent to this tensor.
    address: u64,
}

impl Drop for Loaned {
    fn drop(&mut self) {
        if !self.pool.process().is_this() {
            // The last reference would call the driver.
            return;
        }
        // SAFETY: lent to this tensor, by the invariant. The consumer's work is complete, or queued on the stream that was noted: the promise of its deleter.
        match unsafe { self.pool.free_lent(self.address) } {
            // SAFETY: not used again.
            Ok(()) => drop(unsafe { ManuallyDrop::take(&mut self.pool) }),
            // The consumer's work may use the block: it stays, and so does the pool's memory.
            Err(failure) => note(failure.text()),
        }
    }
}

/// Makes a block of a pool a tensor, which owns the block from then on: `ringmem_pool_free` refuses it, and the tensor's deleter frees it, once. The tensor is
/// compact and row-major, and has at most as many bytes as were allocated.
///
/// `code` and `bits` are those of a `DLDataType`; `bits` is 8, 16, 32, 64 or 128. `shape` has `ndim` sizes, and may be null if that is 0.
///
/// `stream` is the stream on which the consumer uses the tensor, as in `ringmem_pool_allocate`. On the device, it waits for the work that is queued on the
/// streams of the block. The deleter may be called while work is queued on it: the block is reused after that. A consumer on the host waits for no stream: call
/// `ringmem_stream_synchronize` first. Python's `__dlpack__` has this argument too: there, `None` and 1 are null here, and -1 is the stream of the allocation.
///
/// Tensors of device memory have the device type `kDLCUDA`, of pinned memory `kDLCUDAHost`, of managed memory `kDLCUDAManaged`. The addresses of simulated
/// devices are no pointers, so that their device memory is `RINGMEM_STATUS_UNSUPPORTED`; their pinned and managed memory is `kDLCPU`.
///
/// Any thread. After a failure the block is the caller's.
///
/// # Safety
///
/// `pool` is null or open. `shape` is null, or to `ndim` readable numbers. `tensor` is null, or valid for the write of a pointer. As `ringmem_pool_allocate`
/// for the stream. All work that uses the block when the deleter is called was queued on the streams of the block or on `stream`, or is complete.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringmem_dlpack_lend(
    pool: *const PoolHandle,
    address: *mut c_void,
    code: u8,
    bits: u8,
    ndim: i32,
    shape: *const i64,
    stream: *mut c_void,
    tensor: *mut *mut Tensor,
) -> Status {
    call(|| {
        // SAFETY: `pool` is null or open, and `tensor` null or valid for the write of a pointer, as the caller promises.
        let (PoolHandle(pool), place) = unsafe { (borrowed(pool, "pool")?, Output::new(tensor, "tensor")?) };
        if !matches!(bits, 8 | 16 | 32 | 64 | 128) {
            return Err(Failure::new(Status::Invalid, format!("`bits` is {bits}: expected 8, 16, 32, 64 or 128")));
        }
        // SAFETY: `shape` is null or `ndim` readable numbers, as the caller promises.
        let extents = unsafe { extents(ndim, shape) }?;
        let bytes = extents.elements().saturating_mul(u64::from(bits / 8));
        let address = address.addr() as u64;
        // SAFETY: the stream lives until it is forgotten, as the caller promises.
        let Loan { data, device } = unsafe { pool.lend(address, bytes, stream.addr()) }?;
        let owner = Loaned { pool: ManuallyDrop::new(Arc::clone(pool)), address };
        place.set(managed(owner, data, device, DlDataType { code, bits, lanes: 1 }, extents).as_ptr().cast());
        Ok(())
    })
}

/// # Safety
///
/// `shape` is null, or to `ndim` readable numbers.
unsafe fn extents(ndim: i32, shape: *const i64) -> Result<Extents, Failure> {
    let refused = |error: TensorError| Failure::from(Error::from(error));
    let count = usize::try_from(ndim).ok().filter(|count| *count <= Extents::MOST);
    let Some(count) = count else {
        return Err(refused(TensorError::Dimensions { dimensions: ndim.into(), most: Extents::MOST }));
    };
    let sizes = match count {
        0 => &[],
        _ if shape.is_null() => return Err(Failure::null("shape")),
        // SAFETY: so many readable numbers: the caller's promise.
        count => unsafe { slice::from_raw_parts(shape, count) },
    };
    Extents::new(sizes.iter().copied()).map_err(refused)
}
