use ringmem_recordings::models::{Direct, Driver, Expandable, Model, PyTorch};

const MIB: u64 = 1 << 20;

fn driver(reserved: u64, peak: u64, calls: u64) -> Driver {
    Driver { reserved: reserved * MIB, peak: peak * MIB, calls }
}

#[test]
fn pytorch_s_segments_have_its_sizes() {
    for (bytes, reserved) in [(1, 2), (MIB, 2), (MIB + 1, 20), (10 * MIB - 512, 20), (10 * MIB, 10), (11 * MIB + 1, 12)] {
        let mut model = PyTorch::new(u64::MAX);
        model.take(bytes, 0).expect("no limit");
        assert_eq!(model.driver(), driver(reserved, reserved, 1), "{bytes}");
    }
    let mut model = PyTorch::new(u64::MAX);
    let first = model.take(3 * MIB, 0).expect("no limit");
    model.take(17 * MIB, 1).expect("no limit");
    assert_eq!(model.driver(), driver(38, 38, 2), "a stream has its own");
    model.give(first);
    // The rest of 1 MiB stays with the block.
    let whole = model.take(19 * MIB, 0).expect("no limit");
    model.take(2 * MIB, 0).expect("no limit");
    assert_eq!(model.driver(), driver(58, 58, 3));
    model.give(whole);
    model.take(20 * MIB, 0).expect("no limit");
    assert_eq!(model.driver(), driver(58, 58, 3), "whole again");
    let mut model = PyTorch::new(u64::MAX);
    let [first, second] = [5 * MIB, 15 * MIB].map(|bytes| model.take(bytes, 0).expect("no limit"));
    model.give(first);
    model.take(9 * MIB / 2, 0).expect("no limit");
    model.give(second);
    model.take(61 * MIB / 4, 0).expect("no limit");
    assert_eq!(model.driver(), driver(36, 36, 2), "half a MiB stays with the block before");
}

#[test]
fn pytorch_frees_segments_before_it_fails() {
    let mut model = PyTorch::new(50 * MIB);
    let blocks = [(); 2].map(|()| model.take(12 * MIB, 0).expect("room"));
    model.take(12 * MIB, 0).expect("room");
    assert_eq!(model.driver(), driver(36, 36, 3));
    blocks.into_iter().for_each(|block| model.give(block));
    // Two segments never join.
    model.take(30 * MIB, 0).expect("their memory suffices");
    assert_eq!(model.driver(), driver(42, 42, 6));
    assert!(model.take(12 * MIB, 0).is_none());
    assert!(model.take(u64::MAX, 0).is_none());
}

#[test]
fn expandable_segments_grow_by_steps_and_fill_holes() {
    let mut model = Expandable::new(60 * MIB);
    let first = model.take(30 * MIB, 0).expect("room");
    assert_eq!(model.driver(), driver(40, 40, 2));
    let second = model.take(12 * MIB, 0).expect("room");
    assert_eq!(model.driver(), driver(60, 60, 3), "10 MiB of it from the free end");
    model.give(first);
    // The first step is all free, the second half: one is unmapped for a small block.
    model.take(1, 0).expect("a step is unmapped");
    assert_eq!(model.driver(), driver(42, 60, 5));
    // 10 MiB in the middle, and 18 at the end.
    assert!(model.take(19 * MIB, 0).is_none());
    model.take(18 * MIB, 0).expect("the end");
    model.give(second);
    model.take(22 * MIB, 0).expect("it joins with the middle");
    assert_eq!(model.driver(), driver(42, 60, 5));
    // The hole of a step lies before nothing free.
    assert!(model.take(20 * MIB, 0).is_none(), "18 MiB are left");
    let mut model = Expandable::new(42 * MIB);
    let first = model.take(20 * MIB, 0).expect("room");
    let second = model.take(20 * MIB, 0).expect("room");
    model.give(first);
    let other = model.take(2 * MIB, 1).expect("the first step is unmapped, another mapped");
    assert_eq!(model.driver().reserved, 40 * MIB);
    model.give(other);
    model.take(20 * MIB, 0).expect("the hole is filled");
    assert_eq!(model.driver().reserved, 40 * MIB);
    model.give(second);
}

#[test]
fn without_a_pool_each_request_is_a_call() {
    let mut model = Direct::new(4 * MIB);
    let block = model.take(3 * MIB, 0).expect("room");
    assert!(model.take(2 * MIB, 0).is_none());
    model.give(block);
    assert_eq!(model.driver(), driver(0, 3, 2));
}
