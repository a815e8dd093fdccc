#![cfg(feature = "testing")]

mod minimal;

use std::sync::Arc;

use ringmem::backend::host::HostBackend;
use ringmem::conformance::{CHECKS, Subject};
use ringmem::memory::{Arena, Device, Pinned};

fn plain() -> Subject {
    let backend = HostBackend::builder().device_memory(4 << 20).build().expect("a backend");
    let counted = Arc::clone(&backend);
    Subject::new(backend).counting(move || counted.counters().into())
}

fn least() -> Subject {
    let backend = HostBackend::builder().device_memory(4 << 20).build().expect("a backend");
    let counted = Arc::clone(&backend);
    Subject::new(Arc::new(minimal::Minimal(backend))).counting(move || counted.counters().into())
}

fn over_arenas() -> Subject {
    let backend = HostBackend::builder().device_memory(4 << 20).build().expect("a backend");
    let device = Arena::new(Device::new(&backend, 0), 2 << 20, 4096).expect("room");
    let pinned = Arena::new(Pinned::new(&backend, 0), 2 << 20, 4096).expect("room");
    Subject::new(backend).with_device_memory(Arc::new(device)).with_pinned_memory(Arc::new(pinned))
}

macro_rules! checks {
    ($($name:ident,)*) => {
        const NAMES: &[&str] = &[$(stringify!($name)),*];

        mod plain_memory {
            $(#[test] fn $name() { super::run(super::plain(), stringify!($name)); })*
        }
        mod required_methods {
            $(#[test] fn $name() { super::run(super::least(), stringify!($name)); })*
        }
        mod arena_memory {
            $(#[test] fn $name() { super::run(super::over_arenas(), stringify!($name)); })*
        }
    };
}

checks! {
    blocks_have_the_requested_size_alignment_and_location,
    options_take_effect_or_are_errors,
    invalid_sizes_alignments_and_devices_are_errors,
    out_of_memory_has_figures_and_ends_after_frees,
    memory_info_follows_allocations_and_frees,
    host_visible_memory_is_zeroed,
    a_buffer_is_freed_once_even_when_unwinding,
    an_empty_buffer_makes_no_calls,
    stream_ordered_memory_is_usable_on_other_streams,
    copies_of_every_size_and_offset_preserve_their_neighbours,
    fills_of_every_size_set_only_their_range,
    fills_accept_elements_of_any_size,
    copies_between_device_buffers_stay_on_the_device,
    a_copy_within_a_buffer_moves_its_bytes,
    one_buffer_and_one_staging_buffer_serve_a_thousand_batches,
    both_sides_access_managed_memory_without_a_copy,
    nested_views_write_to_their_parent,
    a_cast_preserves_the_bytes,
    a_map_copies_only_what_its_mode_requires,
    slices_of_host_visible_memory_alias_it,
    a_mismatch_is_an_error_without_effects,
    a_rejected_operation_returns_its_buffers_unchanged,
    objects_of_another_backend_are_rejected,
    unknown_kernels_and_wrong_argument_counts_are_errors,
    loading_an_image_of_another_abi_has_both_layouts,
    kernels_run_in_order_with_surrounding_transfers,
    a_queued_copy_reads_its_source_at_execution,
    operations_on_one_buffer_are_ordered_across_streams,
    uses_on_many_streams_are_ordered,
    wait_for_orders_two_streams,
    slices_of_memory_in_queued_use_are_busy,
    blocking_copies_wait_for_queued_work,
    a_dropped_buffer_is_freed_after_its_queued_work,
    a_buffer_outlives_the_launch_that_uses_it,
    forgotten_buffers_and_streams_are_never_freed,
    dropping_a_stream_executes_its_queued_work,
    dropping_a_stream_does_not_wait_for_its_kernel,
    a_kept_value_is_dropped_after_its_uses,
    a_task_is_woken_without_calls_to_the_backend,
    an_event_completes_after_earlier_work_and_has_a_time,
}

fn run(subject: Subject, name: &str) {
    CHECKS.iter().find(|check| check.name == name).expect("a check of that name").run(subject);
}

#[test]
fn every_check_is_listed() {
    assert_eq!(CHECKS.iter().map(|check| check.name).collect::<Vec<_>>(), NAMES);
}
