//! A user's package, `examples/workspace`. Tests work offline on copies.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::{env, fs};

fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn write(path: PathBuf, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

fn copy_files(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let (path, copy) = (entry.path(), to.join(entry.file_name()));
        if path.is_file() {
            write(copy, &fs::read_to_string(&path).unwrap());
        } else if entry.file_name() != "target" {
            copy_files(&path, &copy);
        }
    }
}

fn package(name: &str) -> PathBuf {
    let copy = Path::new(env!("CARGO_TARGET_TMPDIR")).join("user_workspace").join(name);
    let _ = fs::remove_dir_all(&copy);
    copy_files(&repository().join("examples/workspace"), &copy);
    let manifest = fs::read_to_string(copy.join("Cargo.toml")).unwrap();
    let manifest = manifest.replace("path = \"../..", &format!("path = \"{}", repository().display()));
    write(copy.join("Cargo.toml"), &(manifest + "\n[workspace]\n"));
    fs::copy(repository().join("Cargo.lock"), copy.join("Cargo.lock")).unwrap();
    copy
}

fn cargo(workspace: &Path, arguments: &[&str]) -> Output {
    command(workspace, arguments).env("RINGMEM_RUSTC", "/none").output().unwrap()
}

fn command(workspace: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| env!("CARGO").into()));
    command
        .args(arguments)
        .arg("--offline")
        .current_dir(workspace)
        // Reuses this build's dependencies: same directory and profile.
        .env("CARGO_TARGET_DIR", Path::new(env!("CARGO_TARGET_TMPDIR")).join(".."))
        .env("CARGO_PROFILE_DEV_DEBUG", env::var("CARGO_PROFILE_DEV_DEBUG").unwrap_or_else(|_| "line-tables-only".into()))
        .env_remove("RUSTFLAGS")
        .env_remove("CARGO_ENCODED_RUSTFLAGS");
    command
}

fn replaced(text: &str, from: &str, to: &str) -> String {
    assert_eq!(text.matches(from).count(), 1, "`{from}` in\n{text}");
    text.replacen(from, to, 1)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

const FALLEN: &str = "Particle { position: [0.0, 1.0, 2.0], velocity: [0.5, 0.0, -21.62] }";
const STEPPED: &str = "Particle { position: [0.5, 1.0, 0.0], velocity: [0.5, 0.0, -2.0] }";

#[test]
fn the_example_and_its_test_run() {
    let package = package("unchanged");
    let output = cargo(&package, &["run", "--quiet"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(text(&output.stdout), FALLEN.to_owned() + "\n" + STEPPED + "\n");
    assert!(text(&output.stderr).lines().all(|line| line.starts_with("warning: particles@")), "{}", text(&output.stderr));
    // A quiet cargo prints no warnings of build scripts.
    let output = cargo(&package, &["build"]);
    for reason in ["no PTX of particles", "RINGMEM_RUSTC: /none: No such file or directory", "install Rust 1.95 or later"] {
        assert!(text(&output.stderr).contains(reason), "`{reason}` in\n{}", text(&output.stderr));
    }
    let output = cargo(&package, &["test", "--quiet"]);
    assert!(output.status.success() && text(&output.stdout).contains("1 passed"), "{}", text(&output.stderr));
}

/// Lanes of all warps of a block exchange values; those whose numbers the message has panic.
const SHARES: &str = "
pub struct Shares;

impl<M: Machine, L: Lanes> Handler<M, L> for Shares {
    type Input = Particle;
    type Output = Particle;

    unsafe fn answer(&mut self, lanes: &L, batch: &mut Batch<'_, '_, Particle, Particle, M>) -> u64 {
        for index in 0..batch.len() {
            // SAFETY: below the length.
            let now = unsafe { batch.message(index, |now| *now) };
            let lane = lanes.lane() as f32;
            let sum = lanes.sum(u64::from(lanes.lane()) + 1) as f32;
            let first = lanes.broadcast(u64::from(lanes.lane()) + 7) as f32;
            assert!(lane < now.velocity[1] || lane >= now.velocity[2]);
            let votes = [lanes.barrier_and(true), lanes.barrier_and(lane != 0.0), lanes.barrier_and(lane != 70.0)];
            if lane == 95.0 {
                let votes = votes.iter().filter(|all| **all).count() as f32;
                // SAFETY: below the length; only this lane writes it.
                unsafe { batch.exchange(index, |_, then| *then = Particle { position: [sum, first, votes], ..now }) };
            }
        }
        1
    }
}
";

/// Each setting alone makes PTX that a driver refuses, or keeps the builder from its end.
const PROFILES: &str = "
[profile.release]
debug = true
opt-level = 0
lto = \"off\"
codegen-units = 16
overflow-checks = true
debug-assertions = true
incremental = true
strip = \"debuginfo\"
split-debuginfo = \"packed\"
rpath = true

[profile.release.build-override]
debug = \"line-tables-only\"

[profile.release.package.\"*\"]
debug = \"line-tables-only\"
opt-level = 0
codegen-units = 7

[profile.release.package.ringmem-layouts]
debug = 2
overflow-checks = true
debug-assertions = true
";

const CONFIGURATION: &str = "
[build]
dep-info-basedir = \"/\"

[target.nvptx64-nvidia-cuda]
linker = \"/none\"
rustflags = [\"-C\", \"debuginfo=2\"]

[profile.release]
debug = 2
";

#[test]
fn the_example_kernel_compiles_for_a_gpu_in_a_workspace_with_its_own_settings() {
    let package = package("compiled");
    // The name of a dependency, and a library with another name than its package.
    let manifest = fs::read_to_string(package.join("Cargo.toml")).unwrap();
    let manifest = replaced(&manifest, "name = \"particles\"", "name = \"libc\"");
    let manifest = replaced(&manifest, "\n[dependencies]\n", "\n[lib]\nname = \"particles\"\n\n[dependencies]\n");
    write(package.join("Cargo.toml"), &(manifest + PROFILES));
    write(package.join(".cargo/config.toml"), CONFIGURATION);
    let out = package.join("out");
    let build = fs::read_to_string(package.join("build.rs")).unwrap();
    let build = replaced(&build, "kernels.ptx", "step.ptx");
    let copied = format!(
        "?; std::fs::copy(std::path::Path::new(&std::env::var_os(\"OUT_DIR\").unwrap()).join(\"step.ptx\"), {out:?}).ok(); Ok(()) }} //"
    );
    write(package.join("build.rs"), &(replaced(&build, " // for the GPU", &copied).replace("\n}\n", "\n")));
    let kernels = fs::read_to_string(package.join("src/lib.rs")).unwrap();
    let kernels = replaced(&kernels, "#![no_std]\n", "#![no_std]\n#![deny(warnings)]\n");
    let absent = "kernels! {\n    #[cfg(any())]\n    pub unsafe grid fn absent(words: Missing) = missing;\n\n";
    let kernels = replaced(&kernels, "kernels! {\n", absent);
    let panics = "assert!(now.velocity[1] < 1000.0);\n        *then = *now;";
    let kernels = replaced(&kernels, "particle.velocity[2] -=", "assert!(seconds < 1e6);\n        particle.velocity[2] -=");
    // A value of several words, and an element without bytes.
    let sum = "    pub grid fn sum(none: &[u8; 0], numbers: [u64; 3], y: &mut u64) {\n        \
               let _ = none;\n        *y += numbers[0] + numbers[1] * numbers[2];\n    }\n\n    /// Accelerates";
    let kernels = replaced(&kernels, "    /// Accelerates", sum);
    let kernels =
        replaced(&kernels, "    /// Accelerates", "    pub block fn shares(Particle) -> Particle = Shares;\n\n    /// Accelerates");
    let kernels = replaced(&kernels, "ringmem_kernels::{", "ringmem_kernels::{Batch, Handler, Lanes, Machine, ") + SHARES;
    write(package.join("src/lib.rs"), &replaced(&kernels, "*then = *now;", panics));
    let output = command(&package, &["build", "-vv", "--lib"]).output().unwrap();
    let said = text(&output.stdout) + &text(&output.stderr);
    assert!(output.status.success(), "{said}");
    let ptx = fs::read_to_string(&out).unwrap();
    if ptx.is_empty() {
        assert!(said.contains("no compiler with the source of core") && said.contains("apt-get install rustc-web"), "{said}");
        eprintln!("not compiled for a GPU: there is no compiler for one here");
        return;
    }
    assert!(ptx.contains(".visible .entry step(") && ptx.contains(".visible .global .align 8 .b8 RINGMEM_ABI[8]"), "{ptx}");
    assert_eq!(ptx.matches(".entry ").count(), 4);
    let manifest = fs::read_to_string(package.join("Cargo.toml")).unwrap();
    write(package.join("Cargo.toml"), &replaced(&manifest, "features = [\"std\"]", "features = [\"cuda\"]"));
    let main = fs::read_to_string(package.join("src/main.rs")).unwrap();
    let main = replaced(&main, "backend::host::HostBackend", "backend::cuda::CudaBackend");
    let main = replaced(&main, "HostBackend::builder().build()?", "CudaBackend::open()?");
    // Kernels of the program, which no build script compiles.
    let own = "mod own {\n    ringmem_kernels::kernels! {\n        pub grid fn own(y: &mut u32) {\n            *y += 1;\n        }\n    }\n}\n\nfn main(";
    let main = replaced(&main, "fn main(", own);
    let two = "
    let mut other = Channel::open(&backend, 0, STEP)?;
    channel.send(Particle { position: [0.0; 3], velocity: [0.0, 1001.0, 0.0] })?;
    println!(\"{}\", channel.recv().unwrap_err());
    other.send(Particle { position: [0.0; 3], velocity: [1.0; 3] })?;
    println!(\"{:?}\", other.recv()?.position);
    drop((channel, other));
    let stream = Stream::new(&backend, 0)?;
    let none = GpuBuffer::from_slice(Device::new(&backend, 0), &[[]; 500])?;
    let mut sums = GpuBuffer::from_slice(Device::new(&backend, 0), &[1; 500])?;
    stream.run(particles::SUM, (&none, [2, 3, 4], &mut sums))?;
    println!(\"{:?}\", sums.to_vec()?.iter().sum::<u64>());
    for (exits, count) in [([99.0, 99.0], 40), ([40.0, 41.0], 1), ([64.0, 96.0], 1)] {
        let mut block = Channel::builder(particles::SHARES).warps(3).open(&backend, 0)?;
        for _ in 0..count {
            let _ = block.try_send(Particle { position: [1.0, 2.0, 3.0], velocity: [0.0, exits[0], exits[1]] });
        }
        let answers: Vec<_> = block.iter().take(count).map(|answer| answer.position).collect();
        println!(\"{}, {:?}, {:?}\", answers.len(), answers.iter().all(|answer| *answer == answers[0]).then(|| answers.first()), block.close().map(|end| end.control.processed).map_err(|error| error.to_string()));
    }
    let mut sums_of_words = GpuBuffer::from_slice(Device::new(&backend, 0), &[1_u32; 5])?;
    println!(\"{} bytes of PTX: {}\", own::IMAGE.ptx.len(), stream.run(own::OWN, (&mut sums_of_words,)).unwrap_err());
    println!(\"{}\", stream.run(FALL, (&mut particles, 1e6)).unwrap_err());
    std::process::exit(0) // the context has failed";
    write(package.join("src/main.rs"), &replaced(&main, "\n    Ok(())", two));
    let driver = ringmem_driver_double::libraries().expect("the double is built");
    let output =
        command(&package, &["run", "--quiet"]).env("LD_LIBRARY_PATH", driver).env("RINGMEM_DOUBLE_KERNELS", "ptx").output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let said = text(&output.stdout);
    let [fallen, first, panicked, second, sums, whole, lane, warp, none, trapped] = said.lines().collect::<Vec<_>>()[..] else {
        panic!("{said}")
    };
    assert_eq!((fallen, first, sums), (FALLEN, STEPPED, "7500"));
    assert!(none.starts_with("0 bytes of PTX: an image without PTX (its kernels are compiled for the host alone"), "{none}");
    assert!(trapped.contains("CUDA_ERROR_LAUNCH_FAILED"), "{trapped}");
    assert!(panicked.contains("Faulted") && panicked.ends_with(": a panic (1 fault)"), "{panicked}");
    assert_eq!(second, "[1.0, 1.0, 1.0]");
    // The sum of 1 to 96, lane 0's value, and one of three votes.
    assert_eq!(whole, "40, Some(Some([4656.0, 7.0, 1.0])), Ok(40)");
    assert!([lane, warp].iter().all(|said| said.starts_with("0, Some(None), Err(") && said.contains(": a panic (")), "{lane}\n{warp}");
    let stderr = text(&output.stderr);
    let mut faults = stderr.lines().filter(|line| line.contains("PTX line"));
    assert!(faults.clone().count() > 0 && faults.all(|line| line.contains("kernel `fall`") && line.contains("trap")), "{stderr}");
}

#[test]
fn an_error_of_the_device_build_is_one_of_the_source() {
    let package = package("refused");
    let library = fs::read_to_string(package.join("src/lib.rs")).unwrap();
    let of_device = "#[cfg(target_os = \"cuda\")]\nconst NUMBER: u64 = \"for the device\";\n";
    let of_both = "const NUMBER: u64 = \"for both\";\n";
    let mut has_compiler = true;
    for (added, is_the_hosts) in [(of_device, false), (of_both, true)] {
        write(package.join("src/lib.rs"), &(library.clone() + added));
        let output = command(&package, &["build", "--lib"]).output().unwrap();
        let said = text(&output.stderr);
        has_compiler &= !said.contains("no compiler with the source of core");
        let place = format!("--> src/lib.rs:{}", library.lines().count() + added.lines().count());
        if has_compiler {
            assert!(
                said.contains("the kernels do not compile for a GPU:") && said.contains("mismatched types") && said.contains(&place),
                "{said}"
            );
            assert!(!output.status.success() && !said.contains("custom build command"), "{said}");
        }
        // The device's are indented.
        let is_shown_first = said.lines().any(|line| line.starts_with("error[E0308]"));
        assert_eq!(is_shown_first, is_the_hosts, "{said}");
        assert!(!is_the_hosts || said.matches(&place).count() > usize::from(has_compiler), "{said}");
    }
    // Mended: the build script runs again.
    write(package.join("src/lib.rs"), &library);
    let output = command(&package, &["build", "--lib"]).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
}

/// A change of the struct, and lines of the other side's error. `*` is a hash.
const CHANGES: [(&str, &str, &str, &[&str]); 6] = [
    (
        "type",
        "pub velocity: [f32; 3]",
        "pub velocity: [i32; 3]",
        &["`Particle`", "  expected    12  velocity: [f32; 3], 12 bytes, type *", "  got         12  velocity: [i32; 3], 12 bytes, type *"],
    ),
    (
        "order",
        "    pub position: [f32; 3],\n    pub velocity: [f32; 3],\n",
        "    pub velocity: [f32; 3],\n    pub position: [f32; 3],\n",
        &["  expected     0  position: [f32; 3], 12 bytes, type *", "  got          0  velocity: [f32; 3], 12 bytes, type *"],
    ),
    (
        "field-added",
        "    pub velocity: [f32; 3],\n",
        "    pub velocity: [f32; 3],\n    pub mass: f32,\n",
        &["  expected  size 24, align 4", "  got       size 28, align 4", "  got         24  mass: f32, 4 bytes, type *"],
    ),
    ("field-removed", "    pub velocity: [f32; 3],\n", "", &["  expected    12  velocity: [f32; 3], 12 bytes, type *"]),
    ("alignment", "#[repr(C)]", "#[repr(C, align(8))]", &["  expected  size 24, align 4", "  got       size 24, align 8"]),
    ("name", "Particle", "Planet", &["`Particle`", "  got       nothing of that name", "`Planet`", "  expected  nothing of that name"]),
];

fn pattern(line: &str) -> String {
    match line.split_once("type 0x") {
        Some((before, hash)) if hash.len() == 16 => format!("{before}type *"),
        _ => line.to_owned(),
    }
}

#[test]
fn loading_kernels_of_a_changed_struct_prints_both_layouts() {
    let judge = Path::new(env!("CARGO_TARGET_TMPDIR")).join("user_workspace/judge");
    let _ = fs::remove_dir_all(&judge);
    let mut manifest = format!(
        "[package]\nname = \"judge\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n[workspace]\n\n[dependencies]\n\
         ringmem = {{ path = {:?}, features = [\"std\"] }}\n",
        repository()
    );
    let mut source = String::from(
        "use ringmem::{Abi, Image, backend::host::HostBackend, stream::Module};\n\
         fn say(case: &str, expected: Abi, image: Image) {\n    \
             let backend = HostBackend::builder().device_memory(1 << 16).build().unwrap();\n    \
             println!(\"case {case}\");\n    \
             if let Err(error) = Module::load(&backend, &image, &expected) { println!(\"{error}\"); }\n\
         }\nfn main() {\n    say(\"nothing\", particles::ABI, particles::IMAGE);\n",
    );
    let changes = CHANGES.iter().map(|&(case, from, to, _)| (format!("particles-{case}"), case, from, to));
    for (name, case, from, to) in changes.chain([("particles".to_owned(), "", "", "")]) {
        let copy = package(&name);
        let manifest_of_copy = fs::read_to_string(copy.join("Cargo.toml")).unwrap();
        write(
            copy.join("Cargo.toml"),
            &manifest_of_copy.replace("\n[workspace]\n", "").replace("name = \"particles\"", &format!("name = {name:?}")),
        );
        fs::remove_file(copy.join("src/main.rs")).unwrap();
        writeln!(manifest, "{name} = {{ path = {copy:?} }}").unwrap();
        if case.is_empty() {
            continue;
        }
        let library = fs::read_to_string(copy.join("src/lib.rs")).unwrap();
        assert!(library.contains(from), "{case}: `{from}`");
        let (before, _) = library.split_once("        *then").unwrap();
        write(copy.join("src/lib.rs"), &(before.replace(from, to) + "        *then = *now;\n    }\n}\n"));
        let changed = name.replace('-', "_");
        writeln!(source, "    say({case:?}, particles::ABI, {changed}::IMAGE);").unwrap();
        writeln!(source, "    say(\"{case}, the other way\", {changed}::ABI, particles::IMAGE);").unwrap();
    }
    write(judge.join("Cargo.toml"), &manifest);
    write(judge.join("src/main.rs"), &(source + "}\n"));
    fs::copy(repository().join("Cargo.lock"), judge.join("Cargo.lock")).unwrap();

    let output = cargo(&judge, &["run", "--quiet"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let said = text(&output.stdout);
    assert!(said.starts_with("case nothing\ncase "), "an unchanged image is loaded:\n{said}");
    let about = |case: &str| -> Vec<String> {
        let lines = said.lines().skip_while(|line| *line != format!("case {case}")).skip(1);
        lines.take_while(|line| !line.starts_with("case ")).map(pattern).collect()
    };
    for (case, _, _, expected) in CHANGES {
        let lines = about(case);
        for line in expected {
            assert!(lines.iter().any(|said| said == line), "{case}: `{line}` is missing:\n{}", lines.join("\n"));
        }
        let other = about(&format!("{case}, the other way"));
        assert!(other[0].starts_with("the image was compiled with other layouts: ABI 0x"), "{case}: {other:?}");
        assert_eq!(other.len(), lines.len(), "{case}:\n{}\n\n{}", lines.join("\n"), other.join("\n"));
    }
}

#[test]
fn the_manifest_of_the_readme_names_existing_features() {
    let readme = fs::read_to_string(repository().join("README.md")).unwrap();
    let (_, block) = readme.split_once("```toml\n").expect("a manifest");
    let (block, _) = block.split_once("```").unwrap();
    let mut seen = 0;
    for line in block.lines().filter(|line| line.starts_with("ringmem")) {
        let (_, path) = line.split_once("path = \"../ringmem").unwrap_or_else(|| panic!("{line}"));
        let folder = repository().join(path.split_once('"').unwrap().0.trim_start_matches('/'));
        let manifest = fs::read_to_string(folder.join("Cargo.toml")).unwrap();
        assert!(manifest.contains(&format!("name = {:?}\n", line.split(' ').next().unwrap())), "{line}");
        let features = line.split_once("features = [").map_or("", |(_, list)| list.split_once(']').unwrap().0);
        for feature in features.split(", ").filter(|feature| !feature.is_empty()) {
            assert!(manifest.contains(&format!("\n{} = [", feature.trim_matches('"'))), "{feature}: {line}");
            seen += 1;
        }
    }
    assert!(seen >= 2, "{block}");
}
