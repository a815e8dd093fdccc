//! Events and spans for the feature `tracing`. Without it nothing remains of them.

/// Emits an event, with tracing's syntax of fields: `event!(debug, bytes, kind = ?kind, "message")`.
#[cfg(feature = "tracing")]
macro_rules! event {
    ($level:ident, $($rest:tt)*) => { tracing::$level!($($rest)*) };
}

/// Enters a span until the returned value is dropped: `span!("trim", bytes = 1)`.
#[cfg(feature = "tracing")]
macro_rules! span {
    ($($rest:tt)*) => { tracing::debug_span!($($rest)*).entered() };
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

#[cfg(not(feature = "tracing"))]
macro_rules! span {
    ($name:literal $(, $field:ident = $value:expr)*) => {{
        let _ = || { let _ = ($(&$value,)*); };
        crate::trace::NoSpan
    }};
}

/// A span without the feature.
#[cfg(not(feature = "tracing"))]
pub(crate) struct NoSpan;

pub(crate) use {event, span};
