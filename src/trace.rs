//! Events for the feature `tracing`. Without it nothing remains of them.

/// Emits an event, with tracing's syntax of fields: `event!(debug, bytes, kind = ?kind, "message")`.
#[cfg(feature = "tracing")]
macro_rules! event {
    ($level:ident, $($rest:tt)*) => { tracing::$level!($($rest)*) };
}

// Fields count as used, and are not evaluated.
#[cfg(not(feature = "tracing"))]
macro_rules! event {
    (@ , $($rest:tt)*) => { event!(@ $($rest)*) };
    (@ $name:ident = ? $value:expr, $($rest:tt)*) => { (&$value, event!(@ $($rest)*)) };
    (@ $name:ident = $value:expr, $($rest:tt)*) => { (&$value, event!(@ $($rest)*)) };
    (@ $name:ident, $($rest:tt)*) => { (&$name, event!(@ $($rest)*)) };
    (@ $message:literal) => { () };
    ($level:ident, $($rest:tt)*) => { { let _ = || { let _ = event!(@ $($rest)*); }; } };
}

pub(crate) use event;
