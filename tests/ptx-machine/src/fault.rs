//! [`Fault`]: a mistake in a PTX text, or one that a kernel made while it ran.

use std::error::Error;
use std::fmt;

/// The category of a [`Fault`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The text is not PTX, or uses a form that the machine does not know.
    Syntax,
    /// The machine does not implement the opcode.
    UnknownOpcode,
    /// The entry does not exist, or takes another number of arguments.
    Launch,
    /// An access outside all allocations.
    OutOfBounds,
    /// An access at an address that is not a multiple of its size.
    Misaligned,
    /// A branch, an address, a store or a shuffle depends on a register that was never written.
    Undefined,
    /// A load of memory that was never written.
    Unwritten,
    /// Two accesses of one location without order between them, at least one of which is a write.
    Race,
    /// Lanes wait for each other at different instructions.
    Divergent,
    /// The kernel executed `trap`.
    Trap,
}

/// A mistake, with the line of the PTX text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The category.
    pub kind: Kind,
    /// The line in the PTX text, from 1.
    pub line: u32,
    /// The facts.
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
