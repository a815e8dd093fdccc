//! [`Keys`]: the keys of the live view.
//!
//! Not by Crossterm's reader: if a key and a resize signal arrive together, it waits for the next key.

use std::fs::File;
use std::io::{self, IsTerminal, Read};
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    Quit,
    Up,
    Down,
}

/// The terminal, in raw mode.
pub(super) struct Keys(File);

/// The longest rest of a key's sequence after its escape.
const SEQUENCE: Duration = Duration::from_millis(50);

impl Keys {
    pub fn open() -> io::Result<Self> {
        let stdin = io::stdin();
        let terminal = if stdin.is_terminal() { stdin.as_fd().try_clone_to_owned()?.into() } else { File::open("/dev/tty")? };
        Ok(Self(terminal))
    }

    /// Returns the keys within `limit`; quits when the terminal hangs up.
    pub fn wait(&mut self, limit: Duration) -> io::Result<Vec<Key>> {
        let mut bytes = Vec::new();
        let mut limit = limit;
        while self.is_ready(limit)? {
            let mut some = [0; 64];
            match self.0.read(&mut some)? {
                0 => return Ok(vec![Key::Quit]),
                count => bytes.extend_from_slice(&some[..count]),
            }
            if !bytes.ends_with(b"\x1b") {
                break;
            }
            limit = SEQUENCE;
        }
        Ok(parse(&bytes))
    }

    fn is_ready(&self, limit: Duration) -> io::Result<bool> {
        let limit = Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: limit.subsec_nanos().into() };
        match poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&limit)) {
            Ok(count) => Ok(count > 0),
            Err(rustix::io::Errno::INTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

/// Parses a terminal's bytes (ECMA-48): `q`, Escape, Ctrl-C and the arrows up and down.
fn parse(mut bytes: &[u8]) -> Vec<Key> {
    let mut keys = Vec::new();
    while let Some((&first, rest)) = bytes.split_first() {
        bytes = rest;
        match (first, rest) {
            (b'q' | 0x03, _) | (0x1b, []) => keys.push(Key::Quit),
            (0x1b, [b'[' | b'O', sequence @ ..]) => {
                let end = sequence.iter().position(|byte| (0x40..=0x7e).contains(byte));
                keys.extend(match end.map(|end| sequence[end]) {
                    Some(b'A') => Some(Key::Up),
                    Some(b'B') => Some(Key::Down),
                    _ => None,
                });
                bytes = end.map_or(&[], |end| &sequence[end + 1..]);
            }
            (0x1b, [_, rest @ ..]) => bytes = rest,
            _ => {}
        }
    }
    keys
}

#[cfg(test)]
mod tests {
    use super::{Key, parse};

    #[test]
    fn keys_are_parsed_between_other_bytes() {
        for (bytes, keys) in [
            (&b"q"[..], &[Key::Quit][..]),
            (b"\x03", &[Key::Quit]),
            (b"\x1b", &[Key::Quit]),
            (b"\x1b[A\x1bOB\x1b[1;5Bq", &[Key::Up, Key::Down, Key::Down, Key::Quit]),
            (b"x\x1b[6~\x1bq\x1b[200~\xffj", &[]),
            (b"\x1b[", &[]),
        ] {
            assert_eq!(parse(bytes), keys, "{bytes:?}");
        }
    }
}
