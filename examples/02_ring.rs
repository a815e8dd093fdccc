//! A ring between threads: single messages, batches, and access in place.
//!
//! `cargo run --release --example 02_ring`

use std::error::Error;

use ringmem::ring::spsc::{PopError, PushError, Ring};

fn main() -> Result<(), Box<dyn Error>> {
    let mut ring = Ring::<u64, 8>::new();
    let (mut producer, mut consumer) = ring.split();

    // One message per publish. `push` on a full ring returns the value.
    for value in 0..8 {
        producer.push(value)?;
    }
    assert!(matches!(producer.push(8), Err(PushError::Full(8))));
    assert_eq!(consumer.pop(), Ok(0));

    // Reads up to four messages in place, then releases some.
    let seen = consumer.peek(4)?;
    println!("waiting: {:?}", seen.as_slices());
    seen.release(4);

    let mut grant = producer.reserve(3)?;
    grant.fill([100, 101, 102]);
    grant.commit();
    while let Ok(value) = consumer.pop() {
        print!("{value} ");
    }
    println!();
    assert!(matches!(consumer.pop(), Err(PopError::Empty)));

    const MESSAGES: u64 = 1_000_000;
    let sum = std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut producer = producer.batch(16);
            for value in 0..MESSAGES {
                while producer.push(value).is_err() {
                    std::hint::spin_loop();
                }
            }
        });
        let mut consumer = consumer.batch(16);
        let (mut sum, mut count) = (0, 0);
        while count < MESSAGES {
            match consumer.pop() {
                Ok(value) => (sum, count) = (sum + value, count + 1),
                Err(_) => std::hint::spin_loop(),
            }
        }
        sum
    });
    assert_eq!(sum, MESSAGES * (MESSAGES - 1) / 2);
    println!("{MESSAGES} messages crossed, none lost");
    Ok(())
}
