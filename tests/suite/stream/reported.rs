use futures::executor::block_on;
use ringmem::Error;
use ringmem::backend::Backend;
use ringmem::backend::host::{Fault, Faults, Verb};
use ringmem::error::OperationFault;
use ringmem::memory::{Device, GpuBuffer};
use ringmem::stream::{Pending, Role, StreamSet};

use super::{build, builder, gpu, stream};
use crate::LIMIT;

type Filled = Pending<GpuBuffer<u8>>;

const WAYS: [fn(Filled) -> Result<(), Error>; 3] = [
    |filled| filled.wait().map(drop).map_err(|rejected| rejected.error),
    |filled| filled.try_take().expect("it is over").map(drop).map_err(|rejected| rejected.error),
    |filled| block_on(filled.into_future()).map(drop).map_err(|rejected| rejected.error),
];

#[test]
fn a_second_waiter_gets_already_reported() {
    for way in WAYS {
        let backend = build(builder());
        let set = StreamSet::new(&*backend, 0, 0).expect("streams");
        let stream = set.role(Role::Compute);
        let others: [&dyn Fn() -> bool; 4] = [
            &|| stream.synchronize().is_err(),
            &|| stream.synchronize_timeout(LIMIT).is_err(),
            &|| stream.record().expect("live").wait().is_err(),
            &|| set.synchronize().is_err(),
        ];
        for other in others {
            backend.set_faults(&Faults::new().on(Verb::Fill, Fault::nth(2).when_executed()));
            let fills = [0; 3].map(|_| stream.fill(gpu(&backend, 64), .., 1).expect("queued"));
            assert!(other(), "it is told of the second");
            let outcomes = fills.map(way);
            assert!(
                matches!(outcomes, [Ok(()), Err(Error::Operation { what: OperationFault::AlreadyReported, stream: id, .. }), Ok(())] if id == stream.id().get()),
                "{outcomes:?}"
            );
        }
    }
}

#[test]
fn a_failure_reported_by_its_operation_is_not_reported_again() {
    let backend = build(builder());
    let stream = stream(&backend);
    let buffer = GpuBuffer::<u8>::from_slice(Device::new(&*backend, 0), &[7; 64]).expect("room");
    backend.set_faults(&Faults::new().on(Verb::Fill, Fault::nth(1).when_executed()));
    let ticket = backend.record_position(stream.id()).expect("a live stream");
    let rejected = stream.fill(buffer, .., 1).expect("queued").wait().expect_err("planned");
    assert!(matches!(rejected.error, Error::Injected { call: "fill", .. }), "{rejected}");
    stream.synchronize().expect("it was told");
    let mut buffer = rejected.value;
    let error = buffer.to_vec().expect_err("the fill failed");
    assert!(matches!(error, Error::Tainted { stream: id, .. } if id == stream.id().get()), "{error}");
    buffer.copy_from(&[7; 64]).expect("it is written as a whole");
    assert_eq!(buffer.to_vec().expect("valid again"), [7; 64]);
    assert!(backend.outcome(ticket, None).expect("nothing of its own failed"));
    let failed = ringmem::backend::Ticket { number: ticket.number + 1, ..ticket };
    assert!(backend.wait(failed, None).expect("it was told"));
    for _ in 0..2 {
        let error = backend.outcome(failed, None).expect_err("however often it is asked");
        assert_eq!(
            error.to_string(),
            format!(
                "operation {} on stream {} failed; its error was already reported to an earlier waiter",
                failed.number,
                failed.stream.get()
            )
        );
    }
}
