//! The `ringmem` program: see `ringmem --help`.

use std::io::Write;
use std::process::ExitCode;

fn main() -> ExitCode {
    let (mut out, mut err) = (std::io::stdout().lock(), std::io::stderr());
    let code = ringmem::cli::run(std::env::args_os(), &ringmem_kernels::IMAGE, &mut out, &mut err);
    // A reader that has left has seen what it wanted.
    let _ = out.flush();
    ExitCode::from(code)
}
