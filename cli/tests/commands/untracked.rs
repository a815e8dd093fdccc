//! A program without the tracker links nothing of it.

use std::path::Path;
use std::process::Command;

use ringmem::backend::host::HostBackend;
use ringmem::memory::{Buffer, Device, Tracked};

use crate::rerun_or_skip;

fn symbols(program: &Path, module: &str) -> Option<usize> {
    let output = match Command::new("nm").arg(program).output() {
        Ok(output) => output,
        Err(error) => {
            rerun_or_skip::skipped(format_args!("nm lists no symbols of {}: {error}", program.display()));
            return None;
        }
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let (functions, types) = (format!("6memory{}{module}", module.len()), format!("memory..{module}.."));
    Some(String::from_utf8_lossy(&output.stdout).lines().filter(|line| line.contains(&functions) || line.contains(&types)).count())
}

#[test]
fn a_program_without_tracking_has_no_tracker_symbols() {
    let backend = HostBackend::builder().build().expect("a backend");
    let memory = Tracked::new(Device::new(&backend, 0));
    drop(Buffer::<u8, _>::new(memory.clone(), 1).expect("room"));
    assert!(memory.report().is_empty());
    let myself = std::env::current_exe().expect("a program has a path");
    let Some(ours) = symbols(&myself, "tracked") else { return };
    assert!(ours > 0, "a program that tracks shows nothing of it: {}", myself.display());
    let program = Path::new(env!("CARGO_BIN_EXE_ringmem"));
    assert!(symbols(program, "buffer") > Some(0), "{} shows no buffers", program.display());
    assert_eq!(symbols(program, "tracked"), Some(0));
}
