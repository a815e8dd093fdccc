//! Helpers of the suite; other test programs include some of the files.

pub mod busy_stream;
pub mod in_fork;
pub mod leak_checked;
pub mod panicking_clock;
pub mod rerun_or_skip;
