//! [`Done`]: counts to add at completion.

use core::sync::atomic::Ordering::Relaxed;

use crate::backend::MemoryLocation;
use crate::backend::counters::Counts;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Host,
    Up,
    Down,
    Device,
    /// With peer access.
    Peer,
    /// By the driver, through the host.
    Staged,
}

/// Two words, passed in registers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Done {
    what: What,
    bytes: u64,
}

#[derive(Clone, Copy, Debug)]
enum What {
    HostCopy,
    Upload,
    UploadOfPageable,
    Download,
    DownloadToPageable,
    DeviceCopy,
    PeerCopy,
    StagedCopy,
    Fill,
    Publication,
    Prefetch,
    Free,
}

impl Done {
    pub const PUBLICATION: Self = Self { what: What::Publication, bytes: 0 };

    pub const fn copy(way: Way, is_pageable: bool, bytes: u64) -> Self {
        let what = match (way, is_pageable) {
            (Way::Host, _) => What::HostCopy,
            (Way::Up, false) => What::Upload,
            (Way::Up, true) => What::UploadOfPageable,
            (Way::Down, false) => What::Download,
            (Way::Down, true) => What::DownloadToPageable,
            (Way::Device, _) => What::DeviceCopy,
            (Way::Peer, _) => What::PeerCopy,
            (Way::Staged, _) => What::StagedCopy,
        };
        Self { what, bytes }
    }

    pub const fn fill(bytes: u64) -> Self {
        Self { what: What::Fill, bytes }
    }

    pub const fn free(bytes: u64) -> Self {
        Self { what: What::Free, bytes }
    }

    pub const fn is_free(self) -> bool {
        matches!(self.what, What::Free)
    }

    pub const fn prefetch(bytes: u64) -> Self {
        Self { what: What::Prefetch, bytes }
    }

    pub fn count(self, counts: &Counts) {
        let counted = match self.what {
            What::HostCopy => &counts.host_copies,
            What::Upload => &counts.uploads[0],
            What::UploadOfPageable => &counts.uploads[1],
            What::Download => &counts.downloads[0],
            What::DownloadToPageable => &counts.downloads[1],
            What::DeviceCopy => &counts.device_copies,
            What::PeerCopy => &counts.peer_copies,
            What::StagedCopy => {
                counts.downloads[0].add(self.bytes);
                &counts.uploads[0]
            }
            What::Fill => &counts.fills,
            What::Publication => {
                counts.publications.fetch_add(1, Relaxed);
                return;
            }
            What::Free => {
                counts.of(MemoryLocation::Device).freed(self.bytes);
                return;
            }
            What::Prefetch => &counts.prefetches,
        };
        counted.add(self.bytes);
    }
}
