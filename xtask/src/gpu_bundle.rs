//! `cargo xtask gpu-bundle`: builds a self-contained set of tests for a machine with a GPU and a driver. `--try` also runs it on the driver double.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::driver_double::library;
use crate::{Failure, OF_TESTS, answer, artifacts, built, cargo, driver_double, execute, image, ptxas, results, root, run_with};

const MOST: u64 = 60 << 20;
const TEXTS: [&str; 6] = ["run.sh", "twin.cu", "pools.py", "torch_allocators.py", "torch_tensors.py", "waits.py"];

pub fn run() -> Result<(), Failure> {
    let folder = make("gpu-bundle", &optimised()?)?;
    println!("copy it to a machine with a GPU and run run.sh there: {}", folder.display());
    Ok(())
}

/// The program, the suite and the C library.
type Programs = [PathBuf; 3];

fn optimised() -> Result<Programs, Failure> {
    let programs = ["build", "--release", "--package", "ringmem", "--package", "ringmem-cli", "--features", "ringmem/cuda"];
    execute(cargo().args(programs).args(["--bin", "ringmem", "--example", "gpu_suite", "--target-dir"]).arg(built()))?;
    // Of one kind: otherwise it is not optimised across crates.
    let library = ["rustc", "--release", "--package", "ringmem-capi", "--lib", "--crate-type", "cdylib", "--target-dir"];
    execute(cargo().args(library).arg(built()))?;
    Ok(["ringmem", "examples/gpu_suite", "libringmem_capi.so"].map(|name| built().join("release").join(name)))
}

/// As the tests build them: after these, nothing is compiled.
fn unoptimised() -> Result<Programs, Failure> {
    let programs = artifacts(&OF_TESTS)?;
    let program = |name: &str| {
        let of_name = programs.iter().filter(|artifact| artifact["target"]["name"] == name);
        let path = of_name.filter_map(|artifact| artifact["executable"].as_str()).next();
        path.map(PathBuf::from).ok_or_else(|| format!("cargo names no program {name}"))
    };
    let libraries = artifacts(&["test", "--quiet", "--package", "ringmem-capi", "--no-run"])?;
    Ok([program("ringmem")?, program("gpu_suite")?, library(&libraries, "ringmem_capi", "so")?])
}

/// Makes the bundle in a folder of that name, and returns its path.
fn make(name: &str, programs: &Programs) -> Result<PathBuf, Failure> {
    let folder = built().join(name);
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    fs::create_dir_all(&folder)?;
    for program in programs {
        let copy = copy(program, &folder)?;
        // A profile that strips would compile everything again.
        answer(Path::new("strip"), &[copy])?;
    }
    for text in TEXTS {
        copy(&root().join("examples/gpu_suite").join(text), &folder)?;
    }
    copy(&image::path(), &folder)?;
    fs::write(folder.join("commit.txt"), commit() + "\n")?;
    let bytes = fs::read_dir(&folder)?.map(|entry| Ok(entry?.metadata()?.len())).sum::<Result<u64, std::io::Error>>()?;
    if bytes > MOST {
        return Err(format!("{}: {bytes} bytes, more than {MOST}", folder.display()).into());
    }
    println!("{}, {} KiB", folder.display(), bytes >> 10);
    Ok(folder)
}

/// The commit of this tree, which `run.sh` writes into its results; `-dirty` behind it if files differ.
fn commit() -> String {
    let output = Command::new("git").args(["describe", "--always", "--dirty"]).current_dir(root()).output();
    let described = output.ok().filter(|output| output.status.success()).and_then(|output| String::from_utf8(output.stdout).ok());
    described.map_or_else(|| "unknown".to_owned(), |described| described.trim().to_owned())
}

/// Parts that need no more than a driver: all but those of other programs, such as nvcc, PyTorch and a sanitizer.
const PARTS: [&str; 8] = ["probe", "light", "bench", "kernel", "conformance", "faults", "bench-rest", "soak"];

/// Calls of a real driver that may wait for running kernels.
const WAITING: &str =
    "cuStreamCreate,cuStreamDestroy_v2,cuModuleLoadDataEx,cuMemFreeHost,cuMemPoolCreate,cuMemAllocManaged,cuMemHostRegister_v2";

/// Makes the bundle and runs it where there is no GPU: without a driver, then on the driver double, whose kernels are the host functions, then the PTX.
pub fn try_out(is_optimised: bool) -> Result<(), Failure> {
    let bundle = if is_optimised { make("gpu-bundle", &optimised()?)? } else { make("gpu-bundle-unoptimised", &unoptimised()?)? };
    let out = built().join("gpu-bundle-out");
    let (suite, script, results) = (bundle.join("gpu_suite"), bundle.join("run.sh"), out.join("results.json"));
    compile_twin(&bundle)?;
    if out.exists() {
        fs::remove_dir_all(&out)?;
    }
    if Command::new(&suite).arg("probe").output()?.status.success() {
        println!("there is a driver here: the run without one is left out");
    } else {
        // Each part is skipped for a reason.
        run_with(Command::new(&script).arg("--all").arg(&out), &[3])?;
        results::gpu(&results, &[])?;
    }
    let libraries = built().join("gpu-bundle-libraries");
    driver_double::link(&libraries)?;
    let on_double = |program: &Path, settings: &[(&str, &str)]| {
        let mut command = Command::new(program);
        // Little memory: that of the double is this machine's.
        command.env("LD_LIBRARY_PATH", &libraries).env("RINGMEM_DOUBLE_MEMORY", (256 << 20).to_string()).envs(settings.iter().copied());
        command
    };
    // Not the limits of a GPU, which a machine under load exceeds. What needs a tool or a module that is not here is skipped.
    run_with(on_double(&script, &[]).args(["--all", "--quick", "--limit", "600"]).arg(&out), &[0, 3])?;
    results::gpu(&results, &PARTS)?;
    // Each call that a real driver may let wait for kernels waits for them: no part may need it under a kernel. Of the part `kernel` one fact measures the
    // allocation of pinned memory.
    for (part, more) in [("kernel", ""), ("conformance", ",cuMemHostAlloc"), ("faults", ",cuMemHostAlloc"), ("soak", ",cuMemHostAlloc")] {
        execute(on_double(&suite, &[("RINGMEM_DOUBLE_WAITS", &format!("{WAITING}{more}"))]).args([part, "--quick"]))?;
    }
    // As many queues as a GPU has: streams share them.
    for part in ["kernel", "conformance", "faults", "soak"] {
        execute(on_double(&suite, &[("RINGMEM_DOUBLE_QUEUES", "32")]).args([part, "--quick"]))?;
    }
    // Launches that wait for their kernels, as under a sanitizer.
    execute(on_double(&suite, &[("CUDA_LAUNCH_BLOCKING", "1")]).arg("short"))?;
    // As in a whole run, whose limit it must keep.
    execute(on_double(&script, &[]).args(["--part", "soak", "--limit", "20"]).arg(&out))?;
    // Far slower than a GPU. The bench is about time, of which this says nothing.
    for part in ["waits", "waits-rest", "conformance", "kernel", "faults", "soak"] {
        let mut command = on_double(&script, &[("RINGMEM_DOUBLE_KERNELS", "ptx")]);
        execute(command.args(["--quick", "--limit", "600", "--part", part]).arg(&out))?;
    }
    Ok(())
}

/// The C++ twin, where nvcc and its headers are in the assembler's folder.
fn compile_twin(bundle: &Path) -> Result<(), Failure> {
    let folder = ptxas::find().ok().and_then(|ptxas| Some(ptxas.parent()?.to_owned())).unwrap_or_default();
    let compiler = folder.join("nvcc");
    if !compiler.is_file() || !folder.join("../include/cuda_runtime.h").is_file() {
        println!("the C++ twin is not compiled: no nvcc with its headers in the folder of ptxas");
        return Ok(());
    }
    let options = ["-O3", "-std=c++17", "-arch=sm_90", "-c", "-o"];
    execute(Command::new(compiler).args(options).arg(built().join("twin.o")).arg(bundle.join("twin.cu")))
}

fn copy(file: &Path, folder: &Path) -> Result<PathBuf, Failure> {
    let copy = folder.join(file.file_name().ok_or("a file has a name")?);
    fs::copy(file, &copy).map_err(|error| format!("{}: {error}", file.display()))?;
    Ok(copy)
}
