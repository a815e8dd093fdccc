use std::error::Error;
use std::fmt;

/// The category of a [`Fault`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Not PTX, or an unknown form.
    Syntax,
    /// The opcode is not implemented.
    UnknownOpcode,
    /// The entry does not exist, or takes other arguments, or another number of threads.
    Launch,
    /// An access outside all allocations.
    OutOfBounds,
    /// The address is not a multiple of the access size.
    Misaligned,
    /// A branch, address, store or shuffle depends on an unwritten register.
    Undefined,
    /// A load of unwritten memory.
    Unwritten,
    /// Unordered accesses of a location, at least one a write.
    Race,
    /// Lanes wait for each other at different instructions.
    Divergent,
    /// The kernel executed `trap`.
    Trap,
}

/// A mistake and its line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Category.
    pub kind: Kind,
    /// Line in the PTX text, from 1.
    pub line: u32,
    /// Facts.
    pub text: String,
}

impl Fault {
    pub(crate) fn new(kind: Kind, line: u32, text: impl Into<String>) -> Self {
        Self { kind, line, text: text.into() }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PTX line {}: {}", self.line, self.text)
    }
}

impl Error for Fault {}

pub(crate) type Answer<T = ()> = Result<T, Fault>;
