//! The subcommands: a file each, with its arguments, examples and `run` (those that print texts share `manual.rs`). To add one, add a file and a variant of
//! [`Command`]; the compiler lists what else, and `COMMANDS` in `cli/tests/commands/help.rs` has the names.

mod demo;
mod doctor;
mod layout;
mod manual;
mod new;
mod recorded;
mod replay;
mod stream;
#[cfg_attr(not(any(target_os = "linux", target_os = "android")), path = "no_top.rs")]
pub(crate) mod top;
mod view;

use std::io::Write;

use clap::Subcommand;
use ringmem::Image;

use crate::{Outcome, Terminal};

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Stream a file through device memory and a persistent kernel; print its histogram and checksum, or write the result to a file
    #[command(after_help = stream::EXAMPLES)]
    Stream(stream::Arguments),
    /// Send messages to a persistent kernel and check its answers
    #[command(after_help = demo::EXAMPLES)]
    Demo(demo::Arguments),
    /// Print the layout of every shared struct of this library
    #[command(after_help = layout::EXAMPLES)]
    Layout(layout::Arguments),
    /// Report drivers, devices, memory visibility and limits, with suggested fixes
    #[command(after_help = doctor::EXAMPLES)]
    Doctor(doctor::Arguments),
    /// Replay recorded allocations: the memory that this pool and PyTorch's allocator need for them, and whether it would have fitted
    #[command(after_help = replay::EXAMPLES)]
    Replay(replay::Arguments),
    /// Show recorded allocations as an HTML page: timeline, segments, holders, stacks; or convert them for PyTorch's viewer or Perfetto
    #[command(after_help = view::EXAMPLES)]
    View(view::Arguments),
    /// Create a package with a shared struct, a kernel, a host program and a test
    #[command(after_help = new::EXAMPLES)]
    New(new::Arguments),
    /// Watch published channels and shared rings
    #[command(after_help = top::EXAMPLES)]
    Top(top::Arguments),
    /// Print the completion script of a shell
    #[command(after_help = manual::COMPLETIONS)]
    Completions(manual::Shell),
    /// Print the manual page, or write a page for each command to a folder
    #[command(after_help = manual::PAGES)]
    Man(manual::Pages),
}

impl Command {
    /// Returns whether the output is text, which is fitted to a terminal.
    pub(crate) fn prints_text(&self) -> bool {
        match self {
            Self::Stream(arguments) => !arguments.json,
            Self::Demo(arguments) => !arguments.json,
            Self::Layout(arguments) => arguments.prints_text(),
            Self::Doctor(arguments) => !arguments.json,
            Self::Replay(arguments) => !arguments.json,
            Self::View(arguments) => arguments.prints_text(),
            Self::New(_) => true,
            Self::Top(arguments) => arguments.prints_text(),
            Self::Completions(_) | Self::Man(_) => false,
        }
    }

    pub(crate) fn perform(self, image: &Image, terminal: Option<Terminal>, out: &mut dyn Write, err: &mut dyn Write) -> Outcome {
        let columns = terminal.map(|terminal| terminal.columns);
        match self {
            Self::Stream(arguments) => stream::run(&arguments, image, columns, out, err),
            Self::Demo(arguments) => demo::run(&arguments, image, out, err),
            Self::Layout(arguments) => layout::run(&arguments, image, out, err),
            Self::Doctor(arguments) => doctor::run(&arguments, out),
            Self::Replay(arguments) => replay::run(&arguments, out),
            Self::View(arguments) => view::run(&arguments, terminal.is_some(), out),
            Self::New(arguments) => new::run(&arguments, out),
            Self::Top(arguments) => top::run(&arguments, terminal, out),
            Self::Completions(shell) => manual::complete(&shell, out),
            Self::Man(pages) => manual::run(&pages, out),
        }
    }
}
