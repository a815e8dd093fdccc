use std::fmt::{self, Write};

use ringmem::shared::MessageFacts;
use ringmem::{AbiHash, HostWord, Layout, RingHeader, RingMessage};

const LONGEST_TABLE: usize = 16 << 10;

/// The kind and the messages of a ring.
///
/// ```
/// use ringmem_zenoh::RingType;
///
/// let ours = RingType::of::<u64>();
/// assert!(ours.accepts(&RingType::of::<u64>()));
/// assert!(!ours.accepts(&RingType::of::<f64>()), "another ABI");
/// assert!(!ours.accepts(&RingType::frames(8)), "another kind");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RingType {
    /// Whether messages have any length.
    pub framed: bool,
    /// Bytes of a message; of the largest one if framed.
    pub size: u64,
    /// [`RingMessage::KIND`]; 0 if framed.
    pub kind: u64,
    /// ABI hash of ring and message.
    pub abi: u64,
    /// The fields of a message; empty if unknown.
    pub table: String,
}

impl RingType {
    /// Returns the type of a ring of `T`. Messages of no bytes do not compile, in any end of a ring of `T`:
    ///
    /// ```compile_fail
    /// ringmem_zenoh::RingType::of::<[u64; 0]>();
    /// ```
    #[must_use]
    pub fn of<T: RingMessage>() -> Self {
        const { assert!(size_of::<T>() > 0, "a message has at least one byte") };
        let abi = AbiHash::new().number(<RingHeader<HostWord> as Layout>::DESCRIPTOR.hash).number(T::DESCRIPTOR.hash).finish();
        let mut table = format!("`{}`: size {}, align {}", T::DESCRIPTOR.name, T::DESCRIPTOR.size, T::DESCRIPTOR.align);
        for field in T::DESCRIPTOR.fields {
            let _ = write!(
                table,
                "\n{:>5}  {}: {}, {} bytes, type {:#018x}",
                field.offset, field.name, field.type_name, field.size, field.type_hash
            );
        }
        Self { framed: false, size: T::zeroed().as_bytes().len() as u64, kind: T::KIND, abi, table: shortened(table) }
    }

    /// Returns the type of a framed ring whose largest message has `largest` bytes.
    #[must_use]
    pub fn frames(largest: u64) -> Self {
        let abi = AbiHash::new().number(<RingHeader<HostWord> as Layout>::DESCRIPTOR.hash).finish();
        Self { framed: true, size: largest, kind: 0, abi, table: String::new() }
    }

    /// Returns the type of a ring of messages unknown to the program.
    #[must_use]
    pub const fn untyped(facts: MessageFacts) -> Self {
        Self { framed: false, size: facts.size as u64, kind: facts.kind, abi: facts.abi, table: String::new() }
    }

    /// Returns whether a sink of this type takes every message of a `source`.
    #[must_use]
    pub const fn accepts(&self, source: &Self) -> bool {
        let sizes = if self.framed { source.size <= self.size } else { source.size == self.size };
        self.framed == source.framed && sizes && self.kind == source.kind && self.abi == source.abi
    }
}

pub(crate) fn shortened(mut table: String) -> String {
    while table.len() > LONGEST_TABLE {
        table.pop();
    }
    table
}

impl fmt::Display for RingType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { framed, size, kind, abi, table } = self;
        if *framed {
            return write!(f, "frames of up to {size} bytes, ABI {abi:#018x}");
        }
        write!(f, "messages of {size} bytes, kind {kind}, ABI {abi:#018x}")?;
        for line in table.lines() {
            // A peer's text may hold control characters.
            write!(f, "\n    {}", line.escape_debug())?;
        }
        Ok(())
    }
}
