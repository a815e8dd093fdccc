use std::hint::black_box;

use ringmem_benches::Workload;
use ringmem_layouts::clock::Stamp;
use ringmem_layouts::message::{MessageHeader, Priority};
use zerocopy::IntoBytes;

use crate::each;

fn make(messages: u64) -> f64 {
    each(messages, |id| {
        let header = MessageHeader::new(7)
            .with_id(id)
            .with_route(1, 2)
            .with_priority(black_box(Priority::High))
            .with_deadline(id + 1)
            .with_stamp(Stamp::at(id))
            .with_payload_length(64);
        black_box(&header);
    })
}

fn headers() -> [MessageHeader; 64] {
    std::array::from_fn(|id| MessageHeader::new(7).with_id(id as u64).with_deadline(id as u64).with_payload_length(64))
}

fn validate(messages: u64) -> f64 {
    let headers = headers();
    each(messages, |number| {
        let header = black_box(&headers[number as usize % 64]);
        assert!(black_box(header.validate(black_box(64))).is_ok());
    })
}

fn read(messages: u64) -> f64 {
    let headers = headers();
    each(messages, |number| {
        let header = black_box(&headers[number as usize % 64]);
        black_box(header.magic ^ header.flags ^ header.payload_length ^ header.checksum ^ header._reserved ^ header.deadline as u32);
    })
}

const PAYLOAD: [u8; 1024] = [0x5A; 1024];

fn check(messages: u64) -> f64 {
    let header = MessageHeader::new(7).seal(&PAYLOAD).expect("1 KiB");
    each(messages, |_| assert!(black_box(&header).check(black_box(&PAYLOAD)).is_ok()))
}

fn by_instruction(messages: u64) -> f64 {
    let header = MessageHeader::new(7);
    let sum = |payload: &[u8]| crc32c::crc32c_append(crc32c::crc32c(black_box(&header).as_bytes()), payload);
    let expected = sum(&PAYLOAD);
    each(messages, |_| assert_eq!(sum(black_box(&PAYLOAD)), expected))
}

pub fn workloads() -> Vec<Workload> {
    let one = |name, subjects| Workload { unit: "ns/header", ..Workload::one(name, 1.0, subjects) };
    vec![
        one("header-new", vec![("ringmem", make)]),
        Workload { aim_ns: Some(10.0), limit: Some(read), ..one("header-validate", vec![("ringmem", validate)]) },
        one("header-check-1k", vec![("ringmem", check), ("crc32c alone", by_instruction)]),
    ]
}
