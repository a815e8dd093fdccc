//! [`Record`]: every call, in order.
//!
//! A line is written when its call returns, and numbered when it begins: sorted by number, the file is the order of the calls.

use std::ffi::OsStr;
use std::fmt::{Debug, Write as _};
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, PoisonError};

use crate::NAME;
use crate::code::Code;

/// Where lines go, and how many calls there were.
pub struct Record {
    calls: AtomicU64,
    file: Option<Mutex<File>>,
}

impl Record {
    pub fn open(file: Option<&OsStr>) -> Self {
        let file = file.map(|path| {
            let opened = OpenOptions::new().create(true).append(true).open(path);
            let mut file = opened.unwrap_or_else(|error| give_up(&format!("RINGMEM_DOUBLE_LOG={}: {error}", path.display())));
            let connections = std::env::var("CUDA_DEVICE_MAX_CONNECTIONS").unwrap_or_default();
            let _ = writeln!(file, "# {NAME}; process {}; CUDA_DEVICE_MAX_CONNECTIONS={connections}", std::process::id());
            Mutex::new(file)
        });
        Self { calls: AtomicU64::new(0), file }
    }

    /// Whether anybody wants lines.
    pub const fn is_on(&self) -> bool {
        self.file.is_some()
    }

    /// The number of a call that begins, from 1.
    pub fn begin(&self) -> u64 {
        self.calls.fetch_add(1, Relaxed) + 1
    }

    /// The last line of a process that ends in a call.
    pub fn never_returned(&self, number: u64, symbol: &str) {
        self.write(&format!("{number} t{} {symbol} never returned\n", thread()));
    }

    /// One line: `12 t1 cuMemAlloc_v2(0x7ffd.., 0x400) = CUDA_SUCCESS (0) -> 0xd180..`.
    pub fn end(&self, number: u64, symbol: &str, arguments: &[&dyn Debug], answer: Code, gave: &str) {
        let mut line = format!("{number} t{} {symbol}(", thread());
        for (index, argument) in arguments.iter().enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            // Writing to a string does not fail.
            let _ = write!(line, "{comma}{argument:#x?}");
        }
        let _ = writeln!(line, ") = {answer}{}{gave}", if gave.is_empty() { "" } else { " ->" });
        self.write(&line);
    }

    /// In one piece, so that lines of several processes do not mix.
    fn write(&self, line: &str) {
        if let Some(file) = &self.file {
            // As above.
            let _ = file.lock().unwrap_or_else(PoisonError::into_inner).write_all(line.as_bytes());
        }
    }
}

/// Ends the process with a reason: where going on would hide a mistake or hang.
pub fn give_up(reason: &str) -> ! {
    eprintln!("{NAME}: {reason}");
    std::process::abort()
}

/// This thread's number, from 1 in the order of first calls: a name is known only to the copy of the standard library that gave it.
fn thread() -> u64 {
    static THREADS: AtomicU64 = AtomicU64::new(1);
    thread_local! {
        static THREAD: u64 = THREADS.fetch_add(1, Relaxed);
    }
    THREAD.with(|thread| *thread)
}
