//! [`CompletionCount`]: what an operation adds to the counters when it is complete.

use core::sync::atomic::Ordering::Relaxed;

use crate::backend::MemoryLocation;
use crate::backend::counters::Counts;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Route {
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
pub(super) struct CompletionCount {
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

impl CompletionCount {
    pub const PUBLICATION: Self = Self { what: What::Publication, bytes: 0 };

    pub const fn copy(route: Route, is_pageable: bool, bytes: u64) -> Self {
        let what = match (route, is_pageable) {
            (Route::Host, _) => What::HostCopy,
            (Route::Up, false) => What::Upload,
            (Route::Up, true) => What::UploadOfPageable,
            (Route::Down, false) => What::Download,
            (Route::Down, true) => What::DownloadToPageable,
            (Route::Device, _) => What::DeviceCopy,
            (Route::Peer, _) => What::PeerCopy,
            (Route::Staged, _) => What::StagedCopy,
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
