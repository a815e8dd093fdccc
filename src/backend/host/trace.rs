//! What the feature `tracing` reports: each operation when it is queued, each kernel when it has ended.

use ringmem_layouts::image::Entry;

use super::operation::Operation;

#[cfg(feature = "tracing")]
pub(super) fn queued(stream: u64, operation: &Operation) {
    match operation {
        Operation::Upload(transfer) => tracing::trace!(stream, bytes = transfer.len, "upload queued"),
        Operation::Download(transfer) => tracing::trace!(stream, bytes = transfer.len, "download queued"),
        Operation::Fill { len, .. } => tracing::trace!(stream, bytes = len, "fill queued"),
        Operation::Launch(launch) => tracing::debug!(stream, kernel = launch.entry.name, "launch queued"),
        Operation::Mark(_) => tracing::trace!(stream, "synchronization queued"),
    }
}

#[cfg(feature = "tracing")]
pub(super) fn ended(kernel: &Entry, panicked: bool) {
    tracing::debug!(kernel = kernel.name, panicked, "kernel ended");
}

#[cfg(not(feature = "tracing"))]
pub(super) fn queued(_: u64, _: &Operation) {}

#[cfg(not(feature = "tracing"))]
pub(super) fn ended(_: &Entry, _: bool) {}
