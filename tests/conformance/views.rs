use ringmem::Error;

use super::Subject;
use super::subject::pattern;

pub fn nested_views_write_to_their_parent(subject: &Subject) {
    let (mut buffer, mut expected) = (subject.gpu_of(&pattern(100)), pattern(100));
    let view = buffer.slice_mut(10..90).expect("within");
    let (mut low, high) = view.split_at(30).expect("within");
    low.copy_from(&[1; 30]).expect("as many");
    let mut inner = high.slice(5..=14).expect("within").slice(2..).expect("within");
    inner.copy_from(&[2; 8]).expect("as many");
    inner.reborrow().slice(..1).expect("within").fill(3).expect("a fill");
    assert_eq!(inner.as_view().to_vec().expect("a copy"), [3, 2, 2, 2, 2, 2, 2, 2]);
    expected[10..40].fill(1);
    expected[47..55].copy_from_slice(&[3, 2, 2, 2, 2, 2, 2, 2]);
    assert_eq!(buffer.to_vec().expect("a copy"), expected);
    let (low, high) = buffer.as_view().split_at(47).expect("within");
    assert_eq!(high.slice(..8).expect("within").to_vec().expect("a copy"), expected[47..55]);
    assert_eq!((low.len(), high.len(), high.slice(53..).expect("an empty tail").is_empty()), (47, 53, true));
    let addresses = (buffer.device_address().expect("bytes").get(), high.device_address().expect("bytes").get());
    assert_eq!(addresses.1, addresses.0 + 47);
}

pub fn a_cast_preserves_the_bytes(subject: &Subject) {
    let words: Vec<u32> = (0..64).map(|i| i * 0x0102_0305).collect();
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    let buffer = subject.gpu_of(&words);
    subject.nothing("casts", || {
        assert_eq!(buffer.as_view().cast::<u8>().expect("bytes").len(), 256);
        for (part, size) in [(1..64, 12), (0..63, 8)] {
            let view = buffer.slice(part.clone()).expect("within");
            let error = if size == 12 { view.cast::<[u8; 13]>().err() } else { view.cast::<[u32; 2]>().err() };
            assert!(matches!(error, Some(Error::Cast { bytes: 252, .. })), "{part:?}: {error:?}");
        }
        let odd = buffer.slice(1..3).expect("within").cast::<u64>();
        assert!(matches!(odd, Err(Error::Cast { bytes: 8, align: 4, size: 8, needed: 8 })), "{:?}", odd.err());
        assert!(matches!(buffer.as_view().cast::<[u8; 0]>(), Err(Error::Cast { size: 0, .. })));
    });
    let mut buffer = buffer.cast::<u8>().expect("bytes");
    assert_eq!(buffer.to_vec().expect("a copy"), bytes);
    buffer.slice_mut(8..16).expect("within").cast::<u32>().expect("aligned").copy_from(&[7, 8]).expect("as many");
    let buffer = buffer.cast::<u32>().expect("as aligned as it was");
    assert_eq!(buffer.slice(1..5).expect("within").to_vec().expect("a copy"), [words[1], 7, 8, words[4]]);
    let rejected = buffer.cast::<[u32; 5]>().expect_err("64 words are no whole number of those");
    assert!(matches!(rejected.error, Error::Cast { bytes: 256, size: 20, .. }) && rejected.value.len() == 64);
}

pub fn a_map_copies_only_what_its_mode_requires(subject: &Subject) {
    let (mut gpu, mut pinned) = (subject.gpu_of(&pattern(100)), subject.pinned_of(&pattern(100)));
    let seen = subject.changes("read", |figures| figures.downloads += 1, || gpu.read(<[u8]>::to_vec).expect("a copy"));
    assert_eq!(seen, pattern(100));
    subject.changes("write", |figures| figures.uploads += 1, || gpu.write(|bytes| bytes.fill(9)).expect("a copy"));
    subject.changes(
        "update",
        |figures| (figures.downloads, figures.uploads) = (figures.downloads + 1, figures.uploads + 1),
        || gpu.slice_mut(10..20).expect("within").update(|bytes| bytes.iter_mut().for_each(|byte| *byte += 1)).expect("two copies"),
    );
    let expected: Vec<u8> = (0..100).map(|i| if (10..20).contains(&i) { 10 } else { 9 }).collect();
    assert_eq!(gpu.to_vec().expect("a copy"), expected);
    subject.nothing("the host sees it", || {
        let place = pinned.as_ptr().map(|first| first.as_ptr().addr());
        assert!(pinned.read(|bytes| bytes == pattern(100) && Some(bytes.as_ptr().addr()) == place).expect("no copy"));
        pinned.write(|bytes| bytes.fill(9)).expect("no copy");
        pinned.slice_mut(10..20).expect("within").update(|bytes| bytes.fill(10)).expect("no copy");
    });
    assert_eq!(pinned.as_slice().expect("nothing is queued"), expected);
}

pub fn slices_of_host_visible_memory_alias_it(subject: &Subject) {
    let mut pinned = subject.pinned_of(&[0_u16; 100]);
    let first = pinned.as_ptr().expect("bytes").as_ptr();
    subject.nothing("slices", || {
        let place = |slice: &[u16]| slice.as_ptr().addr() - first.addr();
        assert_eq!(place(pinned.as_slice().expect("nothing is queued")), 0);
        assert_eq!(place(pinned.slice(7..).expect("within").as_slice().expect("nothing is queued")), 14);
        pinned.slice_mut(7..9).expect("within").into_mut_slice().expect("nothing is queued").fill(5);
        assert_eq!(pinned.as_slice().expect("nothing is queued")[6..10], [0, 5, 5, 0]);
    });
}
