//! The test suite for backends. `tests/suite`, `tests/cuda` and the example `gpu_suite` include it by its path.
//!
//! 1. A [`Check`] is a function of a [`Subject`] that panics on failure.
//! 2. It takes at most [`LIMIT`] and leaves no kernel running.
//! 3. If a subject [counts](Subject::counting), the checks also require that a failed call does nothing, no copy goes through other memory,
//!    and no block remains.
//!
//! Speed and driver failures are not checked.

mod address_ranges;
mod allocation;
mod copies;
mod figures;
mod kernels;
mod refusals;
mod streams;
mod subject;
mod views;

use std::panic::resume_unwind;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use figures::Figures;
use kernels::IMAGE;
pub use subject::Subject;

/// The maximum duration of a check.
const LIMIT: Duration = Duration::from_secs(60);

/// A property of every backend.
pub struct Check {
    /// A sentence with underscores.
    pub name: &'static str,
    check: fn(&Subject),
}

impl Check {
    /// Checks a subject that no other code uses.
    ///
    /// # Panics
    ///
    /// If the subject fails, exceeds [`LIMIT`], or leaves memory allocated.
    pub fn run(&self, subject: Subject) {
        let (name, check, figures, held) = (self.name, self.check, subject.figures.clone(), subject.live_bytes());
        let (done, outcome) = channel();
        let thread = thread::spawn(move || {
            check(&subject);
            let forgotten = subject.forgotten_bytes();
            drop(subject);
            let _ = done.send(forgotten);
        });
        match outcome.recv_timeout(LIMIT) {
            Ok(forgotten) => subject::eventually(&format!("{name}: forgotten bytes are freed"), || {
                figures.as_ref().map(|figures| figures().live_bytes) == held.map(|held| held + forgotten)
            }),
            Err(RecvTimeoutError::Timeout) => panic!("{name}: not done in time"),
            Err(RecvTimeoutError::Disconnected) => resume_unwind(thread.join().expect_err("it ended without a result")),
        }
    }
}

macro_rules! checks {
    ($d:tt $($module:ident: $($name:ident,)*;)*) => {
        /// Every check. A function above that is not listed is dead code, which the compiler reports.
        pub const CHECKS: &[Check] = &[$($(Check { name: stringify!($name), check: $module::$name }),*),*];

        /// Passes the names of all checks to a macro, for one `#[test]` each.
        #[allow(unused_macros, reason = "`gpu_suite` iterates over `CHECKS`")]
        macro_rules! for_each_check {
            ($d tests:ident) => { $d tests! { $($($name,)*)* } };
        }
    };
}

checks! {
    $
    allocation:
        blocks_have_the_requested_size_alignment_and_location,
        options_take_effect_or_are_errors,
        invalid_sizes_alignments_and_devices_are_errors,
        out_of_memory_has_figures_and_ends_after_frees,
        memory_info_follows_allocations_and_frees,
        host_visible_memory_is_zeroed,
        a_buffer_is_freed_once_even_when_unwinding,
        an_empty_buffer_makes_no_calls,
        stream_ordered_memory_is_usable_on_other_streams,
    ;
    address_ranges:
        mapped_memory_counts_as_allocated_at_its_offset,
        adjacent_mapped_blocks_are_one_range,
        a_moved_block_keeps_its_bytes,
        a_place_is_occupied_until_its_free_is_complete,
        mapping_beside_a_kernel_succeeds_or_is_busy,
        parts_that_cannot_be_mapped_are_errors_without_effects,
        a_range_has_more_addresses_than_the_device_memory,
        mapped_memory_outlives_the_range,
    ;
    copies:
        copies_of_every_size_and_offset_preserve_their_neighbours,
        copies_of_no_bytes_succeed_between_all_memories,
        fills_of_every_size_set_only_their_range,
        fills_accept_elements_of_any_size,
        copies_between_device_buffers_stay_on_the_device,
        a_copy_within_a_buffer_moves_its_bytes,
        one_buffer_and_one_staging_buffer_serve_a_thousand_batches,
        both_sides_access_managed_memory_without_a_copy,
    ;
    views:
        nested_views_write_to_their_parent,
        a_cast_preserves_the_bytes,
        a_map_copies_only_what_its_mode_requires,
        slices_of_host_visible_memory_alias_it,
    ;
    refusals:
        a_mismatch_is_an_error_without_effects,
        a_rejected_operation_returns_its_buffers_unchanged,
        objects_of_another_backend_are_rejected,
        unknown_kernels_and_wrong_argument_counts_are_errors,
        loading_an_image_of_another_abi_has_both_layouts,
    ;
    streams:
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
    ;
}
