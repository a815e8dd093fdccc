use std::cell::RefCell;
use std::convert::Infallible;
use std::ptr::NonNull;

use ringmem_layouts::attach::Corrupt;
use ringmem_layouts::ring::{BareSlot, End, Owned, ReadBytes, WaitWords, WriteBytes, spsc};
use ringmem_layouts::{Host, HostWord, Local, RingHeader, RingLayout, SlotCell, Word};

const STARTS: [u64; 4] = [0, 1, u64::MAX - 2, u64::MAX];

macro_rules! with_ends {
    ($act:ident) => {
        for start in STARTS {
            let mut ring = spsc::Ring::<u8, 4>::starting_at(start);
            let (producer, consumer) = ring.split();
            $act(producer, consumer);
            let (producer, consumer) = spsc::Ring::<u8, 4>::starting_at(start).into_ends();
            $act(producer, consumer);
        }
    };
}

/// The producer is dropped, after its last bytes, just before the check for it.
struct Late {
    consumer: Owned<spsc::Consumer<'static, u8, Local>>,
    producer: RefCell<Option<Owned<spsc::Producer<'static, u8, Local>>>>,
}

impl End for Late {
    type Word = HostWord;
    type Corrupt = Infallible;
    fn wait_words(&self) -> WaitWords<'_, HostWord> {
        self.consumer.wait_words()
    }
    fn is_disconnected(&self) -> bool {
        if let Some(mut producer) = self.producer.borrow_mut().take() {
            producer.push(7).unwrap();
        }
        End::is_disconnected(&self.consumer)
    }
    fn leave(self, after: impl FnOnce(&HostWord)) {
        self.consumer.leave(after);
    }
}

impl ReadBytes for Late {
    fn read_some(&mut self, into: &mut [u8]) -> Result<usize, Corrupt> {
        self.consumer.read_some(into)
    }
    fn has_bytes(&mut self) -> bool {
        self.consumer.has_bytes()
    }
}

#[test]
fn bytes_published_before_a_close_are_read_first() {
    let (producer, consumer) = spsc::bounded(4);
    let mut late = Late { consumer, producer: RefCell::new(Some(producer)) };
    let mut bytes = [0; 2];
    assert_eq!((late.try_read(&mut bytes), bytes), (Some(Ok(1)), [7, 0]));
    assert_eq!(late.try_read(&mut bytes), Some(Ok(0)));
}

struct Memory {
    header: RingHeader<HostWord>,
    slots: [BareSlot<u8>; 4],
}

impl Memory {
    fn new() -> Self {
        Self { header: RingHeader::new::<u8>(&RingLayout::of::<u8>(4).unwrap(), 0), slots: [0; 4].map(SlotCell::new) }
    }

    fn ends(&self) -> (spsc::Producer<'_, u8, Host>, spsc::Consumer<'_, u8, Host>) {
        let slots = NonNull::from(&self.slots).cast();
        // SAFETY: initialised, and these ends' only.
        unsafe {
            let producer = spsc::Producer::new(&self.header, &self.header, slots).unwrap();
            (producer, spsc::Consumer::new(&self.header, &self.header, slots).unwrap())
        }
    }
}

#[cfg(feature = "std")]
mod standard {
    use std::io::{Error, ErrorKind, Read, Write};

    use super::*;

    fn kind<T: std::fmt::Debug>(result: Result<T, Error>) -> ErrorKind {
        result.unwrap_err().kind()
    }

    #[test]
    fn an_empty_or_full_stream_returns_would_block() {
        fn act(mut producer: impl Write, mut consumer: impl Read) {
            let mut bytes = [0; 3];
            assert_eq!(kind(consumer.read(&mut bytes)), ErrorKind::WouldBlock);
            assert_eq!((consumer.read(&mut []).unwrap(), producer.write(&[]).unwrap()), (0, 0));
            for round in 0..5 {
                assert_eq!(producer.write(&[round, 1, 2, 3, 4, 5]).unwrap(), 4);
                assert_eq!((kind(producer.write(&[6])), producer.write(&[]).unwrap()), (ErrorKind::WouldBlock, 0));
                assert_eq!((consumer.read(&mut bytes).unwrap(), bytes), (3, [round, 1, 2]));
                assert_eq!((consumer.read(&mut bytes).unwrap(), bytes), (1, [3, 1, 2]));
            }
            producer.write_all(&[8, 9]).unwrap();
            producer.flush().unwrap();
            drop(producer);
            let mut rest = Vec::new();
            assert_eq!((consumer.read_to_end(&mut rest).unwrap(), rest), (2, vec![8, 9]));
            assert_eq!(consumer.read(&mut bytes).unwrap(), 0);
        }
        with_ends!(act);
    }

    #[test]
    fn writing_without_a_consumer_returns_broken_pipe() {
        fn act(mut producer: impl Write, consumer: impl Read) {
            producer.write_all(&[1]).unwrap();
            drop(consumer);
            assert_eq!((kind(producer.write(&[2])), producer.write(&[]).unwrap()), (ErrorKind::BrokenPipe, 0));
        }
        with_ends!(act);
    }

    #[test]
    fn an_impossible_index_returns_invalid_data() {
        let memory = Memory::new();
        let (mut producer, mut consumer) = memory.ends();
        Word::store(&memory.header.producer.tail, 5);
        let error = consumer.read(&mut [0]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidData);
        assert_eq!(error.get_ref().and_then(|inner| inner.downcast_ref()), Some(&Corrupt { head: 0, tail: 5, capacity: 4 }));
        assert_eq!(producer.write(&[1, 2, 3, 4]).unwrap(), 4);
        Word::store(&memory.header.consumer.head, 5);
        assert_eq!(kind(producer.write(&[1])), ErrorKind::InvalidData);
    }
}

#[cfg(feature = "embedded-io")]
mod embedded {
    use std::thread;

    use embedded_io::{ErrorKind, Read, ReadReady, Write, WriteReady};

    use super::*;
    use crate::patience::insist;

    trait Reader: Read<Error = ErrorKind> + ReadReady {}
    impl<R: Read<Error = ErrorKind> + ReadReady> Reader for R {}
    trait Writer: Write<Error = ErrorKind> + WriteReady {}
    impl<W: Write<Error = ErrorKind> + WriteReady> Writer for W {}

    #[test]
    fn ready_ends_read_and_write_without_blocking() {
        fn act(mut producer: impl Writer, mut consumer: impl Reader) {
            let mut bytes = [0; 3];
            for round in 0..5 {
                assert_eq!((producer.write_ready(), consumer.read_ready()), (Ok(true), Ok(false)));
                assert_eq!((consumer.read(&mut []), producer.write(&[])), (Ok(0), Ok(0)));
                assert_eq!(producer.write(&[round, 1, 2, 3, 4, 5]), Ok(4));
                assert_eq!((producer.write_ready(), consumer.read_ready(), producer.flush()), (Ok(false), Ok(true), Ok(())));
                assert_eq!((consumer.read(&mut bytes), bytes), (Ok(3), [round, 1, 2]));
                assert_eq!((producer.write_ready(), consumer.read_ready()), (Ok(true), Ok(true)));
                assert_eq!((consumer.read(&mut bytes), bytes), (Ok(1), [3, 1, 2]));
            }
            drop(producer);
            assert_eq!((consumer.read_ready(), consumer.read(&mut bytes)), (Ok(true), Ok(0)));
        }
        with_ends!(act);
    }

    #[test]
    fn full_streams_without_consumers_return_broken_pipe() {
        fn act(mut producer: impl Writer, consumer: impl Reader) {
            producer.write_all(&[1, 2, 3, 4]).unwrap();
            drop(consumer);
            assert_eq!((producer.write_ready(), producer.write(&[5])), (Ok(true), Err(ErrorKind::BrokenPipe)));
        }
        with_ends!(act);
    }

    #[test]
    fn blocking_ends_wait_for_bytes_and_room() {
        const BYTES: usize = 100;
        let (mut producer, mut consumer) = spsc::bounded::<u8>(4);
        let sent: Vec<u8> = (0..BYTES).map(|number| number as u8).collect();
        let expected = sent.clone();
        let writer = thread::spawn(move || producer.write_all(&sent));
        let reader = thread::spawn(move || {
            let mut all = vec![0; BYTES];
            consumer.read_exact(&mut all).map(|()| (all, consumer.read(&mut [0])))
        });
        insist(|| (writer.is_finished() && reader.is_finished()).then_some(()));
        assert_eq!((writer.join().unwrap(), reader.join().unwrap()), (Ok(()), Ok((expected, Ok(0)))));
    }

    #[test]
    fn an_impossible_index_returns_invalid_data() {
        let memory = Memory::new();
        let (mut producer, mut consumer) = memory.ends();
        Word::store(&memory.header.producer.tail, 5);
        assert_eq!((consumer.read_ready(), consumer.read(&mut [0])), (Ok(true), Err(ErrorKind::InvalidData)));
        assert_eq!(producer.write(&[1, 2, 3, 4]), Ok(4));
        Word::store(&memory.header.consumer.head, 5);
        assert_eq!((producer.write_ready(), producer.write(&[1])), (Ok(true), Err(ErrorKind::InvalidData)));
    }
}

#[test]
fn a_borrowed_end_is_a_stream() {
    fn exchange(mut producer: impl WriteBytes, mut consumer: impl ReadBytes) {
        assert!(producer.has_room() && !consumer.has_bytes());
        assert_eq!(producer.try_write(&[1]), Some(Ok(1)));
        assert_eq!((consumer.has_bytes(), consumer.try_read(&mut [0; 2]), consumer.try_read(&mut [0])), (true, Some(Ok(1)), None));
    }
    let (mut producer, mut consumer) = spsc::bounded(1);
    exchange(&mut producer, &mut consumer);
    exchange(producer, consumer);
}
