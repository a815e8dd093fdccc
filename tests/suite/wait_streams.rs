use std::io::{self, ErrorKind, Read, Write};
use std::thread::{self, JoinHandle};

use ringmem::ring::spsc;
use ringmem::wait::{self, WaitStrategy, pair};

use crate::eventually;

const BYTES: usize = 20_000;

fn bytes() -> Vec<u8> {
    (0..BYTES).map(|number| (number % 251) as u8).collect()
}

fn finished<R>(thread: JoinHandle<R>) -> R {
    eventually("the end of a thread", || thread.is_finished());
    thread.join().unwrap()
}

fn exchange<W: Write + Send + 'static, R: Read + Send + 'static>(mut writer: W, mut reader: R) {
    let sending = thread::spawn(move || writer.write_all(&bytes()));
    let receiving = thread::spawn(move || {
        let mut all = Vec::new();
        reader.read_to_end(&mut all).map(|_| (all, reader.read(&mut [0]).ok()))
    });
    finished(sending).unwrap();
    assert!(finished(receiving).unwrap() == (bytes(), Some(0)), "the same bytes, and no more");
}

#[test]
fn byte_streams_wait_with_any_strategy() {
    for how in [WaitStrategy::Sleep { polls: 2 }, WaitStrategy::SpinYield { polls: 2 }] {
        let (producer, consumer) = spsc::bounded(8);
        let (writer, reader) = pair(producer, consumer, how);
        exchange(writer, reader);
    }
    let ring = Box::leak(Box::new(spsc::Ring::<u8, 16>::starting_at(u64::MAX - 5)));
    let (producer, consumer) = ring.split();
    let (writer, reader) = pair(producer, consumer, WaitStrategy::default());
    exchange(writer, reader);
}

#[cfg(any(target_os = "linux", target_os = "android"))]
#[test]
fn a_byte_stream_works_over_shared_memory() {
    let memory = ringmem::shared::Memory::create::<u8>(64).unwrap();
    let (producer, consumer) = (memory.producer::<u8>().unwrap(), memory.consumer::<u8>().unwrap());
    exchange(producer.into_waiting(WaitStrategy::default()), consumer.into_waiting(WaitStrategy::default()));
}

#[test]
fn a_dropped_reader_wakes_a_waiting_writer() {
    let (mut writer, mut reader) = wait::bounded::<u8>(4);
    writer.write_all(&[1, 2, 3, 4]).unwrap();
    let sending = thread::spawn(move || writer.write_all(&[5; 20]).map_err(|error| error.kind()));
    let mut first = [0; 5];
    reader.read_exact(&mut first).unwrap();
    drop(reader);
    assert_eq!((finished(sending), first), (Err(ErrorKind::BrokenPipe), [1, 2, 3, 4, 5]));
}

#[test]
fn empty_reads_and_writes_return_at_once() {
    let (mut writer, mut reader) = wait::bounded::<u8>(1);
    assert_eq!((reader.read(&mut []).unwrap(), writer.write(&[1, 2]).unwrap(), writer.write(&[]).unwrap()), (0, 1, 0));
    writer.flush().unwrap();
    assert_eq!(reader.read(&mut [0; 8]).unwrap(), 1);
}

#[test]
fn std_io_copy_reads_lines_from_a_ring() {
    let (mut writer, mut reader) = wait::bounded::<u8>(16);
    let copying = thread::spawn(move || {
        let mut text = Vec::new();
        io::copy(&mut reader, &mut text).map(|_| String::from_utf8(text).unwrap()).map_err(|error| error.kind())
    });
    (0..100).for_each(|number| writeln!(writer, "line {number}").unwrap());
    drop(writer);
    let text = finished(copying).unwrap();
    assert!(text.lines().eq((0..100).map(|number| format!("line {number}"))));
}

#[cfg(feature = "embedded-io")]
#[test]
fn embedded_io_traits_wait() {
    use embedded_io::{ErrorKind, Read, ReadReady, Write, WriteReady};

    fn read_all(mut reader: wait::Receiver<u8>) -> Result<Vec<u8>, ErrorKind> {
        let mut all = Vec::new();
        loop {
            let mut some = [0; 5];
            match Read::read(&mut reader, &mut some)? {
                0 => return Ok(all),
                count => all.extend(&some[..count]),
            }
        }
    }

    let (mut writer, mut reader) = wait::bounded::<u8>(8);
    assert_eq!((writer.write_ready(), reader.read_ready()), (Ok(true), Ok(false)));
    Write::write_all(&mut writer, &[0; 8]).unwrap();
    assert_eq!((writer.write_ready(), reader.read_ready(), Write::flush(&mut writer)), (Ok(false), Ok(true), Ok(())));
    assert_eq!(Read::read_exact(&mut reader, &mut [1; 8]), Ok(()));
    let receiving = thread::spawn(move || read_all(reader));
    Write::write_all(&mut writer, &bytes()).unwrap();
    drop(writer);
    assert!(finished(receiving) == Ok(bytes()));

    let (mut writer, reader) = wait::bounded::<u8>(8);
    drop(reader);
    assert_eq!((writer.write_ready(), Write::write(&mut writer, &[1])), (Ok(true), Err(ErrorKind::BrokenPipe)));
}
