//! Views of a buffer in any location.

use ringmem::Error;
use ringmem::backend::MemoryLocation;
use ringmem::backend::host::HostBackend;
use ringmem::config::Config;
use ringmem::pool::Pools;

use crate::clean::Clean;

#[test]
fn views_read_and_write_elements_in_each_location() {
    let backend = Clean::build(HostBackend::builder().device_memory(1 << 27));
    let pools = Pools::new(&backend, 0, &Config { managed: true, ..Config::host() }).expect("pools");
    for (location, name) in [
        (MemoryLocation::Device, "Device"),
        (MemoryLocation::Pinned, "Pinned"),
        (MemoryLocation::Unified, "Unified"),
        (MemoryLocation::Host, "Host"),
    ] {
        let is_host = location != MemoryLocation::Device;
        let mut buffer = pools.buffer_in::<u32>(location, 4).expect("room");
        let mut elements = buffer.as_view_mut();
        assert_eq!((elements.len(), elements.is_empty()), (4, false), "{name}");
        assert_eq!(format!("{elements:?}"), format!("AnySliceMut {{ location: {name:?}, len: 4, .. }}"));
        elements.copy_from(&[1, 2, 3, 4]).expect("as long");
        elements.write(|words| words.fill(7)).expect("elements");
        elements.update(|words| words[1] += 1).expect("elements");
        match elements.into_mut_slice() {
            Ok(words) => words[2] = 9,
            Err(error) => assert!(!is_host && matches!(error, Error::Unsupported { .. }), "{name}: {error}"),
        }
        let expected = if is_host { [7, 8, 9, 7] } else { [7, 8, 7, 7] };
        let elements = buffer.as_view();
        let mut copy = [0; 4];
        #[allow(clippy::clone_on_copy, reason = "the subject of the test")]
        elements.clone().copy_to(&mut copy).expect("as long");
        assert_eq!((copy, elements.len(), elements.is_empty()), (expected, 4, false), "{name}");
        assert_eq!(format!("{elements:?}"), format!("AnySlice {{ location: {name:?}, len: 4, .. }}"));
        match elements.as_slice() {
            Ok(words) => assert!(is_host && words == expected, "{name}"),
            Err(error) => assert!(!is_host && matches!(error, Error::Unsupported { .. }), "{name}: {error}"),
        }
    }
}
