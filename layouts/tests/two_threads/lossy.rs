use std::thread;

use crate::patience::Patience;
use ringmem_layouts::ring::lossy::{ReadError, Reader, Ring, Writer};
use ringmem_layouts::ring::mailbox::{LatestError, Mailbox};
use ringmem_layouts::{Local, RingMessage};

const MESSAGES: u64 = 500_000 * crate::DEPTH;
const START: u64 = u64::MAX - 5;

type Words<const N: usize> = [u64; N];

fn numbered<const N: usize>(number: u64) -> Words<N> {
    std::array::from_fn(|place| (number ^ (place as u64) << 56).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    read: u64,
    lost: u64,
}

fn follow<T: RingMessage>(
    reader: &mut Reader<'_, T, Local>,
    mut read: impl FnMut(&mut Reader<'_, T, Local>, u64) -> Result<u64, ReadError>,
) -> Seen {
    let mut seen = Seen::default();
    let mut patience = Patience::new();
    while seen.read + seen.lost < MESSAGES {
        match read(reader, seen.read + seen.lost) {
            Ok(0) | Err(ReadError::Empty) => {
                patience.wait();
                continue;
            }
            Ok(count) => seen.read += count,
            Err(ReadError::Overrun { lost }) => seen.lost += lost,
            Err(corrupt) => panic!("{corrupt}"),
        }
        patience = Patience::new();
    }
    assert_eq!((seen.read + seen.lost, seen.lost), (MESSAGES, reader.lost()));
    assert_eq!((reader.pop().err(), reader.head()), (Some(ReadError::Empty), START.wrapping_add(MESSAGES)));
    seen
}

fn to_two_readers<const N: usize, const CAPACITY: usize>(write: impl FnOnce(&mut Writer<'_, Words<N>, Local>) + Send) -> [Seen; 2]
where
    Words<N>: RingMessage,
{
    let mut ring = Box::new(Ring::<Words<N>, CAPACITY>::starting_at(START));
    let (mut writer, mut reader) = ring.split();
    let mut other = reader.clone();
    thread::scope(|scope| {
        let by_slices = scope.spawn(|| {
            let mut messages = [[0; N]; 29];
            follow(&mut other, |reader, number| {
                let count = reader.pop_slice(&mut messages)?;
                for (message, number) in messages[..count].iter().zip(number..) {
                    assert_eq!(*message, numbered(number), "message {number}");
                }
                Ok(count as u64)
            })
        });
        scope.spawn(|| write(&mut writer));
        let one_by_one = follow(&mut reader, |reader, number| {
            assert_eq!(reader.pop()?, numbered(number), "message {number}");
            Ok(1)
        });
        [one_by_one, by_slices.join().unwrap()]
    })
}

/// Yields: with fewer cores than threads, most messages would be lost.
fn breathe(number: u64) {
    if number.is_multiple_of(512) {
        thread::yield_now();
    }
}

fn one_by_one<const N: usize, const CAPACITY: usize>() -> [Seen; 2]
where
    Words<N>: RingMessage,
{
    to_two_readers::<N, CAPACITY>(|writer| {
        for number in 0..MESSAGES {
            writer.push(numbered(number));
            breathe(number);
        }
    })
}

#[test]
fn single_words_are_read_or_lost() {
    let seen = one_by_one::<1, 1024>();
    assert!(seen.iter().all(|seen| seen.read > 0), "{seen:?}");
}

#[test]
fn five_words_are_whole_in_one_slot() {
    let seen = one_by_one::<5, 1>();
    assert!(seen.iter().all(|seen| seen.lost > 0), "{seen:?}");
}

#[test]
fn five_words_are_whole_in_eight_slots() {
    one_by_one::<5, 8>();
}

#[test]
fn messages_of_256_bytes_are_whole_in_four_slots() {
    let seen = one_by_one::<32, 4>();
    assert!(seen.iter().all(|seen| seen.lost > 0), "{seen:?}");
}

#[test]
fn five_words_are_whole_in_batches() {
    to_two_readers::<5, 64>(|writer| {
        let mut batch = writer.batch(16);
        for number in 0..MESSAGES {
            batch.push(numbered(number));
            breathe(number);
        }
    });
}

#[test]
fn five_words_are_whole_by_slices() {
    to_two_readers::<5, 16>(|writer| {
        let mut number = 0;
        while number < MESSAGES {
            let count = (number % 31 + 1).min(MESSAGES - number);
            let messages: Vec<_> = (number..number + count).map(numbered).collect();
            writer.push_slice(&messages);
            number += count;
            breathe(number);
        }
    });
}

#[test]
fn mailbox_versions_never_decrease_and_values_are_whole() {
    let mut mailbox = Mailbox::<Words<32>>::starting_at(START);
    let (mut writer, mut reader) = mailbox.split();
    let other = reader.clone();
    thread::scope(|scope| {
        scope.spawn(move || {
            for version in 1..=MESSAGES {
                writer.publish(numbered(version));
                breathe(version);
            }
        });
        scope.spawn(move || {
            let (mut last, mut patience) = (0, Patience::new());
            while last < MESSAGES {
                match other.latest() {
                    Ok((version, value)) => {
                        assert_eq!(value, numbered(version), "version {version}");
                        assert!(version >= last, "version {version} after {last}");
                        if version > last {
                            patience = Patience::new();
                        }
                        last = version;
                    }
                    Err(LatestError::Empty) => assert_eq!(last, 0),
                    Err(LatestError::Busy) => {}
                }
                patience.wait();
            }
        });
        let (mut taken, mut skipped, mut patience) = (0, 0, Patience::new());
        while taken + skipped < MESSAGES {
            match reader.take_new() {
                Ok(new) => {
                    assert_eq!(new.value, numbered(new.version), "version {}", new.version);
                    taken += 1;
                    skipped += new.skipped;
                    assert_eq!(new.version, taken + skipped);
                    patience = Patience::new();
                }
                Err(_) => patience.wait(),
            }
        }
        assert!(taken > 0 && !reader.changed());
    });
}
