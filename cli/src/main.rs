//! The `ringmem` program: commands that show, measure and check the library `ringmem` on one machine.
//!
//! 1. `stream` and `demo` run a persistent kernel and compare each result with a computation on the host.
//! 2. `bench`, `doctor`, `layout` and `replay` measure and report; they change nothing on the machine.
//! 3. Without a GPU all commands except `--backend cuda` run on the host backend, and print that.
//!
//! Non-goals: a service, a configuration file, kernels of the user, more than one GPU at a time. Programs that need these use the library.
//! This package has no API for other programs: [`ringmem_cli::run`] is public for the tests.

use std::io::Write;
use std::process::ExitCode;

/// The number of hardware queues of a CUDA context. The driver reads it when it is loaded. With fewer queues than streams, an operation on
/// one stream may wait for a persistent kernel on another.
const CONNECTIONS: &str = "CUDA_DEVICE_MAX_CONNECTIONS";

fn main() -> ExitCode {
    #[cfg(unix)]
    // SAFETY: installs no handler, and no other code uses this signal. If it is ignored, a write beyond the limit of file sizes returns an
    // error, and the program removes the incomplete file. Otherwise the signal would end the process.
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN)
    };
    if std::env::var_os(CONNECTIONS).is_none() {
        // SAFETY: no other thread runs yet.
        unsafe { std::env::set_var(CONNECTIONS, "32") };
    }
    #[cfg(unix)]
    signals();
    let (mut out, mut err) = (std::io::stdout().lock(), std::io::stderr());
    let code = ringmem_cli::run(std::env::args_os(), &ringmem_kernels::IMAGE, &mut out, &mut err);
    // A reader that has closed the pipe needs no more output.
    let _ = out.flush();
    ExitCode::from(code)
}

/// Starts a thread that removes unfinished files before a signal ends the program. Ignored signals stay ignored, as a shell or `nohup` requires.
#[cfg(unix)]
fn signals() {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    let is_ignored = |signal: &i32| {
        let mut action = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: reads one action into `action`, and changes none.
        let said = unsafe { libc::sigaction(*signal, std::ptr::null(), action.as_mut_ptr()) };
        // SAFETY: zeroed or written; any bytes of it are valid.
        said == 0 && unsafe { action.assume_init() }.sa_sigaction == libc::SIG_IGN
    };
    let wanted: Vec<i32> = [SIGHUP, SIGINT, SIGTERM].into_iter().filter(|signal| !is_ignored(signal)).collect();
    // Installed before any file is created. If that fails, signals end the program by default, and the next run removes the files.
    let Ok(mut signals) = signal_hook::iterator::Signals::new(&wanted) else { return };
    let ends = move || {
        for signal in signals.forever() {
            ringmem_cli::interrupted();
            let _ = signal_hook::low_level::emulate_default_handler(signal);
        }
    };
    if std::thread::Builder::new().name("signals".to_owned()).spawn(ends).is_err() {
        for signal in wanted {
            // SAFETY: restores the default action, without a function of ours.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
    }
}
