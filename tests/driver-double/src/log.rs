//! [`Record`]: the log of calls, with arguments and results, if `RINGMEM_DOUBLE_LOG` names a file.

use std::ffi::OsStr;
use std::fmt::{Debug, Write as _};
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, PoisonError};

use crate::NAME;
use crate::code::Code;

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

    pub const fn is_on(&self) -> bool {
        self.file.is_some()
    }

    pub fn begin(&self) -> u64 {
        self.calls.fetch_add(1, Relaxed) + 1
    }

    pub fn never_returned(&self, number: u64, symbol: &str) {
        self.write(&format!("{number} t{} {symbol} never returned\n", thread()));
    }

    pub fn end(&self, number: u64, symbol: &str, arguments: &[&dyn Debug], answer: Code, gave: &str) {
        let mut line = format!("{number} t{} {symbol}(", thread());
        for (index, argument) in arguments.iter().enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            let _ = write!(line, "{comma}{argument:#x?}");
        }
        let _ = writeln!(line, ") = {answer}{}{gave}", if gave.is_empty() { "" } else { " ->" });
        self.write(&line);
    }

    /// One write: lines of several processes do not mix.
    fn write(&self, line: &str) {
        if let Some(file) = &self.file {
            let _ = file.lock().unwrap_or_else(PoisonError::into_inner).write_all(line.as_bytes());
        }
    }
}

pub fn give_up(reason: &str) -> ! {
    eprintln!("{NAME}: {reason}");
    std::process::abort()
}

/// Only the standard library's copy that set the name knows it.
fn thread() -> u64 {
    static THREADS: AtomicU64 = AtomicU64::new(1);
    thread_local! {
        static THREAD: u64 = THREADS.fetch_add(1, Relaxed);
    }
    THREAD.with(|thread| *thread)
}
