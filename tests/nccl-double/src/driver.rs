use std::ffi::c_void;
use std::sync::OnceLock;

use libloading::Library;

use crate::{Answer, UNHANDLED_CUDA_ERROR, give_up};

pub type HostFunction = unsafe extern "C" fn(*mut c_void);

fn library() -> &'static Library {
    static LIBRARY: OnceLock<Library> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        // SAFETY: the driver double, already open.
        unsafe { Library::new("libcuda.so.1") }.unwrap_or_else(|error| give_up(&error.to_string()))
    })
}

macro_rules! functions {
    ($(fn $name:ident($($argument:ident: $type:ty),*);)+) => {$(
        /// # Safety
        ///
        /// See the driver's documentation.
        pub unsafe fn $name($($argument: $type),*) -> Answer {
            type Function = unsafe extern "C" fn($($type),*) -> u32;
            // SAFETY: the documented signature.
            let function = unsafe { library().get::<Function>(concat!(stringify!($name), "\0").as_bytes()) };
            let function = function.unwrap_or_else(|error| give_up(&error.to_string()));
            // SAFETY: caller's promise.
            if unsafe { function($($argument),*) } == 0 { Ok(()) } else { Err(UNHANDLED_CUDA_ERROR) }
        }
    )+};
}

functions! {
    fn cuCtxGetCurrent(context: *mut usize);
    fn cuCtxSetCurrent(context: usize);
    fn cuStreamGetCtx(stream: usize, context: *mut usize);
    fn cuMemHostAlloc(place: *mut *mut c_void, bytes: usize, flags: u32);
    fn cuMemFreeHost(place: *mut c_void);
    fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: u64, bytes: usize, stream: usize);
    fn cuMemcpyHtoDAsync_v2(to: u64, from: *const c_void, bytes: usize, stream: usize);
    fn cuLaunchHostFunc(stream: usize, function: HostFunction, data: *mut c_void);
}

pub fn context() -> Answer<usize> {
    let mut context = 0;
    // SAFETY: writes one handle.
    unsafe { cuCtxGetCurrent(&raw mut context) }?;
    if context == 0 { Err(UNHANDLED_CUDA_ERROR) } else { Ok(context) }
}

pub fn within<T>(context: usize, run: impl FnOnce() -> Answer<T>) -> Answer<T> {
    let before = self::context().unwrap_or(0);
    // SAFETY: a context's handle.
    unsafe { cuCtxSetCurrent(context) }?;
    let outcome = run();
    // SAFETY: as above.
    unsafe { cuCtxSetCurrent(before) }?;
    outcome
}
