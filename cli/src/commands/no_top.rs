use std::io::Write;

use crate::{Failure, Outcome, Terminal};

pub(super) const EXAMPLES: &str = "It needs Linux: channels are published nowhere else.";

#[derive(clap::Args)]
pub(crate) struct Arguments {}

impl Arguments {
    pub(super) fn prints_text(&self) -> bool {
        false
    }
}

pub(super) fn run(_: &Arguments, _: Option<Terminal>, _: &mut dyn Write) -> Outcome {
    Err(Failure::Fact("`ringmem top` needs Linux: channels are published nowhere else".to_owned()))
}

pub(crate) fn restore() {}
