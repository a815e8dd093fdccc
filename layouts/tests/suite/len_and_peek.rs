use ringmem_layouts::ring::lossy::ReadError;
use ringmem_layouts::ring::{PopError, flagged, framed, lossy, mailbox, mpmc, mpsc, spsc};

const CAPACITY: usize = 4;
const STARTS: [u64; 4] = [0, 1, u64::MAX - 2, u64::MAX];

macro_rules! holds {
    ($producer:ident, $consumer:ident, $len:expr) => {
        let (len, capacity) = ($len, $producer.capacity());
        assert_eq!(($producer.len(), $producer.is_empty(), $producer.is_full()), (len, len == 0, len == capacity));
        assert_eq!(($consumer.len(), $consumer.is_empty(), $consumer.is_full()), (len, len == 0, len == capacity));
        assert_eq!(($consumer.free(), $consumer.capacity()), (capacity - len, capacity));
    };
}

macro_rules! of_each_kind {
    ($($fact:ident: $kind:ident;)+) => {$(
        #[test]
        fn $fact() {
            for start in STARTS {
                let mut ring = $kind::Ring::<usize, CAPACITY>::starting_at(start);
                let ring = &mut ring;
                let (mut producer, mut consumer) = ring.split();
                for _ in 0..3 {
                    holds!(producer, consumer, 0);
                    for len in 1..=CAPACITY {
                        producer.push(len).unwrap();
                        holds!(producer, consumer, len);
                    }
                    assert!(producer.push(9).is_err());
                    for left in (0..CAPACITY).rev() {
                        consumer.pop().unwrap();
                        holds!(producer, consumer, left);
                    }
                    producer.push(5).unwrap();
                    consumer.pop().unwrap();
                }
            }
        }
    )+};
}

of_each_kind! {
    spsc_ends_report_their_len: spsc;
    flagged_ends_report_their_len: flagged;
    mpsc_ends_report_their_len: mpsc;
    mpmc_ends_report_their_len: mpmc;
}

#[test]
fn framed_ends_report_len_in_bytes() {
    for start in STARTS {
        let mut ring = framed::Ring::<32>::starting_at(start);
        let (mut producer, mut consumer) = ring.split();
        holds!(producer, consumer, 0);
        for len in [8, 16, 24, 32] {
            producer.push(b"").unwrap();
            holds!(producer, consumer, len);
        }
        assert!(producer.push(b"").is_err());
        consumer.peek().unwrap().release();
        holds!(producer, consumer, 24);
        let mut batch = producer.batch(8);
        batch.push(b"").unwrap();
        std::mem::forget(batch);
        assert!(producer.is_full() && !consumer.is_full());
    }
}

#[test]
fn lossy_and_mailbox_ends_report_their_fill() {
    for start in STARTS {
        let mut ring = lossy::Ring::<u64, CAPACITY>::starting_at(start);
        let (mut writer, mut reader) = ring.split();
        assert_eq!((writer.len(), writer.is_empty(), reader.is_empty(), reader.written()), (0, true, true, 0));
        for written in 1..10_usize {
            writer.push(written as u64);
            assert_eq!((writer.len(), writer.is_empty()), (written.min(CAPACITY), false));
            assert_eq!((reader.len(), reader.written()), (written.min(CAPACITY), written as u64));
        }
        assert_eq!(reader.pop(), Err(ReadError::Overrun { lost: 5 }));

        let mut mailbox = mailbox::Mailbox::<u64, 8>::starting_at(start);
        let (mut writer, mut reader) = mailbox.split();
        assert_eq!((writer.capacity(), reader.capacity(), writer.is_empty(), reader.is_empty()), (8, 8, true, true));
        (1..4).for_each(|value| writer.publish(value));
        assert_eq!(reader.take_new().map(|new| new.value), Ok(3));
        assert_eq!((writer.version(), reader.version(), writer.is_empty(), reader.is_empty()), (3, 3, false, false));
    }
}

macro_rules! seen_in_place {
    ($($fact:ident: $kind:ident;)+) => {$(
        #[test]
        fn $fact() {
            for start in STARTS {
                let mut ring = $kind::Ring::<String, CAPACITY>::starting_at(start);
                let (mut producer, mut consumer) = ring.split();
                assert_eq!(consumer.first(), Err(PopError::Empty));
                for round in 0..6 {
                    let names = ["a", "b", "c"].map(|name| format!("{name}{round}"));
                    names.iter().for_each(|name| producer.push(name.clone()).unwrap());
                    assert_eq!(consumer.first(), Ok(&names[0]));
                    let chunk = consumer.peek(2).unwrap();
                    assert!(chunk.iter().eq(&names[..2]));
                    assert_eq!([0, 1, 2, usize::MAX].map(|offset| chunk.get(offset)), [Some(&names[0]), Some(&names[1]), None, None]);
                    chunk.release(1);
                    assert_eq!((consumer.len(), consumer.first()), (2, Ok(&names[1])));
                    assert_eq!([(); 3].map(|()| consumer.pop().ok()), [Some(names[1].clone()), Some(names[2].clone()), None]);
                }
            }
        }
    )+};
}

seen_in_place! {
    spsc_messages_are_peeked_in_place: spsc;
    flagged_messages_are_peeked_in_place: flagged;
    mpsc_messages_are_peeked_in_place: mpsc;
}

#[test]
fn as_slices_returns_two_runs_at_the_wrap() {
    let mut ring = spsc::Ring::<u64, CAPACITY>::starting_at(u64::MAX - 1);
    let (mut producer, mut consumer) = ring.split();
    assert_eq!(consumer.as_slices(), Ok([&[][..], &[]]));
    producer.push_slice(&[1, 2, 3]).unwrap();
    assert_eq!(consumer.as_slices(), Ok([&[1, 2][..], &[3]]));
    producer.push(4).unwrap();
    assert_eq!((consumer.pop(), consumer.as_slices()), (Ok(1), Ok([&[2][..], &[3, 4]])));
    let mut batch = consumer.batch(8);
    (2..5).for_each(|number| assert_eq!(batch.pop(), Ok(number)));
    std::mem::forget(batch);
    assert_eq!(producer.len(), 3);
    assert_eq!((consumer.as_slices(), producer.len()), (Ok([&[][..], &[]]), 0));
}
