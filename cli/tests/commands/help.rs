use std::fs;
use std::process::Command;

use ringmem_kernels::IMAGE;

use crate::program::{call, execute, finish};
#[cfg(target_os = "linux")]
use crate::{bytes, pty::Pty};

const COMMANDS: &[&str] = &[
    "stream",
    "demo",
    "layout",
    "doctor",
    "replay",
    "view",
    "new",
    #[cfg(target_os = "linux")]
    "top",
    "completions",
    "man",
];

#[test]
fn help_has_exit_codes_and_each_command_has_examples() {
    let help = call(&IMAGE, ["--help"]).out;
    assert!(help.contains("Exit codes: 0 success, 1 failure, 2 invalid arguments"), "{help}");
    for command in COMMANDS {
        assert!(help.contains(&format!("\n  {command} ")), "{help}");
        let help = call(&IMAGE, [command, "--help"]).out;
        assert!(help.contains("\nExamples:\n  ") && help.contains(&format!("ringmem {command}")), "{help}");
    }
}

#[test]
fn help_and_version_succeed() {
    for arguments in [&["--help"][..], &["--version"], &["stream", "--help"], &["demo", "--help"], &["layout", "--help"]] {
        let ran = execute(arguments.iter().copied());
        assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{arguments:?}");
        assert!(!ran.out.is_empty());
    }
}

#[test]
fn completion_scripts_complete_commands_and_options() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let script = call(&IMAGE, ["completions", shell]);
        assert_eq!((script.code, script.err.as_str()), (0, ""));
        assert!(script.out.contains("ringmem") && script.out.contains("doctor"), "{shell}: {}", script.out);
    }
    call(&IMAGE, ["completions", "cmd"]).refuses(2, &["cmd", "bash"]);
    if Command::new("bash").arg("--version").output().is_err() {
        return;
    }
    let program = env!("CARGO_BIN_EXE_ringmem");
    // Bash calls it for the second word of `ringmem do`, and the third of `ringmem doctor --back`.
    let script = r#"
        source <("$0" completions bash) || exit 1
        COMP_WORDS=(ringmem do) COMP_CWORD=1
        _ringmem ringmem do ringmem; echo "${COMPREPLY[@]}"
        COMP_WORDS=(ringmem doctor --back) COMP_CWORD=2
        _ringmem ringmem --back doctor; echo "${COMPREPLY[@]}""#;
    let mut bash = Command::new("bash");
    bash.args(["-c", script, program]);
    let ran = finish(bash);
    assert_eq!((ran.code, ran.out.as_str()), (0, "doctor\n--backend\n"), "{ran:?}");
}

#[test]
fn man_pages_cover_each_command() {
    let page = call(&IMAGE, ["man"]).out;
    assert!(page.contains(".TH ringmem 1"), "{page}");
    let folder = tempfile::tempdir().expect("a folder");
    let to = folder.path().join("man1");
    let ran = call(&IMAGE, ["man".as_ref(), "--output".as_ref(), to.as_os_str()]);
    assert_eq!((ran.code, ran.out.as_str(), ran.err.as_str()), (0, "", ""));
    let read = |name: &str| fs::read_to_string(to.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    for command in COMMANDS {
        assert!(page.contains(&format!("ringmem\\-{command}(1)")), "{command} is not in {page}");
        let page = read(&format!("ringmem-{command}.1"));
        assert!(page.contains("Examples:") && page.contains(&format!("ringmem {command}")), "{page}");
    }
    assert!(read("ringmem.1").contains("Exit codes"), "{}", read("ringmem.1"));
    call(&IMAGE, ["man", "--output", "/proc/nowhere"]).refuses(1, &["cannot write to /proc/nowhere"]);
}

#[cfg(target_os = "linux")]
fn shown(arguments: &[&str]) -> Vec<String> {
    let lines = Pty::start(60, arguments.iter().copied()).lines();
    for line in &lines {
        // A bar's output ends at the last carriage return.
        let line = line.rsplit('\r').next().unwrap_or_default();
        assert!(line.chars().count() <= 60, "{arguments:?}: {} columns: {line}\n{lines:#?}", line.chars().count());
    }
    lines
}

#[test]
#[cfg(target_os = "linux")]
fn no_line_is_wider_than_a_terminal_of_60_columns() {
    let trace = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/commands/inference.trace");
    let file = bytes::file(&bytes::noise(100_000));
    let path = bytes::text(file.path());
    let out = tempfile::tempdir().expect("a folder");
    let copy = out.path().join("copy");
    for (arguments, word) in [
        (&["--help"][..], "Exit"),
        (&["stream", "--help"], "Examples:"),
        (&["doctor"], "visibility"),
        (&["layout"], "ControlBlock:"),
        (&["demo", "--messages", "1000"], "lost,"),
        (&["stream", path], "checksum"),
        (&["stream", path, "--out", bytes::text(&copy)], "backend"),
        (&["replay", trace], "fragmentation"),
    ] {
        let lines = shown(arguments);
        assert!(lines.iter().any(|line| line.split_whitespace().any(|found| found == word)), "{arguments:?}: {lines:#?}");
    }
}

#[test]
#[cfg(target_os = "linux")]
fn json_and_headers_are_not_wrapped() {
    assert_eq!(Pty::start(60, ["layout", "--json"]).lines().len(), 1);
    let header = call(&IMAGE, ["layout", "--format", "c"]).out;
    assert_eq!(Pty::start(60, ["layout", "--format", "c"]).lines(), header.lines().collect::<Vec<_>>());
}

#[test]
#[cfg(target_os = "linux")]
fn help_is_coloured_only_on_a_colour_terminal() {
    let coloured = |name: &str, value: &str| {
        let mut program = Command::new(env!("CARGO_BIN_EXE_ringmem"));
        program.arg("--help").env_remove("NO_COLOR").env("TERM", "xterm").env(name, value);
        Pty::run(80, program).all().contains("\x1b[")
    };
    assert!(coloured("NO_COLOR", ""));
    assert!(!coloured("NO_COLOR", "1") && !coloured("TERM", "dumb"));
    let mut program = Command::new(env!("CARGO_BIN_EXE_ringmem"));
    program.arg("--help");
    assert!(!finish(program).out.contains('\x1b'));
}

#[test]
#[cfg(target_os = "linux")]
fn progress_is_shown_on_a_terminal_and_cleared() {
    let trace = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/commands/inference.trace");
    for (arguments, text) in [(&["demo", "--messages", "2000"][..], "of 2000 messages"), (&["replay", trace], "of 429 events, timed pass")]
    {
        let shown = Pty::start(60, arguments.iter().copied()).all();
        let (_, after) = shown.split_once(text).unwrap_or_else(|| panic!("no `{text}` in {shown:?}"));
        assert!(["\x1b[2K", "\x1b[K", "\x1b[0K"].iter().any(|clear| after.contains(clear)), "{shown:?}");
    }
}
