//! `portcullis completions` and `portcullis man`: what shells and `man` are to know of the command
//! line, made from it.

use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::{Command, CommandFactory};
use clap_mangen::Man;

use crate::cli::{Cli, CompletionsArgs, ManArgs};
use crate::output;

pub(crate) fn completions(args: &CompletionsArgs) -> Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "portcullis", &mut script);
    output::bytes(&script);
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn man(args: &ManArgs) -> Result<ExitCode> {
    let mut program = Cli::command();
    if let Some(dir) = &args.dir {
        let written = std::fs::create_dir_all(dir).and_then(|()| clap_mangen::generate_to(program, dir));
        written.with_context(|| format!("cannot write pages into {}", dir.display()))?;
        return Ok(ExitCode::SUCCESS);
    }
    // Commands get their full names by it.
    program.build();
    let page = match &args.command {
        None => program,
        Some(name) => {
            let Some(command) = program.find_subcommand(name) else {
                let names: Vec<_> = program.get_subcommands().map(Command::get_name).collect();
                bail!("there is no command {name}: the commands are {}", names.join(", "));
            };
            command.clone()
        }
    };
    let mut text = Vec::new();
    Man::new(page).render(&mut text)?;
    output::bytes(&text);
    Ok(ExitCode::SUCCESS)
}
