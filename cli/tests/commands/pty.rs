use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::ptr;
use std::sync::{Arc, Mutex};
use std::thread;

use crate::program::until;

/// Kills its program when dropped.
pub struct Pty {
    terminal: File,
    /// Keeps the terminal open after the program's end.
    slave: File,
    child: Child,
    modes: Modes,
    shown: Arc<Mutex<Vec<u8>>>,
}

impl Pty {
    pub fn start<S: Into<OsString>>(columns: u16, arguments: impl IntoIterator<Item = S>) -> Self {
        let mut program = Command::new(env!("CARGO_BIN_EXE_ringmem"));
        program.args(arguments.into_iter().map(Into::into)).env_remove("NO_COLOR").env("TERM", "xterm");
        Self::run(columns, program)
    }

    /// Unset streams are the terminal.
    pub fn run(columns: u16, mut program: Command) -> Self {
        let (mut terminal, mut slave) = (-1, -1);
        let size = winsize(columns);
        // SAFETY: writes two descriptors; no name and no modes are given.
        let said = unsafe { libc::openpty(&raw mut terminal, &raw mut slave, ptr::null_mut(), ptr::null(), &raw const size) };
        assert_eq!(said, 0, "openpty: {}", std::io::Error::last_os_error());
        // SAFETY: just opened; nothing else owns them.
        let (terminal, slave) = unsafe { (OwnedFd::from_raw_fd(terminal), OwnedFd::from_raw_fd(slave)) };
        let (terminal, slave) = (File::from(terminal), File::from(slave));
        let modes = modes(&slave);
        let stream = || Stdio::from(slave.try_clone().expect("a descriptor"));
        program.stdin(stream()).stdout(stream()).stderr(stream());
        // SAFETY: both may be called between fork and exec. The session's terminal is standard input.
        unsafe {
            program.pre_exec(|| match libc::setsid() == -1 || libc::ioctl(0, libc::TIOCSCTTY, 0) == -1 {
                true => Err(std::io::Error::last_os_error()),
                false => Ok(()),
            })
        };
        let child = program.spawn().expect("the program starts");
        let shown = Arc::new(Mutex::new(Vec::new()));
        let (mut from, to) = (terminal.try_clone().expect("a descriptor"), Arc::clone(&shown));
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = from.read(&mut bytes) {
                to.lock().expect("no panic").extend_from_slice(&bytes[..count]);
            }
        });
        Self { terminal, slave, child, modes, shown }
    }

    pub fn shown(&self) -> String {
        String::from_utf8_lossy(&self.shown.lock().expect("no panic")).into_owned()
    }

    pub fn until(&self, text: &str) {
        until(text, || self.shown().contains(text));
    }

    pub fn send(&mut self, keys: &str) {
        self.terminal.write_all(keys.as_bytes()).expect("a terminal");
    }

    pub fn resize(&self, columns: u16) {
        let size = winsize(columns);
        // SAFETY: reads one size.
        let said = unsafe { libc::ioctl(self.terminal.as_raw_fd(), libc::TIOCSWINSZ, &raw const size) };
        assert_eq!(said, 0, "{}", std::io::Error::last_os_error());
    }

    pub fn has_its_modes(&self) -> bool {
        modes(&self.slave) == self.modes
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn wait(&mut self) -> ExitStatus {
        let mut status = None;
        until("the program ends", || {
            status = self.child.try_wait().expect("a child");
            status.is_some()
        });
        status.expect("it has ended")
    }

    /// Returns all that a successful program showed.
    pub fn all(mut self) -> String {
        let status = self.wait();
        // Follows the program's output, of which the last may not have been read.
        self.slave.write_all(b"\nend of output").expect("a terminal");
        self.until("end of output");
        let text = self.shown().replace("\r\n", "\n");
        assert!(status.success(), "{text}");
        text.strip_suffix("\nend of output").expect("the last line").to_owned()
    }

    /// Returns a successful program's lines, without control sequences.
    pub fn lines(self) -> Vec<String> {
        plain(&self.all()).lines().map(str::to_owned).collect()
    }
}

impl Drop for Pty {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

type Modes = [libc::tcflag_t; 4];

fn modes(terminal: &File) -> Modes {
    let mut modes = std::mem::MaybeUninit::<libc::termios>::zeroed();
    // SAFETY: writes the modes.
    let said = unsafe { libc::tcgetattr(terminal.as_raw_fd(), modes.as_mut_ptr()) };
    assert_eq!(said, 0, "{}", std::io::Error::last_os_error());
    // SAFETY: zeroed, and written.
    let modes = unsafe { modes.assume_init() };
    [modes.c_iflag, modes.c_oflag, modes.c_cflag, modes.c_lflag]
}

const fn winsize(columns: u16) -> libc::winsize {
    libc::winsize { ws_row: 24, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }
}

fn plain(text: &str) -> String {
    let mut pieces = text.split("\x1b[");
    let first = pieces.next().unwrap_or_default().to_owned();
    pieces.fold(first, |text, piece| text + piece.split_once(|c: char| ('@'..='~').contains(&c)).map_or("", |(_, rest)| rest))
}
