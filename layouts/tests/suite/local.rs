use std::convert::Infallible;
use std::mem::MaybeUninit;
use std::ptr::NonNull;

use ringmem_layouts::ring::{
    BareSlot, Follow, Pop, PopBytes, PopError, Push, PushBytes, PushError, ReserveError, flagged, framed, lossy, mailbox, mpmc, mpsc, spsc,
};
use ringmem_layouts::{HostWord, Local, RingHeader, RingLayout, SlotCell, Word};

fn refused<T>(pushed: Result<(), PushError<T>>) -> Option<T> {
    match pushed {
        Ok(()) => None,
        Err(PushError::Full(value)) => Some(value),
    }
}

#[expect(clippy::manual_ok_err, reason = "the arms are the test")]
fn popped<T>(popped: Result<T, PopError>) -> Option<T> {
    match popped {
        Ok(value) => Some(value),
        Err(PopError::Empty) => None,
    }
}

fn free<T>(reserved: Result<T, ReserveError>) -> Option<usize> {
    match reserved {
        Ok(_) => None,
        Err(ReserveError::Full { free }) => Some(free),
        Err(ReserveError::TooLarge { capacity }) => Some(capacity),
    }
}

fn of_one_slot((mut producer, mut consumer): (impl Push<Item = u32, Corrupt = Infallible>, impl Pop<Item = u32, Corrupt = Infallible>)) {
    assert_eq!([producer.push(1), producer.push(2)].map(refused), [None, Some(2)]);
    assert_eq!([consumer.pop(), consumer.pop()].map(popped), [Some(1), None]);
}

macro_rules! rings {
    ($($name:ident: $kind:ident;)+) => {$(
        #[test]
        #[allow(unused_mut, reason = "the ends of some kinds borrow their ring shared")]
        fn $name() {
            let mut ring = $kind::Ring::<u32, 1>::new();
            of_one_slot(ring.split());
            let (mut producer, mut consumer) = ring.split();
            assert_eq!((free(producer.reserve(2)), free(producer.reserve(1))), (Some(1), None));
            assert_eq!([producer.push(1), producer.batch(2).push(2)].map(refused), [None, Some(2)]);
            assert_eq!((popped(consumer.pop()), refused(producer.push(1)), free(producer.reserve(1))), (Some(1), None, Some(0)));
            let mut memory = [const { MaybeUninit::uninit() }; 1];
            of_one_slot($kind::RingIn::over(&mut memory).unwrap().split());
            of_one_slot($kind::Ring::<u32, 1>::new().into_ends());
            of_one_slot($kind::Boxed::with_capacity(1).into_ends());
            of_one_slot($kind::bounded(1));
            let (mut producer, mut consumer) = $kind::bounded(1);
            assert_eq!([producer.push(1), producer.push(2)].map(refused), [None, Some(2)]);
            assert_eq!([consumer.pop(), consumer.pop()].map(popped), [Some(1), None]);
        }
    )+};
}

rings! {
    spsc_ends_are_never_corrupt: spsc;
    flagged_ends_are_never_corrupt: flagged;
    mpsc_ends_are_never_corrupt: mpsc;
    mpmc_ends_are_never_corrupt: mpmc;
}

#[test]
fn slices_and_polls_within_a_process_return_a_number() {
    let mut ring = spsc::Ring::<u32, 4>::new();
    let (mut producer, mut consumer) = ring.split();
    let (Ok(pushed), Ok(free)) = (producer.push_slice(&[1, 2, 3]), producer.refresh());
    let (Ok(waiting), Ok([first, _])) = (consumer.refresh(), consumer.as_slices());
    assert_eq!((pushed, free, waiting, first.len()), (3, 1, 3, 3));
    let Ok(count) = consumer.pop_slice(&mut [0; 2]);
    assert_eq!((count, popped(consumer.first()).copied(), popped(consumer.peek(1)).map(|chunk| chunk.len())), (2, Some(3), Some(1)));
}

fn of_frames((mut producer, mut consumer): (impl PushBytes<Corrupt = Infallible>, impl PopBytes<Corrupt = Infallible>)) {
    let sent = |pushed| match pushed {
        Ok(()) => "pushed",
        Err(framed::PushError::Full) => "full",
        Err(framed::PushError::TooLarge { .. }) => "too large",
    };
    let messages = [[1; 8].as_slice(), &[2; 9], &[3; 8], &[4; 8]];
    assert_eq!(messages.map(|message| sent(producer.push_bytes(message))), ["pushed", "too large", "pushed", "full"]);
    let received = |popped| match popped {
        Ok(len) => len,
        Err(framed::PopError::Empty) => 0,
        Err(framed::PopError::TooSmall { needed }) => 100 + needed,
    };
    assert_eq!([7, 8, 8, 8].map(|room| received(consumer.pop_bytes(&mut [0; 8][..room]))), [108, 8, 8, 0]);
}

#[test]
fn framed_ends_are_never_corrupt() {
    of_frames(framed::Ring::<32>::new().split());
    of_frames(framed::RingIn::over(&mut [const { MaybeUninit::uninit() }; 4]).unwrap().split());
    of_frames(framed::Ring::<32>::new().into_ends());
    of_frames(framed::bounded(32));
}

fn follow<T>(reader: &mut impl Follow<Item = T, Corrupt = Infallible>) -> Option<T> {
    popped(reader.follow())
}

#[test]
fn readers_of_overwritten_rings_are_never_corrupt() {
    let mut ring = lossy::Ring::<u32, 2>::new();
    let (mut writer, mut reader) = ring.split();
    writer.push_slice(&[1, 2, 3]);
    let read = |read| match read {
        Ok(value) => value,
        Err(lossy::ReadError::Empty) => 0,
        Err(lossy::ReadError::Overrun { lost }) => 100 + lost as u32,
    };
    assert_eq!([reader.pop(), reader.peek(), reader.pop(), reader.pop(), reader.pop()].map(read), [101, 2, 2, 3, 0]);
    assert_eq!((follow(&mut reader), follow(&mut lossy::bounded::<u32>(2).1)), (None, None));
    let (mut writer, mut reader) = mailbox::channel::<u32>();
    writer.publish(7);
    assert_eq!(follow(&mut reader).map(|new| new.value), Some(7));
}

#[test]
fn an_end_without_corruption_keeps_its_index_at_an_impossible_one() {
    let header = RingHeader::<HostWord>::new::<u32>(&RingLayout::of::<u32>(2).unwrap(), 0);
    let slots: [BareSlot<u32>; 2] = [0; 2].map(SlotCell::new);
    let slots = NonNull::from(&slots).cast();
    // SAFETY: initialised, and these ends' only.
    let (mut producer, mut consumer) = unsafe {
        let producer = spsc::Producer::<u32, Local>::over(&header, &header, slots, 2).unwrap();
        (producer, spsc::Consumer::<u32, Local>::over(&header, &header, slots, 2).unwrap())
    };
    assert_eq!(producer.push_slice(&[1, 2]), Ok(2));
    for impossible in [3, 1 << 63, u64::MAX - 1] {
        Word::store(&header.consumer.head, impossible);
        assert_eq!((producer.refresh(), refused(producer.push(3)), free(producer.reserve(1))), (Ok(0), Some(3), Some(0)));
        Word::store(&header.producer.tail, impossible);
        assert_eq!((consumer.refresh(), popped(consumer.pop()), consumer.pop_slice(&mut [0])), (Ok(0), None, Ok(0)));
        assert_eq!((popped(consumer.first()), consumer.as_slices().map(|[first, _]| first.len())), (None, Ok(0)));
    }
    Word::store(&header.producer.tail, 2);
    assert_eq!((popped(consumer.pop()), popped(consumer.pop())), (Some(1), Some(2)));
}
