use std::ffi::OsString;
use std::io::Read;
use std::process::{ChildStdin, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use ringmem::Image;
use serde_json::Value;

pub const LIMIT: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub struct Ran {
    pub code: u8,
    pub out: String,
    pub err: String,
}

pub fn call<S: Into<OsString>>(image: &Image, arguments: impl IntoIterator<Item = S>) -> Ran {
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let arguments = std::iter::once("ringmem".into()).chain(arguments.into_iter().map(Into::into));
    let code = ringmem_cli::run(arguments, image, None, &mut out, &mut err);
    Ran { code, out: String::from_utf8(out).expect("text"), err: String::from_utf8(err).expect("text") }
}

pub fn execute<S: Into<OsString>>(arguments: impl IntoIterator<Item = S>) -> Ran {
    let mut program = Command::new(env!("CARGO_BIN_EXE_ringmem"));
    program.args(arguments.into_iter().map(Into::into));
    finish(program)
}

pub fn finish(program: Command) -> Ran {
    finish_fed(program, Stdio::null(), |_| {})
}

pub fn finish_fed(mut program: Command, stdin: Stdio, feed: impl FnOnce(ChildStdin) + Send + 'static) -> Ran {
    let mut child = program.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts");
    if let Some(pipe) = child.stdin.take() {
        thread::spawn(move || feed(pipe));
    }
    let drain = |mut pipe: Box<dyn Read + Send>| {
        thread::spawn(move || {
            let mut text = String::new();
            pipe.read_to_string(&mut text).map(|_| text)
        })
    };
    let out = drain(Box::new(child.stdout.take().expect("a pipe")));
    let err = drain(Box::new(child.stderr.take().expect("a pipe")));
    let begun = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().expect("a child") {
            break status;
        }
        if begun.elapsed() > LIMIT {
            child.kill().expect("a child");
            panic!("the program hangs: {program:?}");
        }
        thread::sleep(Duration::from_millis(2));
    };
    let text = |reader: thread::JoinHandle<std::io::Result<String>>| reader.join().expect("no panic").expect("text");
    let code = status.code().unwrap_or_else(|| panic!("it was killed: {status}"));
    Ran { code: u8::try_from(code).expect("an exit code"), out: text(out), err: text(err) }
}

impl Ran {
    pub fn json(&self) -> Value {
        assert_eq!((self.code, self.err.as_str()), (0, ""), "{self:?}");
        assert_eq!(self.out.lines().count(), 1);
        serde_json::from_str(&self.out).expect("JSON")
    }

    #[track_caller]
    pub fn refuses(&self, code: u8, facts: &[&str]) {
        assert_eq!(self.code, code, "{self:?}");
        if code == 2 && !self.err.starts_with("ringmem: ") {
            assert!(self.err.contains("--help") && !self.err.contains(|c: char| c.is_control() && c != '\n'), "{self:?}");
            return facts.iter().for_each(|fact| assert!(self.err.contains(fact), "`{fact}` is not in {:?}", self.err));
        }
        let line = self.err.strip_suffix('\n').unwrap_or_else(|| panic!("a line: {self:?}"));
        assert!(line.starts_with("ringmem: ") && !line.contains(['\n', '\r']), "{self:?}");
        for fact in facts {
            assert!(line.contains(fact), "`{fact}` is not in {line:?}");
        }
    }
}

pub fn alone(name: &str, test: impl FnOnce()) {
    const ALONE: &str = "RINGMEM_TEST_ALONE";
    if std::env::var_os(ALONE).is_some() {
        return test();
    }
    let mut program = Command::new(std::env::current_exe().expect("this test"));
    program.args([name, "--exact", "--test-threads=1", "--nocapture"]).env(ALONE, "1");
    let ran = finish(program);
    assert!(ran.code == 0 && ran.out.contains("1 passed"), "{ran:?}");
}

pub fn until(fact: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < LIMIT, "waited in vain: {fact}");
        thread::sleep(Duration::from_millis(1));
    }
}
