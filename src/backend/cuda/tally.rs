//! [`Done`]: what is counted when an operation is over.

use core::sync::atomic::Ordering::Relaxed;

use crate::backend::counters::Counts;

/// The way of some bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// Within the host.
    Host,
    /// To a device.
    Up,
    /// From a device.
    Down,
    /// Within a device.
    Device,
    /// From a device to another, of which one was let reach the other.
    Peer,
    /// From a device to another over the host, which the driver sees to.
    Staged,
}

/// An operation that is to be counted, with its bytes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Done {
    /// With whether the host's end is pageable.
    Copy(Way, bool, u64),
    Fill(u64),
    Publication,
    Prefetch(u64),
}

impl Done {
    pub fn count(self, counts: &Counts) {
        match self {
            Self::Copy(Way::Host, _, bytes) => counts.host_copies.add(bytes),
            Self::Copy(Way::Up, pageable, bytes) => counts.uploads[usize::from(pageable)].add(bytes),
            Self::Copy(Way::Down, pageable, bytes) => counts.downloads[usize::from(pageable)].add(bytes),
            Self::Copy(Way::Device, _, bytes) => counts.device_copies.add(bytes),
            Self::Copy(Way::Peer, _, bytes) => counts.peer_copies.add(bytes),
            Self::Copy(Way::Staged, _, bytes) => {
                counts.downloads[0].add(bytes);
                counts.uploads[0].add(bytes);
            }
            Self::Fill(bytes) => counts.fills.add(bytes),
            Self::Publication => drop(counts.publications.fetch_add(1, Relaxed)),
            Self::Prefetch(bytes) => counts.prefetches.add(bytes),
        }
    }
}
