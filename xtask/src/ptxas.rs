//! `cargo xtask ptxas`: NVIDIA's assembler must accept every kernel for every architecture, without spills.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::check::{is_panic, readable};
use crate::{Failure, image, sass};

const ARCHITECTURES: [&str; 4] = ["sm_75", "sm_80", "sm_90", "sm_100"];

#[derive(Debug, Default, PartialEq, Eq)]
struct Properties {
    registers: Option<u32>,
    stack: u32,
    spill_stores: u32,
    spill_loads: u32,
}

pub fn run(file: &Path) -> Result<(), Failure> {
    let ptxas = find()?;
    let version = crate::answer(&ptxas, &["--version"])?;
    let release = version.lines().find(|line| line.contains("release")).unwrap_or("unknown release");
    println!("{}: {release}", ptxas.display());
    let cubins = crate::target().join("cubin");
    std::fs::create_dir_all(&cubins)?;
    let cubin = |architecture| cubins.join(file.file_stem().unwrap_or_default()).with_extension(format!("{architecture}.cubin"));
    let mut faults = Vec::new();
    println!("{:40} {:>7} {:>9} {:>5} {:>12} {:>11}", "function", "arch", "registers", "stack", "spill stores", "spill loads");
    for architecture in ARCHITECTURES {
        let output = Command::new(&ptxas).args(["-v", "--gpu-name", architecture, "-o"]).arg(cubin(architecture)).arg(file).output();
        let output = output.map_err(|error| format!("{}: {error}", ptxas.display()))?;
        let said = String::from_utf8_lossy(&output.stderr);
        if !output.status.success() {
            return Err(format!("{} does not assemble for {architecture}:\n{said}", file.display()).into());
        }
        let functions = parse(&said)?;
        if functions.is_empty() {
            return Err(format!("{}: the assembler names no function for {architecture}", file.display()).into());
        }
        for (name, properties) in functions {
            let Properties { registers, stack, spill_stores, spill_loads } = properties;
            let registers = registers.map_or("-".into(), |count| count.to_string());
            let name = readable(&name);
            println!("{name:40} {architecture:>7} {registers:>9} {stack:>5} {spill_stores:>12} {spill_loads:>11}");
            if !is_panic(&name) && [stack, spill_stores, spill_loads] != [0; 3] {
                faults.push(format!(
                    "{}: {name} for {architecture}: expected no stack frame and no spills, got {stack} bytes of stack, {spill_stores} stored, {spill_loads} loaded",
                    file.display()
                ));
            }
        }
    }
    match find_disassembler(&ptxas) {
        // The expected counts are of these kernels.
        _ if file != image::path() => {}
        Some(disassembler) => {
            println!("{}", sass::head());
            for architecture in ARCHITECTURES {
                let text = crate::answer(&disassembler, &[OsStr::new("-c"), OsStr::new("-hex"), cubin(architecture).as_os_str()])?;
                faults.extend(sass::report(architecture, &text)?);
            }
        }
        None => crate::skipped(
            "machine code not looked at: no nvdisasm beside ptxas or in PATH; `pip install 'nvidia-cuda-nvdisasm==13.*'` brings one",
        )?,
    }
    if faults.is_empty() { Ok(()) } else { Err(faults.join("\n").into()) }
}

fn find_disassembler(ptxas: &Path) -> Option<PathBuf> {
    let on_path = std::env::var_os("PATH").into_iter().flat_map(|path| std::env::split_paths(&path).collect::<Vec<_>>());
    let beside = ptxas.parent().map(Path::to_owned);
    beside.into_iter().chain(on_path).map(|directory| directory.join("nvdisasm")).find(|program| program.is_file())
}

/// The assembler of `RINGMEM_PTXAS`, else the first in `PATH` or Python's site-packages.
pub fn find() -> Result<PathBuf, Failure> {
    if let Some(named) = std::env::var_os("RINGMEM_PTXAS").filter(|named| !named.is_empty()) {
        return Ok(named.into());
    }
    let on_path = std::env::var_os("PATH").into_iter().flat_map(|path| std::env::split_paths(&path).collect::<Vec<_>>());
    let packages = "import site; print('\\n'.join([*site.getsitepackages(), site.getusersitepackages()]))";
    let packages = crate::answer(Path::new("python3"), &["-c", packages]).unwrap_or_default();
    let in_packages = packages.lines().filter_map(|place| std::fs::read_dir(Path::new(place).join("nvidia")).ok());
    let in_packages = in_packages.flatten().flatten().map(|package| package.path().join("bin"));
    on_path.chain(in_packages).map(|directory| directory.join("ptxas")).find(|program| program.is_file()).ok_or_else(|| {
        "no ptxas in RINGMEM_PTXAS, PATH or Python's site-packages: `pip install 'nvidia-cuda-nvcc==13.*'` brings one".into()
    })
}

fn parse(said: &str) -> Result<BTreeMap<String, Properties>, Failure> {
    let mut functions = BTreeMap::<String, Properties>::new();
    let mut current = None;
    for line in said.lines() {
        if let Some((_, name)) = line.split_once("Function properties for ") {
            current = Some(functions.entry(name.trim().to_owned()).or_default());
        } else if let Some(properties) = &mut current {
            if line.contains("bytes stack frame") {
                let [stack, stores, loads] = numbers(line)[..] else {
                    return Err(format!("ptxas says something new: {line}").into());
                };
                (properties.stack, properties.spill_stores, properties.spill_loads) = (stack, stores, loads);
            } else if let Some((_, used)) = line.split_once("Used ") {
                properties.registers = numbers(used).first().copied();
            }
        }
    }
    Ok(functions)
}

fn numbers(line: &str) -> Vec<u32> {
    line.split_whitespace().filter_map(|word| word.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    // ptxas 13, `-v --gpu-name sm_75`.
    const SAID: &str = "\
ptxas info    : 8 bytes gmem, 8 bytes cmem[4]
ptxas info    : Compiling entry function 'planted' for 'sm_75'
ptxas info    : Function properties for planted
    32 bytes stack frame, 4 bytes spill stores, 8 bytes spill loads
ptxas info    : Used 18 registers, used 0 barriers, 32 bytes cumulative stack size, 368 bytes cmem[0]
ptxas info    : Compile time = 3.267 ms
ptxas info    : Function properties for helper
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
";

    #[test]
    fn parse_returns_properties_of_each_function() {
        let functions = parse(SAID).unwrap();
        assert_eq!(functions["planted"], Properties { registers: Some(18), stack: 32, spill_stores: 4, spill_loads: 8 });
        assert_eq!(functions["helper"], Properties::default());
        assert_eq!(functions.len(), 2);
    }

    #[test]
    fn a_changed_report_is_an_error() {
        assert!(parse("Function properties for a\n    some bytes stack frame\n").is_err());
    }
}
