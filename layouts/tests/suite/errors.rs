use core::fmt::Debug;

use ringmem_layouts::attach::{AttachError, Corrupt};
use ringmem_layouts::message::ReferenceError;
use ringmem_layouts::ring::{LayoutError, PopError, PushError, ReserveError, framed, lossy};

const CORRUPT: Corrupt = Corrupt { head: 1, tail: 9, capacity: 4 };
const CORRUPT_TEXT: &str = "ring is corrupt: tail 9 is not within 4 slots of head 1";

fn check<const N: usize>(cases: [(impl core::error::Error, &str); N]) {
    for (error, text) in cases {
        assert_eq!(error.to_string(), text, "{error:?}");
    }
}

#[test]
fn ring_errors_print_counts_and_indices() {
    check([(PushError::Full(7), "ring is full"), (PushError::Corrupt(7, CORRUPT), CORRUPT_TEXT)]);
    check([(PopError::Empty, "ring is empty"), (PopError::Corrupt(CORRUPT), CORRUPT_TEXT)]);
    check([
        (ReserveError::Full { free: 3 }, "only 3 slots are free"),
        (ReserveError::TooLarge { capacity: 4 }, "the ring has only 4 slots"),
        (ReserveError::Corrupt(CORRUPT), CORRUPT_TEXT),
    ]);
    check([
        (framed::PopError::TooSmall { needed: 5 }, "buffer too small: the next message has 5 bytes"),
        (
            framed::PopError::BadFrame { index: 2, word: 0x1f, indices: CORRUPT },
            "ring is corrupt: word 2 is 0x1f, not a valid message length",
        ),
    ]);
    check([
        (lossy::ReadError::Overrun { lost: 1 }, "1 message was overwritten before it was read"),
        (lossy::ReadError::Overrun { lost: 2 }, "2 messages were overwritten before they were read"),
        (lossy::ReadError::Corrupt(CORRUPT), CORRUPT_TEXT),
    ]);
    check([(lossy::Overrun { lost: 3 }, "3 messages were overwritten before they were read")]);
}

#[test]
fn push_errors_print_without_debug_of_the_value() {
    struct Opaque;
    let debug = |error: &dyn Debug| format!("{error:?}");
    assert_eq!([debug(&PushError::<_>::Full(Opaque)), debug(&PushError::Corrupt(Opaque, CORRUPT))], ["Full(..)", "Corrupt(..)"]);
}

#[test]
fn attach_errors_print_expected_and_found() {
    check([
        (AttachError::Misaligned { address: 0x13, align: 8 }, "address 0x13 is null or not a multiple of 8"),
        (AttachError::TooSmall { needed: 64, got: 8 }, "region too small: 8 bytes, 64 needed"),
        (AttachError::Magic { expected: 1, got: 2 }, "not formatted: magic is 0x0000000000000002, expected 0x0000000000000001"),
        (AttachError::Version { expected: 1, got: 2 }, "version 2, expected 1"),
        (
            AttachError::Abi { expected: 1, got: 2 },
            "type mismatch: ABI 0x0000000000000002, expected 0x0000000000000001; compile both sides with the same definition of the type",
        ),
        (AttachError::Kind { expected: 1, got: 2 }, "messages of kind 2, expected 1"),
        (AttachError::SlotSize { expected: 8, got: 4 }, "slots of 4 bytes, expected 8"),
        (AttachError::Offset { got: 3 }, "invalid offset 3: misaligned or out of bounds"),
        (AttachError::Count { got: 99 }, "99 entries: more than a region can have"),
        (AttachError::Corrupt(CORRUPT), "ring is corrupt: head 1 and tail 9 are invalid for 4 slots"),
    ]);
}

#[test]
fn layout_errors_print_the_next_capacity() {
    check([
        (LayoutError::NotAPowerOfTwo { capacity: 1000 }, "invalid capacity: 1000 is not a power of two; the next is 1024"),
        (LayoutError::NotAPowerOfTwo { capacity: 0 }, "invalid capacity: 0 is not a power of two"),
        (LayoutError::NotAPowerOfTwo { capacity: u64::MAX }, "invalid capacity: 18446744073709551615 is not a power of two"),
    ]);
}

#[test]
fn reference_errors_print_the_found_value() {
    check([
        (ReferenceError::Empty, "empty buffer reference"),
        (ReferenceError::Flags { got: 0b110 }, "flags 0b110 are unknown"),
        (ReferenceError::Reserved { got: 0x10 }, "reserved field is 0x10, expected zero"),
        (
            ReferenceError::Elements { expected: 1, got: 2 },
            "reference to elements with layout 0x0000000000000002, expected 0x0000000000000001",
        ),
        (ReferenceError::Part { offset: 1, length: 7, size: 4 }, "7 bytes at offset 1 are not whole elements of 4 bytes"),
    ]);
}
