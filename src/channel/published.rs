use super::{Channel, Options};
use crate::memory::Memory;
use crate::pool::Pool;
use crate::trace::event;
use crate::{Error, Result, RingMessage};

#[derive(Default)]
pub(super) struct Published {
    page: Option<system::Page>,
    /// The reason why there is no page, although one was requested.
    failure: Option<Error>,
}

impl Published {
    pub fn new(options: &Options<'_>) -> Result<Self> {
        let Some(name) = options.publish else { return Ok(Self::default()) };
        Ok(match system::create(name, options)? {
            Ok(page) => Self { page: Some(page), failure: None },
            Err(error) => {
                event!(warn, name, error = ?error, "the channel's figures are not published");
                Self { page: None, failure: Some(error) }
            }
        })
    }
}

impl<I: RingMessage, O: RingMessage> Channel<I, O> {
    /// Returns the reason why the figures are not [published](super::Builder::publish), such as a full disk, or another user's folder of this
    /// user's name in `/tmp`. The channel works without them. `None` if they are published, or were not to be.
    #[must_use]
    pub const fn unpublished(&self) -> Option<&Error> {
        self.published.failure.as_ref()
    }

    /// Shows a pool's use with the published figures, until the channel is dropped; without [`publish`](super::Builder::publish), does nothing.
    ///
    /// The channel keeps the pool, and reads its statistics at most five times a second.
    pub fn publish_pool<M: Memory>(&mut self, pool: &Pool<M>) {
        if let Some(page) = &mut self.published.page {
            let pool = pool.clone();
            system::show(page, move || pool.statistics());
        }
        self.sample();
    }

    #[inline(always)]
    pub(super) fn count(&mut self) {
        if self.published.page.is_some() {
            self.publish_counts();
        }
    }

    #[cold]
    fn publish_counts(&mut self) {
        let (tail, head) = (self.sender.tail(), self.receiver.head());
        if self.published.page.as_mut().is_some_and(|page| system::count(page, tail, head)) {
            self.sample();
        }
    }

    pub(super) fn sample(&mut self) {
        let Some(page) = self.published.page.as_mut().filter(|_| self.process.is_this()) else { return };
        system::sample(page, &self.control.snapshot(), self.telemetry.snapshot().ok(), self.bridge.indices());
    }
}

#[cfg(any(target_os = "linux", target_os = "android"))]
mod system {
    use std::boxed::Box;

    use super::Options;
    use crate::dump::Indices;
    use crate::monitor::Publisher;
    use crate::pool::Statistics;
    use crate::{ControlBlock, Result, TelemetryBuffer};

    pub type Page = Box<Publisher>;

    pub fn create(name: &str, options: &Options<'_>) -> Result<Result<Page>> {
        let created = Publisher::create(name, options.kernel, options.start, super::super::nanoseconds(options.stuck_after))?;
        Ok(created.map(Box::new))
    }

    pub fn show(page: &mut Page, pool: impl Fn() -> Statistics + Send + 'static) {
        page.show(pool);
    }

    pub fn count(page: &mut Page, tail: u64, head: u64) -> bool {
        page.count(tail, head)
    }

    pub fn sample(page: &mut Page, control: &ControlBlock<u64>, telemetry: Option<TelemetryBuffer<u64>>, rings: [Indices; 2]) {
        page.sample(control, telemetry, rings);
    }
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
mod system {
    use core::convert::Infallible;

    use super::Options;
    use crate::dump::Indices;
    use crate::pool::Statistics;
    use crate::{ControlBlock, Error, Result, TelemetryBuffer};

    pub type Page = Infallible;

    pub fn create(_: &str, _: &Options<'_>) -> Result<Result<Page>> {
        Ok(Err(Error::Unsupported { what: "the publication of a channel's figures, except on Linux" }))
    }

    pub fn show(page: &mut Page, _: impl Fn() -> Statistics + Send + 'static) {
        match *page {}
    }

    pub fn count(page: &mut Page, _: u64, _: u64) -> bool {
        match *page {}
    }

    pub fn sample(page: &mut Page, _: &ControlBlock<u64>, _: Option<TelemetryBuffer<u64>>, _: [Indices; 2]) {
        match *page {}
    }
}
