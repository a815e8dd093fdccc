//! The test suite for backends.
//!
//! 1. A [`Check`] is a function of a [`Subject`] that panics on a failure.
//! 2. It takes at most [`LIMIT`], and leaves no kernel running.
//! 3. If a subject [counts](Subject::counting), a refused call does nothing, no copy takes a detour, and nothing is left.
//!
//! Speed and driver failures are not checked.
//!
//! ```
//! use ringmem::backend::host::HostBackend;
//! use ringmem::conformance::{CHECKS, Subject};
//!
//! let subject = || Subject::new(HostBackend::builder().device_memory(1 << 20).build().expect("a backend"));
//! CHECKS[0].run(subject()); // or `run_all(subject)`
//! ```

mod allocation;
mod copies;
mod figures;
mod kernels;
mod refusals;
mod streams;
mod subject;
mod views;

use core::time::Duration;
use std::format;
use std::panic::resume_unwind;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;

pub use figures::Figures;
pub use kernels::IMAGE;
pub use subject::{AnyDevice, AnyPinned, Subject};

/// The maximum duration of a check.
pub const LIMIT: Duration = Duration::from_secs(60);

/// A property of every backend.
#[derive(Clone, Copy, Debug)]
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
            Ok(forgotten) => subject::eventually(&format!("{name}: nobody's bytes are freed"), || {
                figures.as_ref().map(|figures| figures().live_bytes) == held.map(|held| held + forgotten)
            }),
            Err(RecvTimeoutError::Timeout) => panic!("{name}: not done in time"),
            Err(RecvTimeoutError::Disconnected) => resume_unwind(thread.join().expect_err("it ended without a result")),
        }
    }
}

/// Runs every check on a new subject.
///
/// # Panics
///
/// As [`Check::run`], for the first failure.
pub fn run_all(make: impl Fn() -> Subject) {
    for check in CHECKS {
        check.run(make());
    }
}

macro_rules! checks {
    ($d:tt $($module:ident: $($name:ident,)*;)*) => {
        /// All checks.
        pub const CHECKS: &[Check] = &[$($(Check { name: stringify!($name), check: $module::$name }),*),*];

        /// Passes the names of all checks to a macro:
        ///
        /// ```
        /// macro_rules! tests {
        ///     ($($name:ident,)*) => { const NAMES: &[&str] = &[$(stringify!($name)),*]; };
        /// }
        /// ringmem::for_each_check!(tests);
        /// assert!(ringmem::conformance::CHECKS.iter().map(|check| check.name).eq(NAMES.iter().copied()));
        /// ```
        #[macro_export]
        macro_rules! for_each_check {
            ($d tests:ident) => { $d tests! { $($($name,)*)* } };
        }
    };
}

checks! {
    $
    allocation:
        blocks_are_as_long_and_aligned_as_asked_and_where_they_were_asked_for,
        options_do_what_they_say_or_are_refused,
        sizes_alignments_and_devices_that_there_are_not_are_refused,
        memory_runs_out_with_figures_and_is_back_after_frees,
        what_is_free_goes_down_by_what_is_taken_and_up_again,
        memory_that_the_host_sees_is_zeroed,
        a_buffer_is_freed_once_also_by_unwinding,
        a_buffer_without_bytes_asks_for_nothing,
        allocation_in_the_order_of_a_stream_can_be_used_everywhere,
    ;
    copies:
        bytes_come_back_at_every_size_and_offset_and_their_neighbours_stay,
        fills_of_every_size_set_their_range_and_no_more,
        fills_take_elements_of_any_size,
        copies_between_device_buffers_do_not_pass_through_the_host,
        a_copy_within_a_buffer_moves_its_bytes,
        one_buffer_and_one_staging_buffer_serve_a_thousand_batches,
        managed_memory_is_seen_by_both_sides_without_a_copy,
    ;
    views:
        a_view_writes_to_its_parent_also_through_views_of_views,
        a_cast_shows_the_same_bytes,
        a_map_copies_what_its_mode_says_and_no_more,
        a_slice_of_host_visible_memory_is_the_memory,
    ;
    refusals:
        a_mismatch_is_refused_before_anything_is_done,
        a_refused_operation_gives_its_buffers_back_untouched,
        what_belongs_to_another_backend_is_refused,
        an_unknown_kernel_or_a_wrong_number_of_arguments_is_refused,
        an_image_of_another_abi_is_refused_with_both_tables,
    ;
    streams:
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
    ;
}
