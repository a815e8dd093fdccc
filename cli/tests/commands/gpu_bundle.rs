//! The bundle of `cargo xtask gpu-bundle`, on the driver double and without a driver.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use ringmem::backend::cuda::Driver;
use serde_json::Value;
use tempfile::TempDir;

use crate::{example, rerun_or_skip};

const LIMIT: Duration = Duration::from_secs(60);

const FIRST: [&str; 6] = ["probe", "light", "waits", "twin", "bench", "kernel"];
const REST: [&str; 12] = [
    "conformance",
    "waits-rest",
    "bench-rest",
    "launches",
    "product",
    "pools",
    "torch",
    "soak",
    "faults",
    "memcheck",
    "synccheck",
    "initcheck",
];

fn all_parts() -> Vec<&'static str> {
    FIRST.into_iter().chain(REST).collect()
}

struct Bundle {
    folder: TempDir,
    tools: TempDir,
    libraries: TempDir,
}

impl Bundle {
    fn new() -> Self {
        let bundle = Self { folder: folder(), tools: folder(), libraries: folder() };
        for text in ["run.sh", "twin.cu", "pools.py", "torch_allocators.py", "torch_tensors.py", "waits.py"] {
            let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/gpu_suite").join(text);
            fs::copy(from, bundle.folder.path().join(text)).expect("a text");
        }
        bundle
    }

    fn with_programs(self) -> Self {
        let at = |name: &str| self.folder.path().join(name);
        symlink(env!("CARGO_BIN_EXE_ringmem"), at("ringmem")).expect("a link");
        symlink(example::program("gpu_suite"), at("gpu_suite")).expect("a link");
        self
    }

    fn with_double(self) -> Self {
        let double = ringmem_driver_double::library().expect("the double is built");
        for name in ["libcuda.so", "libcuda.so.1"] {
            symlink(double, self.libraries.path().join(name)).expect("a link");
        }
        self
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments, &self.out()).output().expect("a shell")
    }

    fn command(&self, arguments: &[&str], out: &Path) -> Command {
        let mut path = vec![self.tools.path().to_owned()];
        path.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()));
        // The test runner may ignore signals that the tests send.
        let mut command = Command::new("env");
        command.args(["--default-signal=INT,HUP,TERM", "sh"]).arg(self.folder.path().join("run.sh")).args(arguments).arg(out);
        command.env("PATH", std::env::join_paths(path).expect("a path")).env("LD_LIBRARY_PATH", self.libraries.path());
        command.env("RINGMEM_DOUBLE_MEMORY", (256_u64 << 20).to_string()).env("RINGMEM_DOUBLE_LEAKS", "1").env_remove("RINGMEM_VISIBILITY");
        command
    }

    fn out(&self) -> PathBuf {
        self.folder.path().join("an out")
    }

    fn all(&self) -> Value {
        serde_json::from_slice(&fs::read(self.out().join("results.json")).expect("results")).expect("JSON")
    }

    fn log(&self, name: &str) -> Option<String> {
        let output = Command::new("tar").arg("xzOf").arg(self.out().join("logs.tgz")).arg(format!("./{name}")).output().expect("tar");
        output.status.success().then(|| text(&output.stdout))
    }

    fn results(&self) -> Vec<Value> {
        self.all()["parts"].as_array().expect("parts").clone()
    }
}

fn folder() -> TempDir {
    tempfile::Builder::new().prefix("a folder ").tempdir().expect("a folder")
}

fn script(folder: &Path, name: &str, text: &str) {
    let path = folder.join(name);
    fs::write(&path, format!("#!/bin/sh\n{text}\n")).expect("a script");
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("a mode");
}

fn part<'a>(parts: &'a [Value], name: &str) -> &'a Value {
    parts.iter().find(|part| part["part"] == name).unwrap_or_else(|| panic!("no {name} in {parts:?}"))
}

fn names(parts: &[Value]) -> Vec<&str> {
    parts.iter().filter_map(|part| part["part"].as_str()).collect()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn the_two_runs_end_within_220_and_490_seconds() {
    let bundle = Bundle::new();
    let listed = |arguments: &[&str]| {
        let output = Command::new("sh").arg(bundle.folder.path().join("run.sh")).args(arguments).arg("--parts").output().expect("a shell");
        let said = text(&output.stdout);
        let part = |line: &str| line.split_once(' ').map(|(name, limit)| (name.to_owned(), limit.parse::<u64>().expect("seconds")));
        said.lines().map(|line| part(line).expect("a name and a limit")).collect::<Vec<_>>()
    };
    let names = |parts: &[(String, u64)]| parts.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
    // Two to end a part, two to read the clocks.
    let seconds = |parts: &[(String, u64)]| parts.iter().map(|(_, limit)| limit + 4).sum::<u64>();
    let (first, rest) = (listed(&[]), listed(&["--rest"]));
    assert_eq!((names(&first), names(&rest)), (FIRST.map(str::to_owned).to_vec(), REST.map(str::to_owned).to_vec()));
    assert!(seconds(&first) < 220 && seconds(&rest) < 490, "{} and {}", seconds(&first), seconds(&rest));
    assert_eq!(listed(&["--all"]), [first, rest].concat());
}

#[test]
fn without_a_driver_every_part_is_skipped_with_a_reason() {
    if Driver::load().is_ok() {
        rerun_or_skip::skipped("a driver is installed");
        return;
    }
    let bundle = Bundle::new().with_programs();
    let output = bundle.run(&["--all"]);
    let said = text(&output.stdout);
    assert_eq!(output.status.code(), Some(3), "{said}");
    let parts = bundle.results();
    let all = all_parts();
    assert_eq!(names(&parts), all);
    for part in &parts {
        assert_eq!((&part["result"], &part["exit"]), (&"SKIPPED".into(), &3.into()), "{part}");
        let reason = part["reason"].as_str().expect("a reason");
        assert!(reason.contains("no CUDA driver") || reason.starts_with("no "), "{part}");
    }
    let results = bundle.all();
    assert_eq!(results["complete"], true);
    assert_eq!((&results["passed"], &results["skipped"], &results["failed"]), (&false.into(), &all.len().into(), &0.into()));
    let table: Vec<&str> = said.lines().collect();
    let is_skipped = |(line, name): (&&str, &&str)| line.split(' ').next() == Some(name) && line.contains("SKIPPED");
    assert!(table.len() == all.len() + 1 && table.iter().zip(&all).all(is_skipped), "{said}");
}

#[test]
fn on_the_double_every_runnable_part_passes() {
    let bundle = Bundle::new().with_programs().with_double();
    script(
        bundle.tools.path(),
        "compute-sanitizer",
        "[ \"$1 $3 $5\" = '--tool --error-exitcode --log-file' ] || exit 8\necho \"$2: nothing\" > \"$6\"\n[ $2 != memcheck ] || { [ \"$7 $8\" = '--report-api-errors no' ] && shift 2; } || exit 7\nshift 6\nexec \"$@\"",
    );
    let row = r#"{"bench":"twin","workload":"messages","subject":"C++ twin","unit":"ns/message","median":5.5,"ratio":null,"aim":null}"#;
    let twin = format!("#!/bin/sh\\necho \\$1 >&2\\necho '{}'\\n", row.replace('"', "\\\""));
    script(bundle.tools.path(), "nvcc", &format!("sleep 1; printf \"{twin}\" > \"$5\" && chmod 755 \"$5\""));
    script(bundle.tools.path(), "nvidia-smi", "[ $1 = -q ] || echo '1980, 2619, 5, 16, 33, 70.1'");
    script(bundle.tools.path(), "python3", "[ \"$1\" = -c ] || { echo 'neither PyTorch nor CuPy works here' >&2; exit 3; }");
    let output = bundle.run(&["--all", "--quick", "--limit", "900"]);
    let (said, log) = (text(&output.stdout), text(&output.stderr));
    let parts = bundle.results();
    let all = all_parts();
    assert_eq!(names(&parts), all);
    for name in all.iter().copied().filter(|name| !["pools", "torch", "waits", "waits-rest"].contains(name)) {
        let part = part(&parts, name);
        let log = || bundle.log(&format!("{name}.log")).unwrap_or_default();
        assert_eq!((&part["result"], &part["exit"]), (&"passed".into(), &0.into()), "{part}\n{}", log());
        assert!(part["out"].as_array().is_some_and(|out| !out.is_empty()), "{part}");
    }
    for name in ["pools", "torch", "waits", "waits-rest"] {
        assert_eq!((&part(&parts, name)["result"], output.status.code()), (&"SKIPPED".into(), Some(3)), "{log}");
    }
    let mut files: Vec<_> = fs::read_dir(bundle.out()).expect("a folder").map(|entry| entry.expect("a file").file_name()).collect();
    files.sort();
    assert_eq!(files, ["logs.tgz", "results.json", "table.txt"]);
    let counted = |name: &str| part(&parts, name)["out"].as_array().and_then(|out| out.last()?["passed"].as_u64());
    for (name, facts) in [("conformance", 49), ("kernel", 33), ("faults", 7), ("soak", 2), ("memcheck", 4)] {
        assert_eq!(counted(name), Some(facts), "{name}");
    }
    for name in ["conformance", "kernel", "faults", "soak", "synccheck"] {
        assert!(
            part(&parts, name)["out"]
                .as_array()
                .and_then(|out| out.last()?["driver"]["gpus"][0].as_str())
                .is_some_and(|gpu| gpu.contains("not a GPU")),
            "{name}"
        );
    }
    let fact = &part(&parts, "conformance")["out"][0];
    assert!(fact["result"] == "passed" && fact["fact"] == "blocks_have_the_requested_size_alignment_and_location", "{fact}");
    assert!(bundle.log("meminfo.txt").is_some_and(|said| said.contains("== bench-rest, after\nMemTotal")));
    assert!(bundle.log("initcheck.txt").is_some_and(|said| said == "initcheck: nothing\n"));
    let rows: Vec<&str> = said.lines().filter(|line| line.contains("driver, bare copy") || line.contains("cuMemAlloc")).collect();
    assert_eq!(rows.len(), 8 + 2 * 2, "{said}");
    for (name, asked) in [("twin", "rings"), ("launches", "launches"), ("product", "product")] {
        assert!(bundle.log(&format!("{name}.log")).is_some_and(|log| log.lines().last() == Some(asked)), "{name}");
    }
    assert!(
        parts.iter().all(|part| part["clocks"] == serde_json::json!(["1980, 2619, 5, 16, 33, 70.1", "1980, 2619, 5, 16, 33, 70.1"])),
        "{parts:?}"
    );
    assert!(said.lines().any(|line| line.starts_with("messages-launch ")), "{said}");
    let bench = part(&parts, "bench")["out"].as_array().expect("rows");
    let mut rows = bench.iter().filter(|row| row["workload"].is_string());
    assert!(rows.all(|row| row["limit"].is_number() && row["source"] == "double"), "{bench:?}");
    assert!(bundle.all()["gpu"].as_str().is_some_and(|gpu| gpu.contains("not a GPU")));
    assert!(said.lines().any(|line| line.starts_with("messages") && line.contains("C++ twin") && line.contains("5.5")), "{said}");
    let table: Vec<&str> = said.lines().rev().skip(1).take(all.len()).collect();
    assert!(table.iter().rev().zip(&all).all(|(line, name)| line.split(' ').next() == Some(name)), "{said}");
    for name in ["kernel", "bench", "soak", "memcheck"] {
        let log = bundle.log(&format!("{name}.log")).expect("a log");
        assert!(log.contains(": 0 leaked") && !log.contains("violations"), "{name}: {log}");
    }
}

/// As compute-sanitizer makes them. A channel would not open.
#[test]
fn what_a_sanitizer_runs_passes_where_launches_wait_for_their_kernels() {
    let bundle = Bundle::new().with_double();
    let mut command = Command::new(example::program("gpu_suite"));
    command.arg("short").env("LD_LIBRARY_PATH", bundle.libraries.path()).env("CUDA_LAUNCH_BLOCKING", "1");
    let output = command.env("RINGMEM_DOUBLE_MEMORY", (256_u64 << 20).to_string()).output().expect("a program");
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
}

#[test]
fn one_part_runs_alone_and_an_unknown_name_is_an_error() {
    let bundle = Bundle::new();
    script(bundle.folder.path(), "gpu_suite", "echo '{\"part\":\"'\"$1\"'\"}'; echo \"$*\" >&2");
    let output = bundle.run(&["--part", "kernel"]);
    let parts = bundle.results();
    assert_eq!((output.status.code(), names(&parts)), (Some(0), vec!["kernel"]), "{}", text(&output.stderr));
    assert_eq!(part(&parts, "kernel")["out"][0]["part"], "kernel");
    assert_eq!(bundle.log("kernel.log").expect("a log"), "kernel\n");
    bundle.run(&["--part", "kernel", "--quick"]);
    assert_eq!(bundle.log("kernel.log").expect("a log"), "kernel --quick\n");
    bundle.run(&["--part", "soak"]);
    assert_eq!(bundle.log("soak.log").expect("a log"), "soak --seconds 15\n");
    bundle.run(&["--part", "soak", "--limit", "3", "--quick"]);
    assert_eq!(bundle.log("soak.log").expect("a log"), "soak --seconds 1 --quick\n");
    for arguments in [
        &["--part", "kernels"][..],
        &["--part", ""],
        &["--limit", "00"],
        &["--limit", "9999999"],
        &["--limit", "soon"],
        &["--loud"],
        &["here"],
        &["--part"],
    ] {
        let output = bundle.run(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", text(&output.stderr));
    }
    assert!(text(&bundle.run(&["--part", "kernels"]).stderr).contains("there are: probe light waits"), "it names them");
}

#[test]
fn a_failed_or_hung_part_does_not_stop_others() {
    let bundle = Bundle::new();
    let (folder, child) = (bundle.folder.path(), bundle.folder.path().join("child"));
    let suite = "case $1 in light) LIGHT ;; conformance) printf '{\"part\":'; kill -SEGV $$ ;; faults) echo 'a \"fact\" with \\ $HOME' >&2; exit 1 ;; esac\necho '{\"part\":1}'";
    let light = format!("sleep 1000 & echo $! > '{}'; wait", child.display());
    script(folder, "gpu_suite", &suite.replace("LIGHT", &light));
    script(folder, "ringmem", "exit 0");
    let output = bundle.run(&["--all", "--limit", "8"]);
    let parts = bundle.results();
    assert_eq!((output.status.code(), names(&parts)), (Some(1), all_parts()), "{}", text(&output.stderr));
    let facts = |name: &str| {
        let part = part(&parts, name);
        (part["result"].as_str().unwrap_or_default().to_owned(), part["reason"].as_str().unwrap_or_default().to_owned())
    };
    let (light, reason) = facts("light");
    assert!(light == "FAILED" && reason.starts_with("ended after 8 s"), "{reason}");
    let (conformance, reason) = facts("conformance");
    assert!(conformance == "FAILED" && reason.starts_with("exit code 139"), "{reason}");
    assert_eq!(part(&parts, "conformance")["out"], Value::Array(Vec::new()));
    assert_eq!(facts("faults"), ("FAILED".to_owned(), "exit code 1: a 'fact' with / $HOME".to_owned()));
    for name in ["probe", "kernel", "soak", "bench"] {
        assert_eq!(facts(name).0, "passed", "{name}");
    }
    let pid = fs::read_to_string(child).expect("the child was started");
    ends(pid.trim());
}

fn ends(pid: &str) {
    let begun = Instant::now();
    while is_running(pid) {
        assert!(begun.elapsed() < LIMIT, "{pid} outlives its part");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn read(path: &Path) -> String {
    let begun = Instant::now();
    loop {
        match fs::read_to_string(path) {
            Ok(text) if text.ends_with('\n') => return text,
            _ => assert!(begun.elapsed() < LIMIT, "{} in vain", path.display()),
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_part_killed_with_its_watcher_leaves_nothing_running() {
    let bundle = Bundle::new();
    let child = bundle.folder.path().join("child");
    let suite = format!("printf '{{\"part\":{{\"half\":1}}'; sleep 1000 & echo $! > '{}'; kill -KILL $PPID; wait", child.display());
    script(bundle.folder.path(), "gpu_suite", &suite);
    let output = bundle.run(&["--part", "kernel"]);
    let parts = bundle.results();
    let kernel = part(&parts, "kernel");
    assert_eq!((output.status.code(), &kernel["result"], &kernel["exit"]), (Some(1), &"FAILED".into(), &137.into()), "{kernel}");
    assert!(kernel["reason"].as_str().is_some_and(|reason| reason.starts_with("killed after ")), "{kernel}");
    assert_eq!(kernel["out"], Value::Array(Vec::new()));
    ends(read(&child).trim());
}

#[test]
fn a_part_that_outlives_its_timeout_is_abandoned() {
    let bundle = Bundle::new();
    script(bundle.folder.path(), "gpu_suite", "exit 0");
    let timeout = "[ \"$1\" = -k ] || { PATH=${PATH#*:}; exec timeout \"$@\"; }\nexec 2>&- >&-\nwhile :; do sleep 1; done";
    script(bundle.tools.path(), "timeout", timeout);
    let mut run = bundle.command(&["--part", "kernel", "--limit", "1"], &bundle.out()).spawn().expect("a shell");
    let begun = Instant::now();
    let code = loop {
        match run.try_wait().expect("it was started") {
            Some(status) => break status.code(),
            None if begun.elapsed() > LIMIT => break run.kill().map(|()| None).expect("it runs"),
            None => std::thread::sleep(Duration::from_millis(20)),
        }
    };
    assert_eq!(code, Some(1), "it waits still");
    let parts = bundle.results();
    let kernel = part(&parts, "kernel");
    assert_eq!(kernel["exit"], 137, "{kernel}");
    assert!(kernel["reason"].as_str().is_some_and(|reason| reason.starts_with("killed after ")), "{kernel}");
}

#[test]
fn an_interrupt_keeps_results_and_leaves_nothing_running() {
    let interrupted = |signal: &str| {
        let bundle = Bundle::new();
        let child = bundle.folder.path().join("child");
        let suite = format!("[ $1 = kernel ] || exit 0; trap '' TERM; echo $$ > '{}'; while :; do sleep 1; done", child.display());
        script(bundle.folder.path(), "gpu_suite", &suite);
        script(bundle.folder.path(), "ringmem", "exit 0");
        let mut run = bundle.command(&[], &bundle.out()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("a shell");
        let pid = read(&child);
        let sent = Command::new("sh").args(["-c", &format!("kill -s {signal} {}", run.id())]).status().expect("a shell");
        assert!(sent.success());
        assert_eq!(run.wait().expect("it was started").code(), Some(1), "{signal}");
        ends(pid.trim());
        let results = bundle.all();
        assert_eq!((&results["complete"], &results["passed"]), (&false.into(), &false.into()), "{signal}: {results}");
        assert_eq!(names(&bundle.results()), FIRST[..5], "{signal}");
        let left = fs::read_dir(bundle.out()).expect("a folder").filter_map(Result::ok).map(|entry| entry.file_name());
        assert!(!left.map(|name| name.to_string_lossy().into_owned()).any(|name| name.starts_with(".run")), "{signal}");
    };
    std::thread::scope(|scope| {
        ["TERM", "INT", "HUP"].map(|signal| scope.spawn(move || interrupted(signal))).map(|thread| thread.join().expect("no panic"))
    });
}

#[test]
fn an_unwritable_output_folder_is_an_error() {
    let bundle = Bundle::new();
    script(bundle.folder.path(), "gpu_suite", "exit 0");
    let file = bundle.folder.path().join("run.sh");
    for out in [Path::new("/proc"), Path::new("/proc/nothing/here"), &file, &file.join("below")] {
        let output = bundle.command(&["--part", "kernel"], out).output().expect("a shell");
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{}: {said}", out.display());
        assert!(said.contains("nothing can be written into") && !said.contains("== kernel"), "{said}");
    }
}

#[test]
fn existing_files_are_kept_and_the_environment_is_set() {
    let bundle = Bundle::new();
    script(
        bundle.folder.path(),
        "gpu_suite",
        "env | grep ^CUDA | sort >&2; [ -d \"$CUDA_CACHE_PATH\" ] || exit 1; [ -z \"${CUDA_LOG_FILE-}\" ] || echo why > \"$CUDA_LOG_FILE\"",
    );
    fs::write(bundle.folder.path().join("commit.txt"), "0123abc-dirty\n").expect("a file");
    let out = bundle.out();
    fs::create_dir_all(out.join("cache")).expect("a folder");
    fs::write(out.join("table"), "mine").expect("a file");
    let row = r#"{"workload":"h2d","subject":"of an earlier run","unit":"ns","median":5.5,"ratio":null,"aim":null}"#;
    fs::write(out.join("bench.json"), format!("{row}\n")).expect("a file");
    // A file mode that was lost in transfer.
    fs::set_permissions(bundle.folder.path().join("gpu_suite"), fs::Permissions::from_mode(0o644)).expect("a mode");
    let run = |part: &str| {
        let mut command = bundle.command(&["--part", part], &out);
        let changing = "LAUNCH_BLOCKING DEVICE_MAX_COPY_CONNECTIONS SCALE_LAUNCH_QUEUES FORCE_PTX_JIT FORCE_JIT DISABLE_PTX_JIT DISABLE_JIT CACHE_DISABLE";
        command.envs(changing.split(' ').map(|name| (format!("CUDA_{name}"), "1"))).env("CUDA_LOG_FILE", "/nowhere/log");
        command.output().expect("a shell")
    };
    let output = run("kernel");
    let said = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{said}{}", text(&output.stderr));
    assert!(said.starts_with("kernel ") && !said.contains("earlier"), "{said}");
    assert!(out.join("cache").is_dir() && fs::read_to_string(out.join("table")).is_ok_and(|text| text == "mine"));
    let lines = |text: String| {
        text.lines().map(|line| line.split_once('=').map_or(line.to_owned(), |(name, _)| name.to_owned())).collect::<Vec<_>>()
    };
    let log = bundle.log("kernel.log").expect("a log");
    assert!(log.contains("CUDA_CACHE_DISABLE=0\n") && log.contains("CUDA_DEVICE_MAX_CONNECTIONS=32\n"), "{log}");
    assert_eq!(lines(log), ["CUDA_CACHE_DISABLE", "CUDA_CACHE_PATH", "CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_LOG_FILE"]);
    assert_eq!(bundle.log("kernel.cuda").as_deref(), Some("why\n"));
    let machine = bundle.log("machine.txt").expect("a log");
    assert!(machine.starts_with("commit: 0123abc-dirty\ndevice file held open: "), "{machine}");
    assert!(machine.contains("\nCUDA_CACHE_DISABLE=0\n"), "{machine}");
    assert_eq!(bundle.all()["commit"], "0123abc-dirty");
    // A driver's log would be measured, too.
    assert!(run("bench").status.success());
    assert!(!bundle.log("bench.log").expect("a log").contains("CUDA_LOG_FILE") && bundle.log("bench.cuda").is_none());
}

#[test]
fn a_missing_tool_skips_its_part_and_a_failing_tool_fails_it() {
    let bundle = Bundle::new();
    script(bundle.folder.path(), "gpu_suite", "exit 0");
    let bare = folder();
    for name in "env sh timeout awk grep tr cut date tail head find mkdir mktemp mv rm cat chmod uname sleep dirname".split(' ') {
        let found =
            std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()).map(|path| path.join(name)).find(|path| path.exists());
        symlink(found.unwrap_or_else(|| panic!("no {name} here")), bare.path().join(name)).expect("a link");
    }
    let run = |name: &str| {
        let path = std::env::join_paths([bundle.tools.path(), bare.path()]).expect("a path");
        bundle.command(&["--part", name], &bundle.out()).env("PATH", path).output().expect("a shell");
        let parts = bundle.results();
        let part = part(&parts, name);
        (part["result"].as_str().unwrap_or_default().to_owned(), part["reason"].as_str().unwrap_or_default().to_owned())
    };
    let is = |(result, reason): (String, String), expected: &str, because: &str| {
        assert!(result == expected && reason.contains(because), "{expected}, {because}: {result} {reason}");
    };
    let has_cuda = ["/usr/local", "/opt"]
        .iter()
        .flat_map(fs::read_dir)
        .flatten()
        .flatten()
        .any(|entry| entry.file_name().to_string_lossy().starts_with("cuda"));
    if !has_cuda {
        is(run("twin"), "SKIPPED", "no nvcc");
        is(run("memcheck"), "SKIPPED", "no compute-sanitizer");
    }
    is(run("pools"), "SKIPPED", "no python3");
    is(run("torch"), "SKIPPED", "no python3");
    let tool = |name: &str, text: &str| script(bundle.tools.path(), name, text);
    tool("python3", "echo 'pyenv: no such version' >&2; exit 127");
    is(run("pools"), "SKIPPED", "does not start");
    tool("compute-sanitizer", "echo '1 error of 2' > \"$6\"; exit 9");
    is(run("synccheck"), "FAILED", "exit code 9: 1 error of 2");
    tool(
        "nvcc",
        "[ \"$3\" = -arch=sm_80 ] || { echo 'no such arch' >&2; exit 1; }; printf '#!/bin/sh\nexit 0\n' > \"$5\"; chmod 755 \"$5\"",
    );
    is(run("twin"), "SKIPPED", "no C++ compiler");
    tool("g++", "exit 0");
    is(run("twin"), "passed", "");
    tool("nvcc", "echo 'nvcc fatal: no licence' >&2; exit 1");
    is(run("twin"), "FAILED", "exit code 1: nvcc fatal: no licence");
}

#[test]
fn installed_python_pools_are_measured() {
    if !Command::new("python3").args(["-c", ""]).status().is_ok_and(|status| status.success()) {
        rerun_or_skip::skipped("no python3");
        return;
    }
    let bundle = Bundle::new();
    script(bundle.folder.path(), "gpu_suite", "exit 0");
    let modules = folder();
    let torch = "class cuda:\n    get_device_name = staticmethod(lambda device: 'Some GPU')\n    is_available = staticmethod(lambda: True)\n    synchronize = staticmethod(lambda: None)\nuint8 = 1\ndef empty(size, dtype, device):\n    return size\n";
    fs::write(modules.path().join("torch.py"), torch).expect("a module");
    fs::write(modules.path().join("cupy.py"), "raise ImportError('libcudart.so.11 is not there')\n").expect("a module");
    let output = bundle.command(&["--part", "pools"], &bundle.out()).env("PYTHONPATH", modules.path()).output().expect("a shell");
    let said = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{said}{}", text(&output.stderr));
    assert_eq!(said.lines().filter(|line| line.contains("PyTorch, from Python")).count(), 3, "{said}");
    let parts = bundle.results();
    assert!(
        part(&parts, "pools")["out"]
            .as_array()
            .is_some_and(|rows| rows.len() == 6 && rows.iter().all(|row| row["source"] == "gpu:Some GPU"))
    );
    assert!(bundle.log("pools.log").is_some_and(|log| log.contains("libcudart.so.11 is not there")));
}

#[test]
fn a_training_is_compared_under_three_allocators() {
    if !Command::new("python3").args(["-c", ""]).status().is_ok_and(|status| status.success()) {
        rerun_or_skip::skipped("no python3");
        return;
    }
    let bundle = Bundle::new();
    script(bundle.folder.path(), "gpu_suite", "exit 0");
    let run = |modules: &Path| {
        let mut command = bundle.command(&["--quick", "--part", "torch"], &bundle.out());
        let output = command.env("PYTHONPATH", modules).output().expect("a shell");
        let parts = bundle.results();
        let part = part(&parts, "torch").clone();
        (part["result"].as_str().expect("a result").to_owned(), part["reason"].as_str().expect("a reason").to_owned(), part, output)
    };
    let modules = folder();
    let (result, reason, ..) = run(modules.path());
    assert_eq!((&result[..], &reason[..]), ("SKIPPED", "no libringmem_capi.so in the bundle"));

    // A library with the entry points, and a PyTorch that computes nothing.
    let source = modules.path().join("library.c");
    let names = ["malloc", "free", "init", "record_stream", "empty_cache", "set_memory_fraction", "begin_allocate_to_pool"];
    let functions: String = names.iter().map(|name| format!("void ringmem_torch_{name}(void) {{}}\n")).collect();
    let statistics =
        "int ringmem_torch_read_statistics(int device, unsigned long *figures) { figures[3] = 100; figures[5] = 101; return device; }\n";
    fs::write(&source, functions + statistics).expect("a source");
    let library = bundle.folder.path().join("libringmem_capi.so");
    assert!(Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).status().expect("a compiler").success());
    let torch = |loss: &str| {
        let text = format!(
            "import os, sys\nfrom unittest.mock import MagicMock\n\nmodule = MagicMock(__version__='9', __spec__=None)\ncuda = module.cuda\ncuda.is_available.return_value = True\n\
             cuda.get_device_name.return_value = 'Some GPU'\ncuda.mem_get_info.return_value = (10, 20)\ncuda.max_memory_reserved.return_value = 120\n\
             cuda.max_memory_allocated.return_value = 100\nmodule.nn.functional.cross_entropy.return_value.item.side_effect = lambda: {loss}\nsys.modules['torch'] = module\n"
        );
        fs::write(modules.path().join("torch.py"), text).expect("a module");
    };
    torch("2.5");
    let (result, reason, part, output) = run(modules.path());
    assert_eq!(result, "passed", "{reason}{}{:?}", text(&output.stderr), bundle.log("torch.log"));
    let rows = part["out"].as_array().expect("rows");
    let found: Vec<_> =
        rows.iter().map(|row| (row["allocator"].as_str().expect("a name"), row["ratio"].as_f64().expect("a ratio"))).collect();
    assert_eq!(found, [("native", 1.2), ("expandable", 1.2), ("ringmem", 1.01)]);
    assert!(rows.iter().all(|row| row["losses"].as_array().is_some_and(|losses| losses.len() == 8)), "{rows:?}");
    torch("2.5 if len(sys.argv) > 2 and sys.argv[2] != 'ringmem' else 2.6");
    let (result, reason, ..) = run(modules.path());
    assert!(
        result == "FAILED" && reason.contains("failed ringmem: its losses differ from the native allocator's by 0.04"),
        "{result} {reason}"
    );
}

fn is_running(pid: &str) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/stat"));
    status.is_ok_and(|status| !status.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('Z')))
}
