use std::io::{self, IsTerminal};

use indicatif::{ProgressBar, ProgressStyle};

use super::size;

/// Cleared when it is dropped. Without a terminal it does nothing.
pub(super) struct Bar(Option<ProgressBar>);

impl Bar {
    /// `length` is `None` if unknown. `template` is indicatif's, with the keys `size`, `sizes` and `rate` for steps of bytes.
    pub fn new(is_wanted: bool, length: Option<u64>, template: &str) -> Self {
        Self((is_wanted && io::stderr().is_terminal()).then(|| {
            let bar = length.map_or_else(ProgressBar::new_spinner, ProgressBar::new);
            let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
            let style = style
                .with_key("size", |state: &indicatif::ProgressState, f: &mut dyn std::fmt::Write| {
                    let _ = f.write_str(&size::show(state.pos()));
                })
                .with_key("sizes", |state: &indicatif::ProgressState, f: &mut dyn std::fmt::Write| {
                    let _ = f.write_str(&size::show(state.len().unwrap_or(0)));
                })
                .with_key("rate", |state: &indicatif::ProgressState, f: &mut dyn std::fmt::Write| {
                    let _ = write!(f, "{}/s", size::show(state.per_sec() as u64));
                });
            bar.with_style(style)
        }))
    }

    pub const fn is_shown(&self) -> bool {
        self.0.is_some()
    }

    pub fn set(&self, done: u64) {
        if let Some(bar) = &self.0 {
            bar.set_position(done);
        }
    }

    pub fn say(&self, what: &'static str) {
        if let Some(bar) = &self.0 {
            bar.set_message(what);
        }
    }

    pub fn clear(&self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.clear();
    }
}
