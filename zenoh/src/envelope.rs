//! The messages between two relays. All numbers are little-endian.
//!
//! | message | key | bytes |
//! |---|---|---|
//! | hello, a query | `KEY/hello` | `rmzH`, stream, first sequence number, messages from there on, limit in bytes, [`RingType`] |
//! | welcome, its reply | | `rmzW`, receiver, pushed, received, window in bytes |
//! | refusal, its reply | | `rmzR`, the sink's [`RingType`] |
//! | data | `KEY/data` | `rmzD`, count (4 bytes), stream, receiver, first sequence number, messages |
//! | acknowledgement | `KEY/ack` | `rmzA`, stream, receiver, pushed, received, gap (1 byte) |
//!
//! Frames in data are preceded by their length in 4 bytes. A [`RingType`] is one byte `framed`, size, kind, ABI and the table in UTF-8.

use std::borrow::Cow;

use zenoh::bytes::ZBytes;

use crate::RingType;
use crate::ring_type::shortened;

pub const HEADER: usize = 32;
/// Most bytes of an envelope other than data: a hello and a refusal hold a table of at most 16 KiB.
const LONGEST: usize = 20 << 10;

/// Returns the bytes of a payload, or `None` if no envelope other than data is that long.
///
/// The length is compared first, because zenoh copies a payload that arrived in fragments.
pub fn short(payload: &ZBytes) -> Option<Cow<'_, [u8]>> {
    (payload.len() <= LONGEST).then(|| payload.to_bytes())
}

#[derive(Clone, Debug, PartialEq)]
pub struct Hello {
    pub stream: u64,
    pub first: u64,
    /// Unreleased messages of the source. The receiver's number is `first` to `first + count`; others are false.
    pub count: u64,
    /// Most unacknowledged bytes, by the sender's window and ring.
    pub limit: u64,
    pub ring: RingType,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Welcome {
    pub receiver: u64,
    pub pushed: u64,
    pub received: u64,
    pub window: u64,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    Welcome(Welcome),
    Refusal(RingType),
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Data {
    pub count: u32,
    pub stream: u64,
    pub receiver: u64,
    pub first: u64,
}

/// The messages before `pushed` are in the sink, those before `received` in the receiver's memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ack {
    pub stream: u64,
    pub receiver: u64,
    pub pushed: u64,
    pub received: u64,
    /// A later batch arrived: the one at `received` is lost.
    pub gap: bool,
}

struct Fields<'b>(&'b [u8]);

impl<'b> Fields<'b> {
    fn of(bytes: &'b [u8], magic: &[u8; 4]) -> Option<Self> {
        bytes.strip_prefix(magic).map(Self)
    }

    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*first)
    }

    fn number(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    fn flag(&mut self) -> Option<bool> {
        match self.take::<1>()? {
            [0] => Some(false),
            [1] => Some(true),
            _ => None,
        }
    }

    fn ring(mut self) -> Option<RingType> {
        let (framed, size, kind, abi) = (self.flag()?, self.number()?, self.number()?, self.number()?);
        let table = std::str::from_utf8(self.0).ok()?.to_owned();
        Some(RingType { framed, size, kind, abi, table: shortened(table) })
    }

    fn end(self) -> Option<()> {
        self.0.is_empty().then_some(())
    }
}

fn write(magic: &[u8; 4], numbers: &[u64]) -> Vec<u8> {
    let mut bytes = magic.to_vec();
    bytes.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
    bytes
}

fn append(mut bytes: Vec<u8>, ring: &RingType) -> Vec<u8> {
    bytes.push(ring.framed.into());
    bytes.extend([ring.size, ring.kind, ring.abi].iter().flat_map(|number| number.to_le_bytes()));
    // The other side ignores longer envelopes.
    bytes.extend_from_slice(shortened(ring.table.clone()).as_bytes());
    bytes
}

impl Hello {
    pub fn encode(&self) -> Vec<u8> {
        append(write(b"rmzH", &[self.stream, self.first, self.count, self.limit]), &self.ring)
    }

    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut fields = Fields::of(bytes, b"rmzH")?;
        let [stream, first, count, limit] = [fields.number()?, fields.number()?, fields.number()?, fields.number()?];
        Some(Self { stream, first, count, limit, ring: fields.ring()? })
    }
}

impl Reply {
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Welcome(Welcome { receiver, pushed, received, window }) => write(b"rmzW", &[*receiver, *pushed, *received, *window]),
            Self::Refusal(ring) => append(write(b"rmzR", &[]), ring),
        }
    }

    pub fn decode(bytes: &[u8]) -> Option<Self> {
        if let Some(fields) = Fields::of(bytes, b"rmzR") {
            return fields.ring().map(Self::Refusal);
        }
        let mut fields = Fields::of(bytes, b"rmzW")?;
        let [receiver, pushed, received, window] = [fields.number()?, fields.number()?, fields.number()?, fields.number()?];
        fields.end()?;
        Some(Self::Welcome(Welcome { receiver, pushed, received, window }))
    }
}

impl Data {
    pub fn encode(&self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[..4].copy_from_slice(b"rmzD");
        bytes[4..8].copy_from_slice(&self.count.to_le_bytes());
        for (place, number) in [self.stream, self.receiver, self.first].into_iter().enumerate() {
            bytes[8 + 8 * place..16 + 8 * place].copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }

    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut fields = Fields::of(bytes, b"rmzD")?;
        let count = u32::from_le_bytes(fields.take()?);
        Some(Self { count, stream: fields.number()?, receiver: fields.number()?, first: fields.number()? })
    }
}

impl Ack {
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = write(b"rmzA", &[self.stream, self.receiver, self.pushed, self.received]);
        bytes.push(self.gap.into());
        bytes
    }

    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut fields = Fields::of(bytes, b"rmzA")?;
        let [stream, receiver, pushed, received] = [fields.number()?, fields.number()?, fields.number()?, fields.number()?];
        let gap = fields.flag()?;
        fields.end()?;
        Some(Self { stream, receiver, pushed, received, gap })
    }
}

/// Splits off the first frame; `None` if it is incomplete.
pub fn split_frame(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, rest) = bytes.split_first_chunk()?;
    rest.split_at_checked(u32::from_le_bytes(*len) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn envelopes_round_trip_and_prefixes_do_not_decode() {
        let ring = RingType::of::<u64>();
        let hello = Hello { stream: 1, first: u64::MAX, count: 5, limit: 2, ring: ring.clone() };
        assert_eq!(Hello::decode(&hello.encode()), Some(hello.clone()));
        let data = Data { count: 7, stream: 1, receiver: 2, first: 3 };
        assert_eq!(Data::decode(&data.encode()), Some(data));
        let ack = Ack { stream: 1, receiver: 2, pushed: 3, received: 4, gap: true };
        assert_eq!(Ack::decode(&ack.encode()), Some(ack));
        for reply in [Reply::Welcome(Welcome { receiver: 1, pushed: 2, received: 3, window: 4 }), Reply::Refusal(ring)] {
            assert_eq!(Reply::decode(&reply.encode()), Some(reply));
        }
        for end in 0..ack.encode().len() {
            assert_eq!(Ack::decode(&ack.encode()[..end]), None);
            assert_eq!(Data::decode(&data.encode()[..end.min(31)]), None);
            assert_eq!(Hello::decode(&hello.encode()[..end]), None);
        }
        let long = RingType { table: "é".repeat(LONGEST), ..RingType::of::<u64>() };
        let long = Hello { stream: 1, first: 2, count: 3, limit: 4, ring: long }.encode();
        assert!(short(&ZBytes::from(long.clone())).is_some_and(|bytes| Hello::decode(&bytes).is_some()), "the table is cut");
        assert_eq!(short(&ZBytes::from(vec![0; LONGEST + 1])), None);
        assert_eq!(split_frame(&[3, 0, 0, 0, 1, 2]), None);
        assert_eq!(split_frame(&[2, 0, 0, 0, 1, 2, 3]), Some((&[1, 2][..], &[3][..])));
    }
}
