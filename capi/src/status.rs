//! [`Status`]: the result of each call, and the text of the last failure.
//!
//! 1. A function that can fail returns a [`Status`]. If it is not [`Ok`](Status::Ok), outputs are unchanged, and [`ringmem_last_error`] returns
//!    the reason.
//! 2. No panic leaves a function: `call` returns [`Status::Panic`].
//! 3. The text belongs to the calling thread, until its next failure.
//! 4. A failure that only means "not now" has a constant text (`Failure::known`): it allocates nothing.

use core::cell::{Cell, RefCell};
use core::ffi::{CStr, c_char};
use std::any::Any;
use std::ffi::CString;
use std::panic::{AssertUnwindSafe, catch_unwind};

use ringmem::Error;
use ringmem::attach::{AttachError, Corrupt};

/// The result of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Status {
    /// Success.
    Ok = 0,
    /// An argument that can never be valid, such as a null pointer, a size of 0 or an unknown option.
    Invalid = 1,
    /// Not enough memory within the limit, or on the device.
    OutOfMemory = 2,
    /// It may succeed later: an end of a ring has an owner, or a kernel is running.
    Busy = 3,
    /// The ring has no free slot.
    Full = 4,
    /// The ring has no message.
    Empty = 5,
    /// The deadline has passed.
    Timeout = 6,
    /// The owner of the other end has left or died; in a wait for a message, none remains.
    Disconnected = 7,
    /// Memory with other contents than expected: another layout, kind or version of messages.
    Mismatch = 8,
    /// The other process wrote an invalid index.
    Corrupt = 9,
    /// No such device, or no driver.
    NoDevice = 10,
    /// The device, the system or this process cannot do it.
    Unsupported = 11,
    /// An error of the CUDA driver.
    Driver = 12,
    /// An error of the operating system.
    System = 13,
    /// A defect of the library. The objects of the call are in a valid state.
    Panic = 14,
}

/// A failed call.
#[derive(Debug)]
pub(crate) struct Failure {
    status: Status,
    text: Text,
}

#[derive(Debug)]
enum Text {
    Known(&'static CStr),
    Written(String),
}

impl Failure {
    pub fn new(status: Status, text: impl Into<String>) -> Self {
        Self { status, text: Text::Written(text.into()) }
    }

    /// A failure whose text needs no memory.
    pub const fn known(status: Status, text: &'static CStr) -> Self {
        Self { status, text: Text::Known(text) }
    }

    /// Adds to the text.
    #[must_use]
    pub fn with(self, more: &str) -> Self {
        Self::new(self.status, format!("{}{more}", self.text()))
    }

    pub const fn status(&self) -> Status {
        self.status
    }

    pub fn text(&self) -> &str {
        match &self.text {
            // UTF-8: written in the sources.
            Text::Known(text) => text.to_str().unwrap_or_default(),
            Text::Written(text) => text,
        }
    }

    pub fn null(argument: &str) -> Self {
        Self::new(Status::Invalid, format!("`{argument}` is a null pointer"))
    }
}

impl From<Corrupt> for Failure {
    fn from(corrupt: Corrupt) -> Self {
        Self::new(Status::Corrupt, corrupt.to_string())
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let status = match &error {
            Error::OutOfMemory { .. } | Error::Limit { .. } | Error::Map { .. } => Status::OutOfMemory,
            Error::Busy { .. } => Status::Busy,
            Error::Attach(AttachError::Corrupt(_)) => Status::Corrupt,
            Error::Attach(_) | Error::Abi { .. } => Status::Mismatch,
            Error::NoDevice { .. } | Error::NoDriver { .. } => Status::NoDevice,
            Error::Unsupported { .. } => Status::Unsupported,
            Error::Driver { .. } | Error::Operation { .. } => Status::Driver,
            Error::System { .. } => Status::System,
            _ => Status::Invalid,
        };
        Self::new(status, causes(&error))
    }
}

/// The sentence of an error, and of each cause that it does not include.
fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.ends_with(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}

thread_local! {
    /// The last failure's text, if it is constant. This variable needs neither memory nor a destructor.
    static KNOWN: Cell<Option<&'static CStr>> = const { Cell::new(None) };
    /// The last failure's text otherwise.
    static WRITTEN: RefCell<CString> = RefCell::default();
}

/// Runs the body of an exported function.
pub(crate) fn call(body: impl FnOnce() -> Result<(), Failure>) -> Status {
    let failure = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => return Status::Ok,
        Ok(Err(failure)) => failure,
        Err(payload) => Failure::new(Status::Panic, panicked(payload)),
    };
    match failure.text {
        Text::Known(text) => KNOWN.set(Some(text)),
        Text::Written(text) => note(&text),
    }
    failure.status
}

/// Runs the body of a function without a result, which must not fail.
pub(crate) fn run(body: impl FnOnce()) {
    call(|| {
        body();
        Ok(())
    });
}

/// Sets the text of the last failure.
pub(crate) fn note(text: &str) {
    // Up to the first zero byte, which a path may not contain either.
    let text = text.split('\0').next().unwrap_or_default();
    if let Ok(text) = CString::new(text) {
        // The thread may be ending: then the text is lost.
        let _ = WRITTEN.try_with(|last| last.replace(text));
        KNOWN.set(None);
    }
}

fn panicked(payload: Box<dyn Any + Send>) -> String {
    let text = payload.downcast_ref::<String>().cloned();
    let text = text.or_else(|| payload.downcast_ref::<&str>().map(|text| (*text).to_owned()));
    // A payload whose drop panics is leaked.
    catch_unwind(AssertUnwindSafe(|| drop(payload))).unwrap_or_else(core::mem::forget);
    format!("the library panicked: {}", text.as_deref().unwrap_or("without a text"))
}

/// Returns the reason of the calling thread's last failure, in English; an empty text without one.
///
/// The text is valid until the next failure of this thread, or its end. `RINGMEM_STATUS_FULL` and `RINGMEM_STATUS_EMPTY` have constant texts: such a
/// result allocates no memory.
#[unsafe(no_mangle)]
pub extern "C" fn ringmem_last_error() -> *const c_char {
    if let Some(text) = KNOWN.get() {
        return text.as_ptr();
    }
    WRITTEN.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"the thread is ending".as_ptr())
}

/// Returns a short name of a status, such as `out of memory`.
#[unsafe(no_mangle)]
pub extern "C" fn ringmem_status_name(status: i32) -> *const c_char {
    const NAMES: [&CStr; 15] = [
        c"ok",
        c"invalid argument",
        c"out of memory",
        c"busy",
        c"full",
        c"empty",
        c"timeout",
        c"disconnected",
        c"mismatch",
        c"corrupt",
        c"no device",
        c"unsupported",
        c"driver error",
        c"system error",
        c"panic",
    ];
    usize::try_from(status).ok().and_then(|status| NAMES.get(status)).map_or(c"unknown status".as_ptr(), |name| name.as_ptr())
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    fn last() -> String {
        // SAFETY: the text of this thread, which does not fail meanwhile.
        unsafe { CStr::from_ptr(ringmem_last_error()) }.to_str().expect("UTF-8").to_owned()
    }

    #[test]
    fn a_failure_has_a_text_in_its_own_thread_only() {
        assert_eq!(call(|| Err(Failure::new(Status::Full, "no room\0, and more"))), Status::Full);
        assert_eq!(last(), "no room");
        assert_eq!(call(|| Ok(())), Status::Ok);
        assert_eq!(last(), "no room");
        assert_eq!(call(|| Err(Failure::known(Status::Empty, c"no message"))), Status::Empty);
        assert_eq!(last(), "no message");
        assert_eq!(call(|| Err(Failure::null("ring"))), Status::Invalid);
        assert_eq!(last(), "`ring` is a null pointer");
        thread::spawn(|| assert_eq!(last(), "")).join().expect("it does not panic");
    }

    #[test]
    fn a_panic_is_a_status() {
        assert_eq!(call(|| panic!("number {}", 7)), Status::Panic);
        assert_eq!(last(), "the library panicked: number 7");
        run(|| std::panic::panic_any(7_u8));
        assert_eq!(last(), "the library panicked: without a text");
    }

    #[test]
    fn a_text_includes_the_causes() {
        let error = Error::Map { bytes: 7, source: std::io::Error::other("no memory") };
        assert_eq!(call(|| Err(error.into())), Status::OutOfMemory);
        assert_eq!(last(), "cannot map 7 bytes: no memory");
    }

    #[test]
    fn each_status_has_a_name() {
        let name = |status| {
            // SAFETY: a text of this library.
            unsafe { CStr::from_ptr(ringmem_status_name(status)) }.to_str().expect("UTF-8")
        };
        assert_eq!([Status::Ok, Status::OutOfMemory, Status::Panic].map(|status| name(status as i32)), ["ok", "out of memory", "panic"]);
        assert_eq!([-1, 15, i32::MIN].map(name), ["unknown status"; 3]);
    }
}
