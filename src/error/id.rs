//! [`IdError`]: why an id or a message refers to nothing.

use ringmem_layouts::message::ReferenceError;

/// Facts about an id that was looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IdError {
    /// No slot has ever had that number.
    #[error("nothing was ever registered as number {index}: there are {slots}")]
    Unknown {
        /// The number.
        index: u32,
        /// How many slots there are, from 0.
        slots: u32,
    },
    /// What the id named has gone; its slot is empty, or another's.
    #[error("number {index} was of generation {got} and is of generation {expected}: what it named is gone")]
    Stale {
        /// The number.
        index: u32,
        /// The slot's generation, or the next one's.
        expected: u32,
        /// The id's.
        got: u32,
    },
    /// What the id names was released: leases that there are keep it, and there are no new ones.
    #[error("number {index} was released, and goes with the last of {leases} leases")]
    Released {
        /// The number.
        index: u32,
        /// How many there are.
        leases: u32,
    },
    /// An id of another registry, in this process or another.
    #[error("an id of registry {got:#018x} was given to registry {expected:#018x}")]
    Foreign {
        /// The registry's number.
        expected: u64,
        /// The id's.
        got: u64,
    },
    /// A buffer of other elements.
    #[error("a buffer of `{expected}` was asked for as one of `{got}`")]
    Elements {
        /// What it was registered with.
        expected: &'static str,
        /// What was asked for.
        got: &'static str,
    },
    /// No number is left.
    #[error("all {slots} numbers are in use")]
    Full {
        /// How many there are.
        slots: u32,
    },
    /// A message that names no elements of the requested type.
    #[error(transparent)]
    Reference(#[from] ReferenceError),
}
