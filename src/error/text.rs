use core::alloc::Layout;
use core::fmt::{Display, Formatter, Result};
use core::time::Duration;
use std::boxed::Box;
use std::io;
use std::path::Path;
use std::string::String;

use ringmem_layouts::control::{Fault, State};

use crate::location::MemoryLocation;

pub struct Bounds<'a> {
    pub what: &'a str,
    pub asked: &'a u64,
    pub least: &'a u64,
    pub most: &'a u64,
}

impl Display for Bounds<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let Self { what, asked, least, most } = self;
        match least == most {
            true => write!(f, "invalid {what}: got {asked}, expected {least}"),
            false => write!(f, "invalid {what}: got {asked}, expected {least} to {most}"),
        }
    }
}

/// In the largest unit that shows it in full: `32 MiB`, `4001 bytes`.
pub struct Bytes(pub u64);

impl Display for Bytes {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let units = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
        match units.into_iter().find(|&(_, shift)| self.0 != 0 && self.0.trailing_zeros() >= shift) {
            Some((unit, shift)) => write!(f, "{} {unit}", self.0 >> shift),
            None => write!(f, "{} bytes", self.0),
        }
    }
}

pub struct Elements(pub u64);

impl Display for Elements {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self.0 {
            1 => f.write_str("bytes"),
            bytes => write!(f, "elements of {bytes} bytes"),
        }
    }
}

pub struct Cause(pub Option<[u64; 2]>);

impl Display for Cause {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let Some([used, limit]) = self.0 else { return Ok(()) };
        write!(f, "; limit of the pool reached: {} of {} in use", Bytes(used), Bytes(limit))
    }
}

/// A further fact, if there is one.
pub struct More<'a, T>(pub &'a Option<T>);

impl<T: Display> Display for More<'_, T> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        self.0.iter().try_for_each(|fact| write!(f, "; {fact}"))
    }
}

pub struct Unknown<'a> {
    pub address: &'a u64,
    pub layouts: &'a Option<Box<[(MemoryLocation, Layout); 2]>>,
}

impl Display for Unknown<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let address = self.address;
        let Some(layouts) = self.layouts else { return write!(f, "no live memory of this backend at {address:#x}") };
        let [allocated, given] = &**layouts;
        write!(f, "the block at {address:#x} was allocated as {} and freed as {}", Piece(allocated), Piece(given))
    }
}

struct Piece<'a>(&'a (MemoryLocation, Layout));

impl Display for Piece<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let (location, layout) = self.0;
        write!(f, "{} bytes of {location:?} aligned to {}", layout.size(), layout.align())
    }
}

pub struct SystemCall<'a> {
    pub call: &'static str,
    pub path: &'a Option<Box<Path>>,
    pub answer: &'a io::Error,
}

impl Display for SystemCall<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let Self { call, path, answer } = *self;
        match path {
            Some(path) => Display::fmt(&crate::sys::path::Sentence { action: call, path, answer }, f),
            None => write!(f, "{call} failed: {answer}"),
        }
    }
}

pub struct Known<'a>(pub &'a [&'static str]);

impl Display for Known<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        if self.0.is_empty() { Ok(()) } else { write!(f, " among {:?}", self.0) }
    }
}

pub struct Differing<'a>(pub &'a Option<Box<[String; 2]>>);

impl Display for Differing<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let Some(configs) = self.0 else { return Ok(()) };
        write!(f, " with another configuration: {}, requested {}", configs[0], configs[1])
    }
}

pub struct Log<'a>(pub &'a Option<Box<str>>);

impl Display for Log<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        self.0.iter().try_for_each(|log| write!(f, ": {log}"))
    }
}

pub struct Stopped<'a> {
    pub state: &'a Option<State>,
    pub is_over: &'a bool,
    pub fault: &'a Option<Fault>,
    pub faults: &'a u32,
    pub waited: &'a Duration,
}

impl Display for Stopped<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match (self.state, self.is_over) {
            (Some(state), true) if state.has_ended() => write!(f, "has ended: {state:?}")?,
            (Some(state), false) if state.has_ended() => {
                write!(f, "is {state:?} but has not returned after {} ms", self.waited.as_millis())?
            }
            (Some(State::Created), true) => write!(f, "returned without starting: {:?}", State::Created)?,
            (Some(state), true) => write!(f, "returned without reporting its end; its last state is {state:?}")?,
            (Some(state), false) => write!(f, "gave no response within {} ms; its state is {state:?}", self.waited.as_millis())?,
            (None, true) => f.write_str("returned with an unknown state")?,
            (None, false) => f.write_str("has an unknown state")?,
        }
        match self.fault {
            Some(fault) => write!(f, ": {fault} ({} {})", self.faults, if *self.faults == 1 { "fault" } else { "faults" }),
            None => Ok(()),
        }
    }
}
