//! The `ringmem` program.

use std::io::Write;
use std::process::ExitCode;

/// Hardware queues, read when the driver is loaded. With fewer queues than streams, an operation may wait for a persistent kernel on another stream.
const CONNECTIONS: &str = "CUDA_DEVICE_MAX_CONNECTIONS";

fn main() -> ExitCode {
    if std::env::var_os(CONNECTIONS).is_none() {
        // SAFETY: no other thread runs yet.
        unsafe { std::env::set_var(CONNECTIONS, "32") };
    }
    #[cfg(unix)]
    signals();
    let (mut out, mut err) = (std::io::stdout().lock(), std::io::stderr());
    let terminal = ringmem_cli::Terminal::of_stdout();
    let code = ringmem_cli::run(std::env::args_os(), &ringmem_kernels::IMAGE, terminal, &mut out, &mut err);
    let _ = out.flush();
    ExitCode::from(code)
}

/// Removes unfinished files before a signal ends the program. Ignored signals stay ignored, as `nohup` requires.
#[cfg(unix)]
fn signals() {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    // SAFETY: installs no handler, and no other code uses this signal. Ignored, a write beyond the file size limit returns an error, and the
    // incomplete file is removed.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    let is_ignored = |signal: &i32| {
        let mut action = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: only reads, into `action`.
        let said = unsafe { libc::sigaction(*signal, std::ptr::null(), action.as_mut_ptr()) };
        // SAFETY: zeroed or written; any bytes are valid.
        said == 0 && unsafe { action.assume_init() }.sa_sigaction == libc::SIG_IGN
    };
    let wanted: Vec<i32> = [SIGHUP, SIGINT, SIGTERM].into_iter().filter(|signal| !is_ignored(signal)).collect();
    // Before any file is created. If this fails, an interrupted run leaves its incomplete file to the next run, which removes it.
    let Ok(mut signals) = signal_hook::iterator::Signals::new(&wanted) else { return };
    let ends = move || {
        for signal in signals.forever() {
            ringmem_cli::interrupted();
            let _ = signal_hook::low_level::emulate_default_handler(signal);
        }
    };
    if std::thread::Builder::new().name("signals".to_owned()).spawn(ends).is_err() {
        for signal in wanted {
            // SAFETY: restores the default action.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
    }
}
