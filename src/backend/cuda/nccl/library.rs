//! NCCL's functions by name.
//!
//! cudarc's binding is not used: it panics without the library or a function, and receives result codes as a Rust enum (see `call.rs`).

use core::ffi::{c_int, c_void};
use core::fmt;
use std::sync::OnceLock;

use cudarc::driver::sys::CUstream;
use libloading::Library;

use super::super::call::functions;
use super::super::driver::{open, text};
use super::super::process;
use crate::{Error, Result};

pub(super) const NAMES: &[&str; 2] = &["libnccl.so.2", "libnccl.so"];

pub(super) type Comm = *mut c_void;

/// The number by which the ranks of a new communicator find each other.
///
/// One rank makes it; the program sends its bytes to the others' processes.
///
/// ```
/// use ringmem::backend::cuda::nccl::UniqueId;
///
/// /// As received from the process of rank 0.
/// fn received(bytes: [u8; UniqueId::BYTES]) -> UniqueId {
///     UniqueId::from_bytes(bytes)
/// }
/// assert_eq!(received([7; 128]).to_bytes(), [7; 128]);
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct UniqueId([u8; Self::BYTES]);

impl UniqueId {
    /// The size in bytes.
    pub const BYTES: usize = 128;

    /// Makes a number. NCCL listens at an address of this process until the ranks have met.
    ///
    /// # Errors
    ///
    /// [`NoNccl`](Error::NoNccl), [`Nccl`](Error::Nccl).
    pub fn new() -> Result<Self> {
        let mut id = Self([0; Self::BYTES]);
        // SAFETY: writes 128 bytes.
        unsafe { library()?.ncclGetUniqueId(&raw mut id) }?;
        Ok(id)
    }

    /// Returns the number with these bytes.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; Self::BYTES]) -> Self {
        Self(bytes)
    }

    /// Returns its bytes.
    #[must_use]
    pub const fn to_bytes(self) -> [u8; Self::BYTES] {
        self.0
    }
}

impl fmt::Debug for UniqueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UniqueId").finish_non_exhaustive()
    }
}

functions! {
    must have {
        fn ncclGetUniqueId(id: *mut UniqueId);
        fn ncclCommInitRank(comm: *mut Comm, ranks: c_int, id: UniqueId, rank: c_int);
        fn ncclCommDestroy(comm: Comm);
        fn ncclCommAbort(comm: Comm);
        fn ncclCommGetAsyncError(comm: Comm, code: *mut u32);
        fn ncclGroupStart();
        fn ncclGroupEnd();
        fn ncclAllReduce(from: *const c_void, to: *mut c_void, count: usize, element: c_int, reduce: c_int, comm: Comm, stream: CUstream);
        fn ncclBroadcast(from: *const c_void, to: *mut c_void, count: usize, element: c_int, root: c_int, comm: Comm, stream: CUstream);
        fn ncclSend(from: *const c_void, count: usize, element: c_int, peer: c_int, comm: Comm, stream: CUstream);
        fn ncclRecv(to: *mut c_void, count: usize, element: c_int, peer: c_int, comm: Comm, stream: CUstream);
    }
    may lack {}
}

pub(super) const IN_PROGRESS: u32 = 7;

pub(super) const fn checked(call: &'static str, code: u32) -> Result<()> {
    match code {
        0 => Ok(()),
        code => Err(Error::Nccl { call, code, name: name(code) }),
    }
}

const fn name(code: u32) -> &'static str {
    match code {
        1 => "ncclUnhandledCudaError",
        2 => "ncclSystemError",
        3 => "ncclInternalError",
        4 => "ncclInvalidArgument",
        5 => "ncclInvalidUsage",
        6 => "ncclRemoteError",
        IN_PROGRESS => "ncclInProgress",
        8 => "ncclTimeout",
        _ => "unknown NCCL error",
    }
}

pub(super) fn library() -> Result<&'static Calls> {
    static LIBRARY: OnceLock<Library> = OnceLock::new();
    static CALLS: OnceLock<Calls> = OnceLock::new();
    if let Some(calls) = CALLS.get() {
        return Ok(calls);
    }
    let missing = |error| Error::NoNccl { tried: NAMES, source: text(&error).into() };
    let library = match LIBRARY.get() {
        Some(library) => library,
        // Never closed: NCCL has threads.
        None => {
            let [first, others @ ..] = NAMES;
            let found = open(first, others).map_err(missing)?;
            LIBRARY.get_or_init(|| found)
        }
    };
    let found = Calls::of(library).map_err(missing)?;
    Ok(CALLS.get_or_init(|| found))
}
