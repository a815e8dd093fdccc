//! Runs a test in its own process: there is one driver per process, and a call may hang or abort.

use std::env;
use std::process::{Command, Stdio, exit};

#[path = "../../../programs/process.rs"]
mod process;

const CHILD: &str = "RINGMEM_DOUBLE_TEST";
const DONE: &str = "the body has ended";

#[track_caller]
pub fn alone(name: &str, variables: &[(&str, &str)], body: impl FnOnce()) -> String {
    let Ended { code, stdout, stderr } = run(name, variables, body);
    assert!(code == Some(0) && stdout.contains(DONE), "{name} ended with {code:?}:\n{stdout}\n{stderr}");
    stderr
}

#[track_caller]
#[allow(dead_code)]
pub fn aborts(name: &str, variables: &[(&str, &str)], body: impl FnOnce()) -> String {
    let Ended { code, stdout, stderr } = run(name, variables, body);
    assert_eq!(code, None, "{name} did not abort:\n{stdout}\n{stderr}");
    stderr
}

struct Ended {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

#[track_caller]
fn run(name: &str, variables: &[(&str, &str)], body: impl FnOnce()) -> Ended {
    if env::var(CHILD).as_deref() == Ok(name) {
        body();
        println!("{DONE}");
        exit(0);
    }
    let mut command = Command::new(env::current_exe().expect("this test's program"));
    for (variable, _) in env::vars().filter(|(variable, _)| variable.starts_with("RINGMEM_DOUBLE_") || variable == "CUDA_MODULE_LOADING") {
        command.env_remove(variable);
    }
    command.args(["--exact", name, "--nocapture"]).env(CHILD, name).envs(variables.iter().copied());
    let output = process::ended(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("a process"));
    let [stdout, stderr] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    Ended { code: output.status.code(), stdout, stderr }
}
