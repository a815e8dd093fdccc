//! Arguments and results of exported functions: pointers that are checked for null, structures of other versions, handles, deadlines.

use core::ffi::{CStr, c_char};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::status::{Failure, Status, run};

pub type Result<T = ()> = core::result::Result<T, Failure>;

/// Checks an argument.
///
/// # Safety
///
/// Null, or valid for reads of a `T` that is not written during `'a`.
pub unsafe fn borrowed<'a, T>(pointer: *const T, argument: &str) -> Result<&'a T> {
    // SAFETY: the caller promises null, or a value that is valid for `'a`.
    unsafe { pointer.as_ref() }.ok_or_else(|| Failure::null(argument))
}

/// Checks an argument.
///
/// # Safety
///
/// Null, or valid for reads and writes of a `T` that nothing else accesses during `'a`.
pub unsafe fn exclusive<'a, T>(pointer: *mut T, argument: &str) -> Result<&'a mut T> {
    // SAFETY: the caller promises null, or a value that only this reference accesses during `'a`.
    unsafe { pointer.as_mut() }.ok_or_else(|| Failure::null(argument))
}

/// A place for a result, which is not read and may be uninitialised.
pub struct Output<T>(*mut T);

impl<T> Output<T> {
    /// # Safety
    ///
    /// Null, or valid for a write of a `T` as long as this exists.
    pub unsafe fn new(place: *mut T, argument: &str) -> Result<Self> {
        if place.is_null() { Err(Failure::null(argument)) } else { Ok(Self(place)) }
    }

    pub fn set(self, value: T) {
        // SAFETY: `new`'s caller promises a valid place, which is not null.
        unsafe { self.0.write(value) };
    }
}

/// Returns nothing for no limit: a negative timeout, or one beyond the clock's range.
pub fn deadline(timeout_ns: i64) -> Option<Instant> {
    let timeout = u64::try_from(timeout_ns).ok()?;
    Instant::now().checked_add(Duration::from_nanos(timeout))
}

/// # Safety
///
/// Null, or an object of [`handle`] that nothing uses and that is closed once.
pub unsafe fn close<T>(object: *mut T) {
    if !object.is_null() {
        // SAFETY: the caller promises an object of `handle`, which made a box of it, and that nothing uses it.
        run(|| drop(unsafe { Box::from_raw(object) }));
    }
}

pub fn handle<T>(object: T) -> *mut T {
    Box::into_raw(Box::new(object))
}

/// A structure whose first field is its size in bytes, as the caller compiled it, and for which all zeros are a value.
///
/// # Safety
///
/// `repr(C)`, without padding; the first field is a `usize`; all bytes may have any value.
pub(crate) unsafe trait Versioned: Copy {
    const NAME: &'static str;
}

/// Reads a structure of the caller's version: fields that it lacks are 0.
///
/// # Safety
///
/// The pointer is null, or to a `usize` and as many readable bytes as that says.
pub(crate) unsafe fn read<T: Versioned>(place: *const T) -> Result<T> {
    let size = Failure::unless_null(place, T::NAME)?.cast::<usize>();
    // SAFETY: not null, so a readable `usize`, as the caller promises.
    let size = unsafe { size.read() };
    let (least, known) = (size_of::<usize>(), size_of::<T>());
    // Beyond any version, or no size of a structure.
    if !(least..=4096).contains(&size) || !size.is_multiple_of(align_of::<T>()) {
        return Err(Failure::new(Status::Invalid, format!("`{}.size` is {size}, not the size of the structure", T::NAME)));
    }
    // SAFETY: all zeros are a value, by the promise of the trait.
    let mut value: T = unsafe { core::mem::zeroed() };
    // SAFETY: both have that many bytes, by the promises of the caller and of the trait.
    unsafe { core::ptr::copy_nonoverlapping(place.cast::<u8>(), (&raw mut value).cast::<u8>(), size.min(known)) };
    for offset in known..size {
        // SAFETY: below the caller's size.
        let unknown = unsafe { place.cast::<u8>().add(offset).read() };
        if unknown != 0 {
            let text = format!("`{}` sets an option that this version of the library does not have, at byte {offset}", T::NAME);
            return Err(Failure::new(Status::Unsupported, text));
        }
    }
    Ok(value)
}

/// Writes those fields of a structure that the caller's version has. Its `size` stays.
///
/// # Safety
///
/// The pointer is null, or to a `usize` and as many writable bytes as that says.
pub(crate) unsafe fn write<T: Versioned>(place: *mut T, value: &T) -> Result {
    let size = Failure::unless_null(place.cast_const(), T::NAME)?.cast::<usize>();
    // SAFETY: not null, so a readable `usize`, as the caller promises.
    let size = unsafe { size.read() };
    let (least, known) = (size_of::<usize>(), size_of::<T>());
    if size < least || !size.is_multiple_of(align_of::<T>()) {
        return Err(Failure::new(Status::Invalid, format!("`{}.size` is {size}, not the size of the structure", T::NAME)));
    }
    let bytes = size.min(known) - least;
    // SAFETY: after the first field, both have that many bytes.
    unsafe { core::ptr::copy_nonoverlapping((&raw const *value).cast::<u8>().add(least), place.cast::<u8>().add(least), bytes) };
    Ok(())
}

impl Failure {
    fn unless_null<T>(place: *const T, name: &str) -> Result<*const T> {
        if place.is_null() { Err(Self::null(name)) } else { Ok(place) }
    }
}

/// Returns a path.
///
/// # Safety
///
/// The pointer is null, or to a text that ends with a zero byte and lives as long as the result.
pub(crate) unsafe fn path<'a>(text: *const c_char, name: &str) -> Result<&'a Path> {
    // SAFETY: not null, so such a text, by the caller's promise.
    let text = unsafe { CStr::from_ptr(Failure::unless_null(text, name)?) };
    #[cfg(unix)]
    let path = Path::new(std::os::unix::ffi::OsStrExt::from_bytes(text.to_bytes()) as &std::ffi::OsStr);
    #[cfg(not(unix))]
    let path = Path::new(text.to_str().map_err(|_| Failure::new(Status::Invalid, format!("`{name}` is not UTF-8")))?);
    Ok(path)
}
