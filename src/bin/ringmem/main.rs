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
    let (mut out, mut err) = (std::io::stdout().lock(), std::io::stderr());
    let code = ringmem::cli::run(std::env::args_os(), &ringmem_kernels::IMAGE, &mut out, &mut err);
    // A reader that has left has seen what it wanted.
    let _ = out.flush();
    ExitCode::from(code)
}
