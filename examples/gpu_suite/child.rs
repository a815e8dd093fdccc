use std::io::{BufRead, BufReader, Read, Write};
use std::process::{ChildStdout, Command, ExitCode, ExitStatus, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use ringmem::backend::Backend;
use ringmem::backend::cuda::cudarc::driver::sys::cuDevicePrimaryCtxRelease_v2;
use ringmem::backend::cuda::{CudaBackend, check};
use ringmem::channel::Options;
use ringmem::memory::{Pinned, PinnedBuffer};

use crate::exchange::{exchange, open, options};
use crate::report::Failure;

/// The file into which the driver logs why a call failed.
const DRIVERS_LOG: &str = "CUDA_LOG_FILE";

pub struct Child {
    process: std::process::Child,
    said: Option<BufReader<ChildStdout>>,
}

impl Child {
    /// Starts this program with other arguments.
    pub fn start(part: &str, arguments: &[&str]) -> Result<Self, Failure> {
        let mut command = Command::new(std::env::current_exe()?);
        if let Some(mut log) = std::env::var_os(DRIVERS_LOG) {
            // Two processes would overwrite each other's lines.
            log.push(format!(".{}", [&[part], arguments].concat().join("-")));
            command.env(DRIVERS_LOG, log);
        }
        let mut process = command.arg(part).args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let said = process.stdout.take().map(BufReader::new);
        Ok(Self { process, said })
    }

    /// Returns the child's next line, or an empty one if it has closed its output. Kills a child that says nothing in time.
    pub fn line(&mut self, timeout: Duration) -> Result<String, Failure> {
        let Some(mut said) = self.said.take() else { return Err("it was not listened to in time".into()) };
        let (sender, line) = channel();
        std::thread::spawn(move || {
            let mut line = String::new();
            let read = said.read_line(&mut line).map(|_| line);
            let _ = sender.send((read, said));
        });
        match line.recv_timeout(timeout) {
            Ok((line, said)) => {
                self.said = Some(said);
                Ok(line?.trim().to_owned())
            }
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                self.kill()?;
                Err(format!("the child said nothing for {} s", timeout.as_secs()).into())
            }
        }
    }

    /// Waits until it has closed its output, and returns how it ended.
    pub fn end(&mut self, timeout: Duration) -> Result<ExitStatus, Failure> {
        let begun = Instant::now();
        while !self.line(timeout.saturating_sub(begun.elapsed()))?.is_empty() {}
        Ok(self.process.wait()?)
    }

    /// Kills it, or returns how it has ended.
    pub fn kill(&mut self) -> Result<ExitStatus, Failure> {
        self.process.kill()?;
        Ok(self.process.wait()?)
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.kill();
    }
}

pub fn listens() -> ExitCode {
    let listening = || -> Result<_, Failure> {
        let backend = CudaBackend::open()?;
        let mut channel = open(&backend, &options("echo"))?;
        exchange(&mut channel, 0, 100)?;
        println!("listens");
        std::io::stdout().flush()?;
        std::io::stdin().read_to_end(&mut Vec::new())?;
        channel.close()?;
        Ok(())
    };
    ended(listening())
}

fn ended(outcome: Result<(), Failure>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            println!("{}", failure.to_string().replace('\n', " "));
            ExitCode::FAILURE
        }
    }
}

pub fn allocates() -> ExitCode {
    let allocating = || -> Result<_, Failure> {
        let backend = CudaBackend::open()?;
        let mut channel = open(&backend, &options("echo"))?;
        exchange(&mut channel, 0, 100)?;
        println!("listens");
        std::io::stdout().flush()?;
        let begun = Instant::now();
        let pinned = PinnedBuffer::<u8>::new(Pinned::new(&backend, 0), 1 << 20)?;
        let took = begun.elapsed();
        exchange(&mut channel, 100, 100)?;
        println!("allocated: in {} us, and the kernel answers", took.as_micros());
        std::io::stdout().flush()?;
        std::io::stdin().read_to_end(&mut Vec::new())?;
        channel.close()?;
        drop(pinned);
        Ok(())
    };
    ended(allocating())
}

pub fn loses_its_context() -> ExitCode {
    let losing = || -> Result<String, Failure> {
        let backend = CudaBackend::open()?;
        let mut channel = open(&backend, &Options { idle: Duration::from_secs(2), ..options("echo") })?;
        exchange(&mut channel, 0, 100)?;
        // The context owns its memory: not even a destructor may access it now.
        std::mem::forget(channel);
        let begun = Instant::now();
        // SAFETY: takes a device's ordinal. Releases the backend's only reference, to observe how later calls fail.
        let released = unsafe { cuDevicePrimaryCtxRelease_v2(0) };
        let took = begun.elapsed();
        let next = backend.memory_info(0).map_or_else(|error| error.to_string(), |info| format!("{info:?}"));
        std::mem::forget(backend);
        check("cuDevicePrimaryCtxRelease_v2", released)?;
        Ok(format!("gone after {} ms; the next call: {next}", took.as_millis()))
    };
    println!("{}", losing().map_or_else(|failure| failure.to_string().replace('\n', " "), |facts| format!("lost: {facts}")));
    let waited = std::io::stdout().flush().and_then(|()| std::io::stdin().read_to_end(&mut Vec::new()));
    ExitCode::from(u8::from(waited.is_err()))
}
