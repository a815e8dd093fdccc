use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};

/// Counters of a relay. Those of the other direction stay 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Metrics {
    /// Sender: messages sent, each once. Receiver: messages pushed into the sink.
    pub messages: u64,
    /// Bytes of these messages.
    pub bytes: u64,
    /// Sender: messages that the receiver pushed and the source released.
    pub acknowledged: u64,
    /// Sender: messages sent again.
    pub resent: u64,
    /// Receiver: repeated messages dropped.
    pub duplicates: u64,
    /// Receiver: batches dropped after a gap, or beyond the window.
    pub gaps: u64,
    /// Sender: successful handshakes after the first. Receiver: changes of the source.
    pub reconnects: u64,
    /// Ignored messages: invalid, or not for this relay.
    pub rejected: u64,
    /// Receiver: handshakes refused because the rings differ.
    pub refused: u64,
}

macro_rules! counters {
    ($($name:ident)+) => {
        #[derive(Default)]
        pub(crate) struct Counters {
            $(pub $name: AtomicU64,)+
        }

        impl Counters {
            pub fn read(&self) -> Metrics {
                Metrics { $($name: self.$name.load(Relaxed),)+ }
            }
        }
    };
}
counters! { messages bytes acknowledged resent duplicates gaps reconnects rejected refused }

pub(crate) fn add(counter: &AtomicU64, number: u64) {
    counter.fetch_add(number, Relaxed);
}

/// What a relay shares with its thread.
#[derive(Default)]
pub(crate) struct Common {
    pub counters: Counters,
    stop: AtomicBool,
}

impl Common {
    pub fn stop(&self) {
        self.stop.store(true, Relaxed);
    }

    pub fn is_stopped(&self) -> bool {
        self.stop.load(Relaxed)
    }
}
