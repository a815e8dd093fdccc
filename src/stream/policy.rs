use crate::error::OperationFault;

use crate::{Error, Result};

/// The kind of a failure.
///
/// ```
/// use ringmem::backend::host::HostBackend;
/// use ringmem::memory::{Device, GpuBuffer};
/// use ringmem::stream::Kind;
///
/// let backend = HostBackend::builder().device_memory(1 << 20).build()?;
/// let error = GpuBuffer::<u8>::new(Device::new(&backend, 0), 2 << 20).unwrap_err();
/// assert_eq!(Kind::of(&error), Kind::Memory);
/// # Ok::<(), ringmem::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// Out of memory, or over a limit.
    Memory,
    /// A kernel failed or was not launched.
    Launch,
    /// A caller's error.
    Misuse,
    /// Another driver error.
    Other,
}

/// The reaction to a failure.
///
/// ```
/// use ringmem::stream::{Action, ErrorGuard, ErrorPolicy, Kind};
///
/// let mut guard = ErrorGuard::new(ErrorPolicy::default());
/// let reactions = [Kind::Memory, Kind::Memory, Kind::Misuse].map(|kind| guard.failed(kind));
/// assert_eq!(reactions, [Action::Retry, Action::Fallback, Action::Abort]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Action {
    /// Retry.
    Retry,
    /// Do the work on the host.
    Fallback,
    /// Reopen the device: its context is unusable.
    Reset,
    /// Return the error.
    Abort,
}

/// Thresholds of consecutive failures; a success resets them.
///
/// ```
/// use ringmem::stream::{Action, ErrorGuard, ErrorPolicy, Kind};
///
/// let mut guard = ErrorGuard::new(ErrorPolicy { launch_fallback: 1, ..ErrorPolicy::default() });
/// assert_eq!(guard.failed(Kind::Launch), Action::Fallback);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorPolicy {
    /// Memory failures from which the host does the work.
    pub memory_fallback: u32,
    /// Launch failures from which the host does the work.
    pub launch_fallback: u32,
    /// Other failures from which there is no retry.
    pub abort: u32,
    /// Total failures after which the device is reset.
    pub reset: u32,
}

/// Counts failures; returns a policy's reaction.
///
/// ```
/// use ringmem::Error;
/// use ringmem::stream::{Action, ErrorGuard, ErrorPolicy, Guarded, Kind};
///
/// let mut guard = ErrorGuard::new(ErrorPolicy::default());
/// assert_eq!(guard.failed(Kind::Memory), Action::Retry);
/// assert_eq!(guard.failed(Kind::Memory), Action::Fallback); // the second in a row: do it on the host
/// guard.succeeded();
/// assert!(matches!(guard.run(|| Ok::<_, Error>(7)), Guarded::Done(7)));
/// ```
#[derive(Clone, Debug)]
#[doc(alias = "CudaErrorHandler")]
pub struct ErrorGuard {
    policy: ErrorPolicy,
    in_a_row: [u32; 3],
    since_reset: u32,
}

/// The outcome of a guarded operation.
///
/// ```
/// use ringmem::Error;
/// use ringmem::backend::host::HostBackend;
/// use ringmem::memory::{Device, GpuBuffer};
/// use ringmem::stream::{Action, ErrorGuard, ErrorPolicy, Guarded};
///
/// let backend = HostBackend::builder().device_memory(1 << 20).build()?;
/// let mut guard = ErrorGuard::new(ErrorPolicy::default());
/// match guard.run(|| GpuBuffer::<u8>::new(Device::new(&backend, 0), 2 << 20)) {
///     Guarded::Failed(Error::OutOfMemory { .. }, Action::Fallback) => {} // do it on the host
///     other => panic!("{other:?}"),
/// }
/// # Ok::<(), Error>(())
/// ```
#[derive(Debug)]
pub enum Guarded<T> {
    /// It succeeded.
    Done(T),
    /// It failed; the action is never [`Action::Retry`].
    Failed(Error, Action),
}

impl ErrorPolicy {
    /// Fallback at the second memory or third launch failure, abort at the fifth other one, reset at the fifteenth in all.
    pub const DEFAULT: Self = Self { memory_fallback: 2, launch_fallback: 3, abort: 5, reset: 15 };
}

impl Default for ErrorPolicy {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl Kind {
    /// Returns the kind of an error.
    #[must_use]
    pub fn of(error: &Error) -> Self {
        match error {
            Error::OutOfMemory { .. } | Error::Limit { .. } | Error::Staging { .. } | Error::Map { .. } => Self::Memory,
            Error::KernelPanicked { .. } | Error::Kernel { .. } | Error::Injected { call: "launch", .. } | Error::Residency { .. } => {
                Self::Launch
            }
            Error::Driver { call, code, .. } => Self::of_driver(call, *code),
            Error::Injected { .. }
            | Error::Corrupted { .. }
            | Error::Operation { what: OperationFault::Unpublished | OperationFault::AlreadyReported, .. }
            | Error::System { .. } => Self::Other,
            _ => Self::Misuse,
        }
    }

    /// By number, which a broken context repeats, then by call.
    fn of_driver(call: &str, code: u32) -> Self {
        match (call, code) {
            // OUT_OF_MEMORY.
            (_, 2) => Self::Memory,
            // ILLEGAL_ADDRESS, LAUNCH_OUT_OF_RESOURCES, LAUNCH_TIMEOUT, ASSERT; HARDWARE_STACK_ERROR to COOPERATIVE_LAUNCH_TOO_LARGE.
            (_, 700..=702 | 710 | 714..=720) | ("cuLaunchKernel" | "cuLaunchCooperativeKernel", _) => Self::Launch,
            _ => Self::Other,
        }
    }
}

impl ErrorGuard {
    /// Returns a guard without failures.
    #[must_use]
    pub const fn new(policy: ErrorPolicy) -> Self {
        Self { policy, in_a_row: [0; 3], since_reset: 0 }
    }

    /// Counts a failure and returns the reaction.
    pub fn failed(&mut self, kind: Kind) -> Action {
        let (row, limit, then) = match kind {
            Kind::Misuse => return Action::Abort,
            Kind::Memory => (0, self.policy.memory_fallback, Action::Fallback),
            Kind::Launch => (1, self.policy.launch_fallback, Action::Fallback),
            Kind::Other => (2, self.policy.abort, Action::Abort),
        };
        self.since_reset = self.since_reset.saturating_add(1);
        self.in_a_row[row] = self.in_a_row[row].saturating_add(1);
        if self.since_reset >= self.policy.reset {
            (self.since_reset, self.in_a_row) = (0, [0; 3]);
            return Action::Reset;
        }
        if self.in_a_row[row] >= limit { then } else { Action::Retry }
    }

    /// Resets the consecutive failures.
    pub fn succeeded(&mut self) {
        self.in_a_row = [0; 3];
    }

    /// Runs an operation with the policy's retries; returns the last error.
    pub fn run<T>(&mut self, mut operation: impl FnMut() -> Result<T>) -> Guarded<T> {
        loop {
            match operation() {
                Ok(value) => {
                    self.succeeded();
                    return Guarded::Done(value);
                }
                Err(error) => match self.failed(Kind::of(&error)) {
                    Action::Retry => {}
                    action => return Guarded::Failed(error, action),
                },
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(kind: Kind, count: usize) -> Vec<Action> {
        let mut guard = ErrorGuard::new(ErrorPolicy::DEFAULT);
        (0..count).map(|_| guard.failed(kind)).collect()
    }

    #[test]
    fn each_kind_has_its_threshold() {
        use Action::{Abort, Fallback, Reset, Retry};
        assert_eq!(kinds(Kind::Memory, 3), [Retry, Fallback, Fallback]);
        assert_eq!(kinds(Kind::Launch, 4), [Retry, Retry, Fallback, Fallback]);
        assert_eq!(kinds(Kind::Other, 6), [Retry, Retry, Retry, Retry, Abort, Abort]);
        assert_eq!(kinds(Kind::Misuse, 2), [Abort, Abort]);
        let all = kinds(Kind::Other, 17);
        assert_eq!((all[13], all[14], all[15]), (Abort, Reset, Retry), "the fifteenth, and then anew");
    }

    #[test]
    fn a_driver_error_is_classified_by_code_or_call() {
        let driver = |call, code| Kind::of(&Error::Driver { call, code, name: "", log: None });
        for call in ["cuMemAllocFromPoolAsync", "cuMemcpyHtoDAsync_v2", "cuLaunchKernel"] {
            assert_eq!(driver(call, 2), Kind::Memory, "{call}");
            for code in [700, 701, 702, 710, 714, 715, 716, 717, 718, 719, 720] {
                assert_eq!(driver(call, code), Kind::Launch, "{call}: {code}");
            }
        }
        for (call, code, expected) in [
            ("cuLaunchKernel", 1, Kind::Launch),
            ("cuLaunchCooperativeKernel", 400, Kind::Launch),
            ("cuLaunchHostFunc", 801, Kind::Other),
            ("cuEventQuery", 1, Kind::Other),
            // Neighbours: 699 is unused, then PEER_ACCESS_ALREADY_ENABLED, HOST_MEMORY_ALREADY_REGISTERED, NOT_PERMITTED.
            ("cuStreamQuery", 699, Kind::Other),
            ("cuStreamQuery", 704, Kind::Other),
            ("cuStreamQuery", 712, Kind::Other),
            ("cuStreamQuery", 800, Kind::Other),
            ("cuStreamQuery", 999, Kind::Other),
        ] {
            assert_eq!(driver(call, code), expected, "{call}: {code}");
        }
        assert_eq!(Kind::of(&Error::Residency { asked: 2, free: 1, most: 4, resident: 3 }), Kind::Launch);
    }

    #[test]
    fn a_success_ends_the_streak_but_not_the_reset_count() {
        let mut guard = ErrorGuard::new(ErrorPolicy::DEFAULT);
        for _ in 0..14 {
            assert_eq!(guard.failed(Kind::Memory), Action::Retry);
            guard.succeeded();
        }
        assert_eq!(guard.failed(Kind::Memory), Action::Reset);
    }

    #[test]
    fn run_repeats_the_operation_and_returns_its_last_error() {
        let mut guard = ErrorGuard::new(ErrorPolicy::DEFAULT);
        let mut number = 0;
        let mut fail = |until: u64| {
            number += 1;
            if number < until { Err(Error::Injected { call: "launch", number }) } else { Ok(number) }
        };
        assert!(matches!(guard.run(|| fail(3)), Guarded::Done(3)));
        number = 0;
        let mut always = || {
            number += 1;
            Err::<(), _>(Error::Injected { call: "launch", number })
        };
        assert!(matches!(guard.run(&mut always), Guarded::Failed(Error::Injected { number: 3, .. }, Action::Fallback)));
        let refused = || Err::<(), _>(Error::NoDevice { asked: 7, devices: 1 });
        assert!(matches!(guard.run(refused), Guarded::Failed(Error::NoDevice { .. }, Action::Abort)));
    }
}
