use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use clap::CommandFactory;

use crate::{Failure, Outcome, output, shown};

pub(super) const COMPLETIONS: &str = "\
Examples:
  ringmem completions bash > ringmem.bash
  ringmem completions zsh > ~/.zfunc/_ringmem
  ringmem completions fish";

pub(super) const PAGES: &str = "\
Examples:
  ringmem man | man -l -
  ringmem man --output ~/.local/share/man/man1";

#[derive(clap::Args)]
pub(crate) struct Shell {
    /// The shell
    shell: clap_complete::Shell,
}

#[derive(clap::Args)]
pub(crate) struct Pages {
    /// Write ringmem.1 and a page for each command to this folder, which is created
    #[arg(long, value_name = "DIR")]
    output: Option<PathBuf>,
}

pub(super) fn complete(Shell { shell }: &Shell, out: &mut dyn Write) -> Outcome {
    // The generator panics if the output is closed.
    let mut script = Vec::new();
    clap_complete::generate(*shell, &mut crate::Arguments::command(), "ringmem", &mut script);
    Ok(out.write_all(&script)?)
}

pub(super) fn run(pages: &Pages, out: &mut dyn Write) -> Outcome {
    let command = crate::Arguments::command();
    let Some(folder) = &pages.output else { return Ok(clap_mangen::Man::new(command).render(out)?) };
    fs::create_dir_all(folder).map_err(|error| Failure::Fact(format!("cannot write to {}: {error}", shown(folder))))?;
    let mut command = command.disable_help_subcommand(true);
    // Gives the subcommands their whole names.
    command.build();
    write(folder, &command)
}

fn write(folder: &Path, command: &clap::Command) -> Outcome {
    let (page, mut text) = (clap_mangen::Man::new(command.clone()), Vec::new());
    page.render(&mut text)?;
    output::replace(&folder.join(page.get_filename()), &text)?;
    command.get_subcommands().filter(|command| !command.is_hide_set()).try_for_each(|command| write(folder, command))
}
