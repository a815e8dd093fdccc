use std::mem::offset_of;

use proptest::collection::vec;
use proptest::prelude::*;
use ringmem_layouts::clock::Stamp;
use ringmem_layouts::message::{Flags, HeaderError, MAGIC, MessageHeader, Priority};
use ringmem_layouts::{LAYOUTS, Layout};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

const PRIORITIES: [Priority; 4] = [Priority::Low, Priority::Normal, Priority::High, Priority::Critical];

prop_compose! {
    fn header()(
        (id, correlation, deadline, stamp) in any::<(u64, u64, u64, u64)>(),
        (source, destination, kind) in any::<(u32, u32, u32)>(),
        priority in 0_usize..4,
        (error, is_reply, has_deadline) in any::<(bool, bool, bool)>(),
    ) -> MessageHeader {
        let mut header = MessageHeader::new(kind)
            .with_id(id)
            .with_route(source, destination)
            .with_priority(PRIORITIES[priority])
            .with_deadline(if has_deadline { deadline } else { 0 })
            .with_stamp(Stamp::from_bits(stamp));
        if is_reply {
            header = header.reply_to(&MessageHeader::new(0).with_id(correlation).with_route(destination, source).with_priority(PRIORITIES[priority]));
        }
        if error { header.with_error() } else { header }
    }
}

fn sent(header: &MessageHeader, payload: &[u8], before: usize) -> Vec<u8> {
    [&vec![0xAA; before], header.as_bytes(), payload].concat()
}

proptest! {
    #[test]
    fn messages_round_trip_through_parse(header in header(), payload in vec(any::<u8>(), 0..200), before in 0_usize..9, after in 0_usize..9) {
        let header = header.with_payload_length(payload.len() as u32);
        let bytes = [sent(&header, &payload, before), vec![0x55; after]].concat();
        prop_assert_eq!(MessageHeader::parse(&bytes[before..]), Ok((header, payload.as_slice())));
    }

    #[test]
    fn builder_methods_set_their_fields((id, stamp, deadline) in any::<(u64, u64, u64)>(), (source, destination, kind) in any::<(u32, u32, u32)>()) {
        let header = MessageHeader::new(kind).with_id(id).with_route(source, destination).with_deadline(deadline).with_stamp(Stamp::from_bits(stamp));
        prop_assert_eq!((header.id, header.source, header.destination, header.kind), (id, source, destination, kind));
        prop_assert_eq!((header.deadline, header.stamp().bits()), (deadline, stamp));
        prop_assert_eq!(header.is_expired(deadline.saturating_add(1)), deadline != 0 && deadline != u64::MAX);
        prop_assert!(!header.is_expired(deadline));
        prop_assert_eq!(header.with_deadline(0), MessageHeader { deadline: 0, flags: Priority::Normal as u32, ..header });
    }

    #[test]
    fn validate_accepts_only_valid_headers(bytes in any::<[[u8; 32]; 2]>(), magic in any::<bool>(), available in 0_usize..1000) {
        let mut header = MessageHeader::read_from_bytes(bytes.as_bytes()).unwrap();
        if magic {
            (header.magic, header._reserved) = (MAGIC, 0);
            header.flags %= 128;
            header.payload_length %= 2000;
        }
        let is_valid = header.magic == MAGIC
            && header._reserved == 0
            && header.flags < 64
            && (header.flags & 4 != 0) == (header.deadline != 0)
            && (header.flags & 8 != 0 || header.checksum == 0)
            && header.payload_length as usize <= available;
        prop_assert_eq!(header.validate(available).is_ok(), is_valid);
    }
}

#[cfg(feature = "checksum")]
mod sealed {
    use super::*;

    proptest! {
        #[test]
        fn check_rejects_every_single_bit_flip(header in header(), payload in vec(any::<u8>(), 0..100), before in 0_usize..9) {
            let header = header.seal(&payload).unwrap();
            prop_assert_eq!(header.check(&payload), Ok(()));
            let mut bytes = sent(&header, &payload, before);
            let (parsed, read) = MessageHeader::parse(&bytes[before..]).unwrap();
            prop_assert_eq!((parsed, read), (header, payload.as_slice()));
            for bit in 0..8 * (64 + payload.len()) {
                let flip = |bytes: &mut [u8]| bytes[before + bit / 8] ^= 1 << (bit % 8);
                flip(&mut bytes);
                let outcome = MessageHeader::parse(&bytes[before..]).and_then(|(header, payload)| header.check(payload));
                prop_assert!(outcome.is_err(), "bit {bit}");
                flip(&mut bytes);
            }
        }

        #[test]
        fn check_rejects_bursts_of_up_to_32_bits(payload in vec(any::<u8>(), 4..100), place in any::<u16>(), run in 1..=u32::MAX) {
            let header = MessageHeader::new(1).seal(&payload).unwrap();
            let mut changed = payload;
            let place = usize::from(place) % (changed.len() - 3);
            changed[place..place + 4].iter_mut().zip(run.to_le_bytes()).for_each(|(byte, change)| *byte ^= change);
            let refused = matches!(header.check(&changed), Err(HeaderError::Checksum { .. }));
            prop_assert!(refused);
        }
    }

    #[test]
    fn the_checksum_is_crc32c_of_rfc_3720() {
        // RFC 3720, appendix B.4.
        let tests: [([u8; 32], u32); 4] = [
            ([0; 32], 0x8a91_36aa),
            ([0xff; 32], 0x62a8_ab43),
            (std::array::from_fn(|n| n as u8), 0x46dd_794e),
            (std::array::from_fn(|n| 31 - n as u8), 0x113f_db5c),
        ];
        for (bytes, sum) in tests {
            assert_eq!(bitwise(&bytes), sum, "the reference below");
        }
        let header = MessageHeader::new(3).with_id(4).seal(b"123456789").unwrap();
        let zeroed = MessageHeader { checksum: 0, ..header };
        assert_eq!(header.checksum, bitwise(&[zeroed.as_bytes(), b"123456789"].concat()));
    }

    fn bitwise(bytes: &[u8]) -> u32 {
        !bytes.iter().fold(!0, |sum, byte| {
            (0..8).fold(sum ^ u32::from(*byte), |sum, _| if sum & 1 == 1 { sum >> 1 ^ 0x1edc_6f41_u32.reverse_bits() } else { sum >> 1 })
        })
    }

    #[test]
    fn check_rejects_unsealed_and_altered_messages() {
        let bare = MessageHeader::new(1).with_payload_length(2);
        assert_eq!(bare.check(b"ab"), Err(HeaderError::Unsealed));
        assert_eq!(bare.check(b"abc"), Err(HeaderError::Length { claimed: 2, available: 3 }));
        assert_eq!(bare.check(b"a"), Err(HeaderError::Length { claimed: 2, available: 1 }));
        let sealed = bare.seal(b"ab").unwrap();
        let expected = sealed.checksum;
        assert_eq!(MessageHeader { checksum: 7, ..sealed }.check(b"ab"), Err(HeaderError::Checksum { expected, got: 7 }));
        assert!(sealed.with_id(2).check(b"ab").is_err(), "set after it was sealed");
    }
}

#[test]
fn validate_returns_the_exact_header_error() {
    let good = MessageHeader::new(1).with_payload_length(8);
    assert_eq!(good.validate(8), Ok(()));
    assert_eq!(MessageHeader::new_zeroed().validate(8), Err(HeaderError::Empty));
    assert_eq!(MessageHeader { magic: 5, ..good }.validate(8), Err(HeaderError::Magic { expected: MAGIC, got: 5 }));
    let newer = MessageHeader { magic: MAGIC + (1 << 24), ..good };
    assert_eq!(newer.validate(8), Err(HeaderError::Version { expected: 1, got: 2 }));
    assert_eq!(MessageHeader { flags: 64, ..good }.validate(8), Err(HeaderError::Flags { got: 64 }));
    assert_eq!(MessageHeader { deadline: 9, ..good }.validate(8), Err(HeaderError::Flags { got: 1 }));
    assert_eq!(MessageHeader { flags: 5, ..good }.validate(8), Err(HeaderError::Flags { got: 5 }), "a deadline of 0");
    assert_eq!(MessageHeader { checksum: 9, ..good }.validate(8), Err(HeaderError::Flags { got: 1 }));
    assert_eq!(MessageHeader { _reserved: 1, ..good }.validate(8), Err(HeaderError::Reserved { got: 1 }));
    assert_eq!(good.validate(7), Err(HeaderError::Length { claimed: 8, available: 7 }));
    assert_eq!(MessageHeader::parse(&[0; 63]), Err(HeaderError::TooShort { needed: 64, got: 63 }));
    assert_eq!(MessageHeader::parse(good.as_bytes()), Err(HeaderError::Length { claimed: 8, available: 0 }));
}

#[test]
fn replies_keep_the_priority_of_the_request() {
    assert!(PRIORITIES.is_sorted_by(|a, b| a < b));
    let error = MessageHeader::new(0).with_error();
    assert_eq!(error.priority(), Priority::default());
    for priority in PRIORITIES {
        let header = error.with_priority(Priority::Critical).with_priority(priority);
        assert_eq!((header.priority(), header.flags & !3), (priority, Flags::ERROR.bits()));
        assert_eq!(MessageHeader::new(1).reply_to(&header).flags, Flags::RESPONSE.bits() | priority as u32);
    }
}

#[test]
fn reply_to_swaps_route_and_sets_correlation() {
    let request = MessageHeader::new(1).with_id(9).with_route(10, 20);
    let answer = MessageHeader::new(2).with_id(3).with_route(5, 6).reply_to(&request);
    assert_eq!((answer.kind, answer.id, answer.correlation, answer.source, answer.destination), (2, 3, 9, 20, 10));
}

#[test]
fn the_descriptor_matches_compiler_offsets() {
    let offsets = [
        ("magic", offset_of!(MessageHeader, magic)),
        ("flags", offset_of!(MessageHeader, flags)),
        ("id", offset_of!(MessageHeader, id)),
        ("correlation", offset_of!(MessageHeader, correlation)),
        ("source", offset_of!(MessageHeader, source)),
        ("destination", offset_of!(MessageHeader, destination)),
        ("kind", offset_of!(MessageHeader, kind)),
        ("payload_length", offset_of!(MessageHeader, payload_length)),
        ("deadline", offset_of!(MessageHeader, deadline)),
        ("timestamp", offset_of!(MessageHeader, timestamp)),
        ("checksum", offset_of!(MessageHeader, checksum)),
        ("_reserved", offset_of!(MessageHeader, _reserved)),
    ];
    let layout = MessageHeader::DESCRIPTOR;
    assert_eq!((layout.size, layout.align, layout.name), (64, 8, "MessageHeader"));
    assert!(layout.fields.iter().map(|field| (field.name, field.offset)).eq(offsets));
    assert!(LAYOUTS.contains(&layout), "and the image's hash covers it");
}
