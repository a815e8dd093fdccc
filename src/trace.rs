//! Events and spans for the feature `tracing`; without it, they compile to nothing.

#[cfg(feature = "tracing")]
mod enabled {
    use crate::sys::panic::caught;

    /// `event!(debug, bytes, kind = ?kind, "message")`, with tracing's syntax of fields. A subscriber's panic ends here: what is queued is not listed yet.
    macro_rules! event {
        ($level:ident, $($rest:tt)*) => {{ let _ = $crate::sys::panic::caught(|| tracing::$level!($($rest)*)); }};
    }

    /// A span until the returned value is dropped: `span!("trim", bytes = 1)`. A subscriber's panic ends here, as of an event.
    macro_rules! span {
        ($($rest:tt)*) => { $crate::trace::Entered::new(|| tracing::debug_span!($($rest)*).entered()) };
    }

    pub(crate) struct Entered(Option<tracing::span::EnteredSpan>);

    impl Entered {
        pub fn new(enter: impl FnOnce() -> tracing::span::EnteredSpan) -> Self {
            Self(caught(enter))
        }
    }

    impl Drop for Entered {
        fn drop(&mut self) {
            let span = self.0.take();
            caught(|| drop(span));
        }
    }

    pub(crate) use {event, span};
}

// Fields count as used, unevaluated.
#[cfg(any(test, not(feature = "tracing")))]
pub(crate) mod disabled {
    macro_rules! event {
        (@ , $($rest:tt)*) => { $crate::trace::disabled::event!(@ $($rest)*) };
        (@ $name:ident = ? $value:expr, $($rest:tt)*) => { (&$value, $crate::trace::disabled::event!(@ $($rest)*)) };
        (@ $name:ident = $value:expr, $($rest:tt)*) => { (&$value, $crate::trace::disabled::event!(@ $($rest)*)) };
        (@ $name:ident, $($rest:tt)*) => { (&$name, $crate::trace::disabled::event!(@ $($rest)*)) };
        (@ $message:literal) => { () };
        ($level:ident, $($rest:tt)*) => { { let _ = || { let _ = $crate::trace::disabled::event!(@ $($rest)*); }; } };
    }

    macro_rules! span {
        ($name:literal $(, $field:ident = $value:expr)*) => {{
            let _ = || { let _ = ($(&$value,)*); };
            $crate::trace::disabled::NoSpan
        }};
    }

    pub(crate) struct NoSpan;

    pub(crate) use {event, span};
}

#[cfg(not(feature = "tracing"))]
pub(crate) use disabled::{event, span};
#[cfg(feature = "tracing")]
pub(crate) use enabled::{Entered, event, span};

#[cfg(test)]
mod tests {
    use super::disabled::{NoSpan, event, span};

    fn evaluated() -> u64 {
        panic!("a field was evaluated");
    }

    #[test]
    fn without_the_feature_fields_are_not_evaluated_and_a_span_is_empty() {
        event!(debug, bytes = evaluated(), kind = ?evaluated(), "queued");
        let span = span!("trim", keep = evaluated());
        assert_eq!((size_of_val(&span), core::mem::needs_drop::<NoSpan>()), (0, false));
    }
}
