//! The `ringmem` program: see `ringmem --help`.

use std::io::Write;
use std::process::ExitCode;

/// How many queues CUDA's driver has for a context, read when it is loaded. With fewer than there are streams, what is queued on one may wait for a kernel that
/// listens on another.
const CONNECTIONS: &str = "CUDA_DEVICE_MAX_CONNECTIONS";

fn main() -> ExitCode {
    #[cfg(unix)]
    // SAFETY: nobody else has a word about this signal, and it is ignored without a function of ours. A limit on the length of files then fails the write
    // that meets it, which is named and leaves no half of a file; otherwise it would end the process.
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
    let code = ringmem::cli::run(std::env::args_os(), &ringmem_kernels::IMAGE, &mut out, &mut err);
    // A reader that has left has seen what it wanted.
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
            ringmem::cli::interrupted();
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
