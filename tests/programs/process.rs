//! Processes with a deadline.

use std::io::Read;
use std::process::{Child, Output};
use std::thread;
use std::time::{Duration, Instant};

/// For waits that do not end only where something is broken: the longest test takes a minute on two quiet cores.
pub const LIMIT: Duration = Duration::from_secs(600);

/// Waits until a process ends. Threads read its pipes meanwhile: a full one would hold it.
#[track_caller]
pub fn ended(mut child: Child) -> Output {
    let (stdout, stderr) = (read(child.stdout.take()), read(child.stderr.take()));
    let deadline = Instant::now() + LIMIT;
    let mut status = child.try_wait().expect("a child");
    while status.is_none() && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(1));
        status = child.try_wait().expect("a child");
    }
    if status.is_none() {
        child.kill().expect("a child");
    }
    let [stdout, stderr] = [stdout, stderr].map(|reader| reader.join().expect("no panic"));
    let status = status.unwrap_or_else(|| panic!("the process does not end:\n{}", String::from_utf8_lossy(&stderr)));
    Output { status, stdout, stderr }
}

fn read(pipe: Option<impl Read + Send + 'static>) -> thread::JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            pipe.read_to_end(&mut bytes).expect("a pipe");
        }
        bytes
    })
}
