use ringmem_layouts::ring::{flagged, framed, lossy, mailbox, mpmc, mpsc, spsc};

fn main() {
    let mut one = spsc::Ring::<u64, 1>::new();
    let (mut producer, mut consumer) = one.split();
    assert_eq!((producer.push(7).is_ok(), producer.push(8).is_ok(), consumer.pop().ok()), (true, false, Some(7)));
    let mut one = flagged::Ring::<u64, 1>::new();
    let (mut producer, mut consumer) = one.split();
    assert_eq!((producer.push(7).is_ok(), producer.push(8).is_ok(), consumer.pop().ok()), (true, false, Some(7)));
    let mut one = mpsc::Ring::<u64, 1>::new();
    let (mut producer, mut consumer) = one.split();
    assert_eq!((producer.push(7).is_ok(), producer.push(8).is_ok(), consumer.pop().ok()), (true, false, Some(7)));
    let one = mpmc::Ring::<u64, 1>::new();
    let (mut producer, mut consumer) = one.split();
    assert_eq!((producer.push(7).is_ok(), producer.push(8).is_ok(), consumer.pop().ok()), (true, false, Some(7)));
    let mut without_bytes = spsc::Ring::<(), 2>::new();
    let (mut producer, mut consumer) = without_bytes.split();
    assert_eq!((producer.push(()).is_ok(), consumer.pop().ok()), (true, Some(())));
    let mut overwriting = lossy::Ring::<u8, 1>::new();
    overwriting.split().0.push(1);
    let mut latest = mailbox::Mailbox::<u64, 2>::new();
    latest.split().0.publish(1);
    let mut frames = framed::Ring::<16>::new();
    assert!(frames.split().0.push(&[]).is_ok());
}
