//! `cargo xtask bare-metal`: runs the rings on a Cortex-M4 under QEMU, and prints their code size.

use std::io::ErrorKind;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use ringmem_ptx_builder::Compiler;

use crate::Failure;

const TARGET: &str = "thumbv7em-none-eabihf";
const PROGRAM: &str = "ringmem-bare-metal";
const LINKER: &str = "arm-none-eabi-ld";
const SYMBOLS: &str = "arm-none-eabi-nm";
const EMULATOR: &str = "qemu-system-arm";

/// Time is counted in instructions of 32 ns: runs are identical.
const MACHINE: &[&str] =
    &["-machine", "mps2-an386", "-nographic", "-semihosting-config", "enable=on,target=native", "-icount", "shift=5", "-kernel"];

const PATIENCE: Duration = Duration::from_secs(180);

pub fn run() -> Result<(), Failure> {
    for (program, package) in [(LINKER, "binutils-arm-none-eabi"), (SYMBOLS, "binutils-arm-none-eabi"), (EMULATOR, "qemu-system-arm")] {
        present(program, package)?;
    }
    let compiler = Compiler::find()?;
    println!("{}: {}", compiler.found, compiler.version);
    let target = crate::built().join("bare-metal");
    let status = compiler
        .cargo()
        .env("CARGO_TARGET_DIR", &target)
        .env("CARGO_TARGET_THUMBV7EM_NONE_EABIHF_LINKER", LINKER)
        .args(["build", "--quiet", "--locked", "--release", "-Z", "build-std=core", "--target", TARGET, "--manifest-path"])
        .arg(crate::root().join("tests/bare-metal/Cargo.toml"))
        .status()?;
    if !status.success() {
        return Err("the program does not build".into());
    }
    let program = target.join(TARGET).join("release").join(PROGRAM);
    sizes(&program)?;
    emulate(&program)
}

fn present(program: &str, package: &str) -> Result<(), Failure> {
    match Command::new(program).arg("--version").stdout(Stdio::null()).status() {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == ErrorKind::NotFound => Err(format!("no {program}: apt-get install {package}").into()),
        Err(error) => Err(format!("{program}: {error}").into()),
    }
}

fn sizes(program: &Path) -> Result<(), Failure> {
    let path = program.to_str().ok_or("the target directory's name is not text")?;
    let symbols = crate::answer(Path::new(SYMBOLS), &["--demangle", "--print-size", "--size-sort", "--radix=d", path])?;
    let code = of_the_rings(&symbols);
    if code.is_empty() {
        return Err(format!("{path}: no symbol of a ring").into());
    }
    println!("{:>5}  code", "bytes");
    for (bytes, name) in code {
        println!("{bytes:>5}  {name}");
    }
    Ok(())
}

fn of_the_rings(symbols: &str) -> Vec<(u32, &str)> {
    let operation = |name: &str| {
        let name = name.strip_prefix("ringmem_bare_metal::")?;
        let (ring, operation) = name.split_once("::")?;
        (["framed", "spsc", "mailbox"].contains(&ring) && ["push", "pop", "publish", "take"].contains(&operation)).then_some(())
    };
    let of_ring = |name: &str| name.contains("ringmem_layouts::ring::") && !name.contains(" as core::fmt::");
    let lines = symbols.lines().filter_map(|line| {
        let mut fields = line.splitn(4, ' ');
        let (bytes, kind, name) = (fields.nth(1)?, fields.next()?, fields.next()?);
        let wanted = kind.eq_ignore_ascii_case("t") && (operation(name).is_some() || of_ring(name));
        wanted.then_some((bytes.parse().ok()?, name))
    });
    lines.collect()
}

fn emulate(program: &Path) -> Result<(), Failure> {
    let mut emulator = Command::new(EMULATOR).args(MACHINE).arg(program).stdin(Stdio::null()).spawn()?;
    let begin = Instant::now();
    loop {
        match emulator.try_wait()? {
            Some(status) if status.success() => return Ok(()),
            Some(status) => return Err(format!("the rings failed on bare metal: {EMULATOR} ended with {status}").into()),
            None if begin.elapsed() > PATIENCE => {
                emulator.kill()?;
                emulator.wait()?;
                return Err(format!("no end within {} s: the interrupt waits for main, or main for itself", PATIENCE.as_secs()).into());
            }
            None => sleep(Duration::from_millis(20)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::of_the_rings;

    #[test]
    fn only_ring_code_is_counted() {
        let symbols = "\
00004764 00000636 t ringmem_bare_metal::framed::pop
00005000 00000010 t ringmem_bare_metal::framed::pops
00002600 00000308 t <ringmem_layouts::ring::framed::ring::Ring<512>>::split
00002601 00000016 t <ringmem_layouts::ring::framed::consumer::PopError as core::fmt::Debug>::fmt
00013792 00000326 T compiler_builtins::mem::memcpy
536872704 00001024 b ringmem_bare_metal::framed::push
00000000 T nothing
";
        let expected = [(636, "ringmem_bare_metal::framed::pop"), (308, "<ringmem_layouts::ring::framed::ring::Ring<512>>::split")];
        assert_eq!(of_the_rings(symbols), expected);
    }
}
