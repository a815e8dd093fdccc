//! Runs each test in its own process, on the driver double.

use std::env;
use std::ffi::{CString, c_char};
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use libloading::Library;
use ringmem::backend::cuda::CudaBackend;
use ringmem_driver_double::libraries;

#[path = "../programs/process.rs"]
mod process;
pub use process::{LIMIT, ended};

const CHILD: &str = "RINGMEM_TEST_ON_THE_DOUBLE";
const SETTLING: Duration = Duration::from_secs(10);

pub struct Alone {
    name: &'static str,
    environment: Vec<(&'static str, String)>,
}

impl Alone {
    pub fn new(path: &'static str) -> Self {
        Self { name: path.split_once("::").map_or(path, |(_, name)| name), environment: Vec::new() }
    }

    pub fn with(mut self, name: &'static str, value: impl ToString) -> Self {
        self.environment.push((name, value.to_string()));
        self
    }

    pub fn is_here(&self) -> bool {
        env::var(CHILD).is_ok_and(|name| name == self.name)
    }

    pub fn run(&self) -> String {
        let output = self.output();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{}: {}\n{said}\n{}", self.name, output.status, String::from_utf8_lossy(&output.stdout));
        said
    }

    pub fn output(&self) -> Output {
        let mut command = Command::new(env::current_exe().expect("this program"));
        command.args([self.name, "--exact", "--nocapture", "--test-threads=1"]).env(CHILD, self.name);
        command
            .env("LD_LIBRARY_PATH", libraries().expect("the double is built"))
            .env("RINGMEM_DOUBLE_LEAKS", "1")
            .env_remove("RINGMEM_VISIBILITY");
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        ended(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("a child"))
    }
}

pub fn clean(alone: &Alone, body: impl FnOnce()) {
    if alone.is_here() {
        body();
        Double::new().settled(0);
        return;
    }
    let said = alone.run();
    assert!(said.contains(": 0 leaked") && !said.contains("violations"), "{said}");
}

pub fn open() -> std::sync::Arc<CudaBackend> {
    let backend = CudaBackend::open().expect("a driver");
    let gpus = backend.driver().gpus().expect("its devices");
    assert!(gpus.iter().all(|gpu| gpu.name.contains("not a GPU")), "{gpus:?}");
    backend
}

#[derive(Clone, Copy)]
pub enum Step {
    Copy,
    Function,
}

pub struct Double(Library);

impl Double {
    pub fn new() -> Self {
        // SAFETY: its initialisers do nothing.
        Self(unsafe { Library::new("libcuda.so.1") }.expect("the double"))
    }

    pub fn calls(&self, symbol: &str) -> u64 {
        let symbol = CString::new(symbol).expect("a name");
        // SAFETY: the function's signature, and a C string.
        unsafe { self.0.get::<unsafe extern "C" fn(*const c_char) -> u64>(b"ringmem_double_calls\0").expect("it has it")(symbol.as_ptr()) }
    }

    pub fn all_calls(&self) -> u64 {
        ringmem_driver_double::symbols().map(|symbol| self.calls(symbol)).sum()
    }

    pub fn fail(&self, symbol: &str, number: u64, code: u32) {
        let symbol = CString::new(symbol).expect("a name");
        // SAFETY: the function's signature, and a C string.
        let said = unsafe {
            let fail = self.0.get::<unsafe extern "C" fn(*const c_char, u64, u32) -> u32>(b"ringmem_double_fail\0").expect("it has it");
            fail(symbol.as_ptr(), number, code)
        };
        assert_eq!(said, 0);
    }

    /// Holds a step, counted from now on, until the next call; number 0 holds none.
    pub fn hold(&self, step: Step, number: u64) {
        // SAFETY: the function's signature.
        unsafe { self.0.get::<unsafe extern "C" fn(u32, u64)>(b"ringmem_double_hold\0").expect("it has it")(step as u32, number) }
    }

    pub fn executed(&self, step: Step) -> u64 {
        // SAFETY: the function's signature.
        unsafe { self.0.get::<unsafe extern "C" fn(u32) -> u64>(b"ringmem_double_executed\0").expect("it has it")(step as u32) }
    }

    pub fn reset(&self) {
        // SAFETY: the function's signature.
        unsafe { self.0.get::<unsafe extern "C" fn()>(b"ringmem_double_reset\0").expect("it has it")() }
    }

    pub fn live(&self) -> u64 {
        // SAFETY: the function's signature.
        unsafe { self.0.get::<unsafe extern "C" fn() -> u64>(b"ringmem_double_live\0").expect("it has it")() }
    }

    /// A thread of the backend may drop the last ones.
    pub fn settled(&self, most: u64) -> u64 {
        soon(|| self.live() <= most);
        self.live()
    }
}

pub fn eventually(fact: &str, holds: impl Fn() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < LIMIT, "not in time: {fact}");
        thread::sleep(Duration::from_millis(1));
    }
}

pub fn soon(is_so: impl Fn() -> bool) -> bool {
    let begun = Instant::now();
    while !is_so() && begun.elapsed() < SETTLING {
        thread::sleep(Duration::from_millis(1));
    }
    is_so()
}

/// Tests in processes of their own, of which `in_a_process` of the program's root judges the outcome.
macro_rules! alone {
    ($($(#[$attribute:meta])* fn $name:ident() $(with($($variable:literal = $value:expr),+))? $body:block)+) => {
        $(
            $(#[$attribute])*
            #[test]
            fn $name() {
                let alone = crate::rig::Alone::new(concat!(module_path!(), "::", stringify!($name)));
                $($(let alone = alone.with($variable, $value);)+)?
                crate::in_a_process(&alone, || $body);
            }
        )+
    };
}
pub(crate) use alone;
