//! Events and spans for the feature `tracing`; without it, they compile to nothing.

/// `event!(debug, bytes, kind = ?kind, "message")`, with tracing's syntax of fields.
#[cfg(feature = "tracing")]
macro_rules! event {
    ($level:ident, $($rest:tt)*) => { tracing::$level!($($rest)*) };
}

/// A span until the returned value is dropped: `span!("trim", bytes = 1)`.
#[cfg(feature = "tracing")]
macro_rules! span {
    ($($rest:tt)*) => { tracing::debug_span!($($rest)*).entered() };
}

// Fields count as used, unevaluated.
#[cfg(any(test, not(feature = "tracing")))]
macro_rules! no_event {
    (@ , $($rest:tt)*) => { $crate::trace::no_event!(@ $($rest)*) };
    (@ $name:ident = ? $value:expr, $($rest:tt)*) => { (&$value, $crate::trace::no_event!(@ $($rest)*)) };
    (@ $name:ident = $value:expr, $($rest:tt)*) => { (&$value, $crate::trace::no_event!(@ $($rest)*)) };
    (@ $name:ident, $($rest:tt)*) => { (&$name, $crate::trace::no_event!(@ $($rest)*)) };
    (@ $message:literal) => { () };
    ($level:ident, $($rest:tt)*) => { { let _ = || { let _ = $crate::trace::no_event!(@ $($rest)*); }; } };
}

#[cfg(any(test, not(feature = "tracing")))]
macro_rules! no_span {
    ($name:literal $(, $field:ident = $value:expr)*) => {{
        let _ = || { let _ = ($(&$value,)*); };
        $crate::trace::NoSpan
    }};
}

#[cfg(any(test, not(feature = "tracing")))]
pub(crate) struct NoSpan;

#[cfg(any(test, not(feature = "tracing")))]
pub(crate) use no_event;
#[cfg(feature = "tracing")]
pub(crate) use {event, span};
#[cfg(not(feature = "tracing"))]
pub(crate) use {no_event as event, no_span as span};

#[cfg(test)]
mod tests {
    fn evaluated() -> u64 {
        panic!("a field was evaluated");
    }

    #[test]
    fn without_the_feature_fields_are_not_evaluated_and_a_span_is_empty() {
        no_event!(debug, bytes = evaluated(), kind = ?evaluated(), "queued");
        let span = no_span!("trim", keep = evaluated());
        assert_eq!((size_of_val(&span), core::mem::needs_drop::<super::NoSpan>()), (0, false));
    }
}
