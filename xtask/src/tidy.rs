//! `cargo xtask tidy`: the rules of this repository that no compiler checks. Each is a function
//! from files to problems; the same rules run as a test.

mod circles;
mod dependencies;
mod fix;
mod layers;
mod links;
mod metadata;
mod prose;
mod source;
mod text;
mod types;
mod words;
mod wrap;

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use portcullis_testbed::{command, workspace};

#[derive(Default, clap::Args)]
pub(crate) struct Args {
    /// First fill comments and documents anew that are too wide, below these folders
    #[arg(long, value_name = "FOLDER")]
    wrap: Vec<String>,
    /// First put right what a program can: formatting, lines that are too wide, trailing blanks
    #[arg(long)]
    fix: bool,
}

/// A file of the repository, by its path from the root.
struct File {
    path: String,
    text: String,
}

/// Place of a mistake, what is wrong, and what to do.
#[derive(Debug)]
struct Problem(String);

type Rule = fn(&[File]) -> Vec<Problem>;

const RULES: &[Rule] = &[
    circles::problems,
    fix::trailing_blanks,
    prose::openings,
    prose::wide_lines,
    prose::wide_documents,
    types::problems,
    words::people,
    words::vocabulary,
];

pub(crate) fn run(args: &Args) -> Result<()> {
    if args.fix {
        fix::format()?;
    }
    let mut files = files()?;
    for file in &mut files {
        let is_wrapped = args.wrap.iter().any(|folder| file.path.starts_with(folder));
        let text = match args.fix {
            true => fix::mended(file),
            false if is_wrapped => fix::wrapped(file),
            false => continue,
        };
        if text != file.text {
            println!("tidy: {} is put right", file.path);
            fs::write(workspace::root().join(&file.path), &text)?;
            file.text = text;
        }
    }
    for warning in text::long_files(&files) {
        println!("tidy: warning: {}", warning.0);
    }
    let problems = problems(&files)?;
    for problem in &problems {
        println!("tidy: {}", problem.0);
    }
    if !problems.is_empty() {
        bail!("{} to tidy", problems.len());
    }
    println!("tidy: {} files are in order", files.len());
    Ok(())
}

fn problems(files: &[File]) -> Result<Vec<Problem>> {
    let packages = metadata::packages()?;
    let mut problems = layers::problems(&packages);
    problems.extend(dependencies::problems(&packages, files));
    problems.extend(text::machine_paths(files));
    problems.extend(links::problems(files));
    problems.extend(RULES.iter().flat_map(|rule| rule(files)));
    Ok(problems)
}

/// Text files that git tracks or would track.
fn files() -> Result<Vec<File>> {
    let root = workspace::root().display().to_string();
    let listed = ["-C", &root, "ls-files", "--cached", "--others", "--exclude-standard"];
    let listed =
        command::ask("git", &listed).context("`git ls-files` failed; tidy looks at a git checkout")?;
    let mut files = Vec::new();
    for path in listed.lines() {
        if let Ok(text) = fs::read_to_string(PathBuf::from(&root).join(path)) {
            files.push(File { path: path.to_owned(), text });
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    #[test]
    fn this_repository_is_tidy() {
        let problems = super::problems(&super::files().unwrap()).unwrap();
        assert!(problems.is_empty(), "{problems:#?}");
    }
}
