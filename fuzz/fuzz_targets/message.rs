//! Messages: any bytes, and sealed messages with one bit flipped.

#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use ringmem_layouts::clock::Stamp;
use ringmem_layouts::message::{Flags, HeaderError, MAGIC, MessageHeader, Priority};
use zerocopy::IntoBytes;

#[derive(Arbitrary, Debug)]
struct Input {
    before: u8,
    bytes: Bytes,
}

#[derive(Arbitrary, Debug)]
enum Bytes {
    Any(Vec<u8>),
    Header { flags: u8, payload_length: u16, rest: [[u8; 16]; 3], payload: Vec<u8> },
    Sealed { sent: Sent, payload: Vec<u8>, bit: u16 },
}

#[derive(Arbitrary, Debug)]
struct Sent {
    kind: u32,
    id: u64,
    route: (u32, u32),
    priority: u8,
    deadline: u64,
    stamp: u64,
    error: bool,
    request: Option<u64>,
}

impl Sent {
    fn header(&self) -> MessageHeader {
        let priorities = [Priority::Low, Priority::Normal, Priority::High, Priority::Critical];
        let priority = priorities[usize::from(self.priority % 4)];
        let mut header = MessageHeader::new(self.kind)
            .with_id(self.id)
            .with_route(self.route.0, self.route.1)
            .with_priority(priority)
            .with_deadline(self.deadline)
            .with_stamp(Stamp::from_bits(self.stamp));
        assert_eq!(header.priority(), priority);
        if let Some(id) = self.request {
            let request = MessageHeader::new(0).with_id(id).with_route(self.route.1, self.route.0).with_priority(priority);
            header = header.reply_to(&request);
            assert_eq!((header.source, header.destination, header.correlation), (self.route.0, self.route.1, id));
        }
        if self.error { header.with_error() } else { header }
    }
}

/// An allocation of exactly their size lets the sanitizer detect accesses outside.
fn placed(before: u8, parts: &[&[u8]]) -> (usize, Vec<u8>) {
    let before = usize::from(before % 8);
    (before, [&[0xAA; 8][..before], &parts.concat()].concat())
}

fn any(bytes: &[u8]) {
    match MessageHeader::parse(bytes) {
        Ok((header, payload)) => {
            assert_eq!(header.as_bytes(), &bytes[..64]);
            assert_eq!(payload.len(), header.payload_length as usize);
            assert_eq!(payload, &bytes[64..64 + payload.len()]);
            assert_eq!((header.magic, header._reserved), (MAGIC, 0));
            let flags = Flags::from_bits(header.flags).expect("known flags");
            assert_eq!(flags.contains(Flags::HAS_DEADLINE), header.deadline != 0);
            assert!(header.is_expired(u64::MAX) == (header.deadline != 0 && header.deadline != u64::MAX));
            match header.check(payload) {
                Ok(()) => assert_eq!(header.seal(payload), Ok(header)),
                Err(HeaderError::Unsealed) => assert!(!flags.contains(Flags::HAS_CHECKSUM) && header.checksum == 0),
                Err(HeaderError::Checksum { expected, got }) => assert!(expected != got && got == header.checksum),
                Err(other) => panic!("{other}"),
            }
        }
        Err(refused) => {
            assert!(!refused.to_string().is_empty());
            match refused {
                HeaderError::TooShort { got, .. } => assert!(got < 64 && got == bytes.len() as u64),
                HeaderError::Length { claimed, available } => {
                    assert!(u64::from(claimed) > available && available == bytes.len() as u64 - 64)
                }
                _ => {}
            }
        }
    }
}

fuzz_target!(|input: Input| match input.bytes {
    Bytes::Any(bytes) => {
        let (at, bytes) = placed(input.before, &[&bytes]);
        any(&bytes[at..]);
    }
    Bytes::Header { flags, payload_length, rest, payload } => {
        let mut bytes = [&MAGIC.to_ne_bytes(), &u32::from(flags).to_ne_bytes(), rest.as_bytes(), &[0; 8][..]].concat();
        bytes[36..40].copy_from_slice(&u32::from(payload_length).to_ne_bytes());
        let (at, bytes) = placed(input.before, &[&bytes, &payload]);
        any(&bytes[at..]);
    }
    Bytes::Sealed { sent, payload, bit } => {
        let header = sent.header().seal(&payload).expect("a short payload");
        let (at, mut bytes) = placed(input.before, &[header.as_bytes(), &payload]);
        any(&bytes[at..]);
        let outcome = |bytes: &[u8]| MessageHeader::parse(bytes).and_then(|(header, payload)| header.check(payload));
        assert_eq!(outcome(&bytes[at..]), Ok(()));
        let bit = usize::from(bit) % (8 * (bytes.len() - at));
        bytes[at + bit / 8] ^= 1 << (bit % 8);
        any(&bytes[at..]);
        assert!(outcome(&bytes[at..]).is_err());
    }
});
