//! The host backend passes the suite, also with adaptors and with the required methods only.
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

fn carved() -> Subject {
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
        mod carved_memory {
            $(#[test] fn $name() { super::run(super::carved(), stringify!($name)); })*
        }
    };
}

checks! {
    blocks_are_as_long_and_aligned_as_asked_and_where_they_were_asked_for,
    options_do_what_they_say_or_are_refused,
    sizes_alignments_and_devices_that_there_are_not_are_refused,
    memory_runs_out_with_figures_and_is_back_after_frees,
    what_is_free_goes_down_by_what_is_taken_and_up_again,
    memory_that_the_host_sees_is_zeroed,
    a_buffer_is_freed_once_also_by_unwinding,
    a_buffer_without_bytes_asks_for_nothing,
    allocation_in_the_order_of_a_stream_can_be_used_everywhere,
    bytes_come_back_at_every_size_and_offset_and_their_neighbours_stay,
    fills_of_every_size_set_their_range_and_no_more,
    fills_take_elements_of_any_size,
    copies_between_device_buffers_do_not_pass_through_the_host,
    a_copy_within_a_buffer_moves_its_bytes,
    one_buffer_and_one_staging_buffer_serve_a_thousand_batches,
    managed_memory_is_seen_by_both_sides_without_a_copy,
    a_view_writes_to_its_parent_also_through_views_of_views,
    a_cast_shows_the_same_bytes,
    a_map_copies_what_its_mode_says_and_no_more,
    a_slice_of_host_visible_memory_is_the_memory,
    a_mismatch_is_refused_before_anything_is_done,
    a_refused_operation_gives_its_buffers_back_untouched,
    what_belongs_to_another_backend_is_refused,
    an_unknown_kernel_or_a_wrong_number_of_arguments_is_refused,
    an_image_of_another_abi_is_refused_with_both_tables,
    a_kernel_works_in_order_with_the_transfers_around_it,
    a_queued_copy_reads_its_source_when_it_is_executed,
    operations_on_one_buffer_are_ordered_across_streams,
    more_streams_than_a_buffer_lists_are_ordered_too,
    a_stream_waits_for_another_when_it_is_told_to,
    the_host_has_no_slice_of_what_a_queued_operation_uses,
    blocking_copies_wait_for_what_is_queued,
    a_buffer_dropped_with_work_queued_is_freed_after_the_work,
    a_buffer_that_a_launch_uses_outlives_it,
    what_is_forgotten_is_never_freed_and_hurts_nobody,
    dropping_a_stream_executes_what_is_queued,
    dropping_a_stream_does_not_wait_for_its_kernel,
    a_value_that_is_kept_is_dropped_after_its_uses,
    a_task_is_woken_though_nobody_calls_the_backend,
    an_event_is_reached_after_what_is_before_it_and_tells_its_time_then,
}

fn run(subject: Subject, name: &str) {
    CHECKS.iter().find(|check| check.name == name).expect("a check of that name").run(subject);
}

#[test]
fn every_check_is_run() {
    assert_eq!(CHECKS.iter().map(|check| check.name).collect::<Vec<_>>(), NAMES);
}
