//! `cargo xtask conformance check-files`: what `portcullis check` says of the Gateway API's own
//! examples and of the manifests of its conformance suite. Each file is checked with what it refers
//! to and lacks, so that a fault that is told is one of the file. The page has the table; a fault
//! that no reason explains is an error, and so is a page that is out of date.

mod reason;
mod world;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use portcullis_testbed::{build, command, go, workspace};
use serde_json::Value;

use self::reason::{Fault, REASONS, Reason};
use self::world::{Origin, World};

const API: &str = "sigs.k8s.io/gateway-api";
const SUITE: &str = "sigs.k8s.io/gateway-api/conformance";
/// Of the suite: what most of its tests use.
const BASES: [&str; 2] = ["base/manifests.yaml", "mesh/manifests.yaml"];
/// Relative to the workspace.
const PAGE: &str = "docs/conformance/files.md";
const SCRATCH: &str = "target/check-files";
const BEGIN: &str = "<!-- check-files: begin -->\n";
const END: &str = "<!-- check-files: end -->\n";

/// Placeholders that the suite fills in.
const PLACEHOLDERS: [(&str, &str); 4] = [
    ("{GATEWAY_CLASS_NAME}", "portcullis"),
    ("{GATEWAY_CONTROLLER_NAME}", "portcullis.dev/gateway"),
    ("PLACEHOLDER_UNUSABLE_ADDRS", "192.0.2.1"),
    ("PLACEHOLDER_USABLE_ADDRS", "198.51.100.1"),
];

#[derive(clap::Args)]
pub(crate) struct FilesArgs {
    /// Write the table into docs/conformance/files.md instead of comparing it
    #[arg(long)]
    write: bool,
    /// An agent that is built already [default: build one]
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
}

/// A file, with the objects around it that it may refer to.
struct Input {
    name: String,
    text: String,
    around: Vec<Value>,
    origin: Origin,
}

/// A file's exit status, and the reasons if it is not 0.
struct Checked {
    name: String,
    origin: Origin,
    status: i32,
    reasons: BTreeSet<&'static str>,
}

pub(crate) fn run(args: &FilesArgs) -> Result<()> {
    let binary = match &args.binary {
        Some(binary) => std::path::absolute(binary)?,
        None => {
            command::run(workspace::cargo().args(["build", "--locked", "--package", "portcullis"]))?;
            build::debug_program()
        }
    };
    let scratch = workspace::root().join(SCRATCH);
    fs::create_dir_all(&scratch)?;
    let world = World::new()?;
    let (mut checked, mut unexplained) = (Vec::new(), Vec::new());
    for input in inputs()? {
        let outcome = check(&binary, &scratch, &world, &input)
            .with_context(|| format!("cannot check {}", input.name))?;
        unexplained.extend(outcome.1);
        checked.push(outcome.0);
    }
    let failed = checked.iter().filter(|file| file.status != 0).count();
    println!("check-files: {} files, {failed} with an exit status other than 0", checked.len());
    for fault in &unexplained {
        println!("no reason explains {fault}");
    }
    ensure!(unexplained.is_empty(), "{} faults that no reason explains", unexplained.len());
    publish(&table(&checked), args)
}

fn inputs() -> Result<Vec<Input>> {
    let (examples, suite) = (module(API)?.join("examples"), module(SUITE)?);
    let mut inputs = Vec::new();
    for path in yaml_files(&examples)? {
        let name = path.strip_prefix(&examples)?.display().to_string();
        let around = neighbours(&examples, &path)?;
        inputs.push(Input { name, text: read(&path)?, around, origin: Origin::Example });
    }
    let mut base = Vec::new();
    for manifests in BASES {
        base.extend(documents(&read(&suite.join(manifests))?)?);
    }
    let tests = suite.join("tests");
    for path in yaml_files(&tests)?.into_iter().chain(BASES.map(|manifests| suite.join(manifests))) {
        let name = path.strip_prefix(&tests).or_else(|_| path.strip_prefix(&suite))?.display().to_string();
        inputs.push(Input { name, text: read(&path)?, around: base.clone(), origin: Origin::Suite });
    }
    Ok(inputs)
}

/// Directory in which Go keeps a module, in the version that the test cluster is built of.
fn module(name: &str) -> Result<PathBuf> {
    go::ensure()?;
    let directory = workspace::root().join("tests/cluster");
    command::output(go::command(&directory).args(["mod", "download", name]))?;
    let found = command::output(go::command(&directory).args(["list", "-m", "-f", "{{.Dir}}", name]))?;
    Ok(PathBuf::from(found.trim()))
}

fn yaml_files(directory: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).with_context(|| format!("no {}", directory.display()))? {
        let path = entry?.path();
        if path.is_dir() {
            found.extend(yaml_files(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "yaml") {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// Objects of the other files of an example in a directory of its own.
fn neighbours(examples: &Path, path: &Path) -> Result<Vec<Value>> {
    let directory = path.parent().unwrap_or(examples);
    if directory.strip_prefix(examples)?.components().count() < 2 {
        return Ok(Vec::new());
    }
    let others = yaml_files(directory)?.into_iter().filter(|other| other != path);
    others.map(|other| documents(&read(&other)?)).collect::<Result<Vec<_>>>().map(|all| all.concat())
}

fn read(path: &Path) -> Result<String> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(PLACEHOLDERS.iter().fold(text, |text, (name, value)| text.replace(name, value)))
}

fn documents(text: &str) -> Result<Vec<Value>> {
    let text = format!("\n{text}");
    let documents = text.split("\n---").map(serde_saphyr::from_str::<Value>);
    let documents = documents.collect::<Result<Vec<_>, _>>()?;
    Ok(documents.into_iter().filter(Value::is_object).collect())
}

/// And the faults that no reason explains.
fn check(binary: &Path, scratch: &Path, world: &World, input: &Input) -> Result<(Checked, Vec<String>)> {
    let (file, around) = (scratch.join("file.yaml"), scratch.join("around.yaml"));
    fs::write(&file, &input.text)?;
    let supplied = world.supply(&documents(&input.text)?, &input.around, input.origin);
    let supplied: Vec<_> = supplied.iter().map(Value::to_string).collect();
    fs::write(&around, supplied.join("\n---\n"))?;
    let mut check = Command::new(binary);
    check.args(["check", "--own-addresses", "--output", "json", "--filename"]).args([&file, &around]);
    let output = check.output().with_context(|| format!("cannot run {}", binary.display()))?;
    let status = output.status.code().context("check was killed")?;
    let faults =
        reason::faults(&serde_json::from_slice(&output.stdout)?, &String::from_utf8_lossy(&output.stderr));
    let explain = |fault: &Fault| (fault.to_string(), Reason::of(&input.name, fault));
    let explained: Vec<_> = faults.iter().filter(|fault| !fault.follows()).map(explain).collect();
    let reasons: BTreeSet<_> = explained.iter().filter_map(|(_, reason)| reason.map(|it| it.name)).collect();
    let mut unexplained: Vec<_> = explained
        .into_iter()
        .filter(|(_, reason)| reason.is_none())
        .map(|(fault, _)| format!("{}: {fault}", input.name))
        .collect();
    let is_good = reasons.is_empty() && unexplained.is_empty();
    if status > 1 || (status == 0) != is_good {
        unexplained.push(format!("{}: exit status {status}", input.name));
    }
    Ok((Checked { name: input.name.clone(), origin: input.origin, status, reasons }, unexplained))
}

fn table(checked: &[Checked]) -> String {
    let mut text = "| | files | exit status 0 | 1 | 2 |\n|---|---|---|---|---|\n".to_owned();
    for (origin, name) in [(Origin::Example, "examples"), (Origin::Suite, "the suite's manifests")] {
        let of: Vec<_> = checked.iter().filter(|file| file.origin == origin).collect();
        let with = |status| of.iter().filter(|file| file.status == status).count();
        let _ = writeln!(text, "| {name} | {} | {} | {} | {} |", of.len(), with(0), with(1), with(2));
    }
    let mut files = BTreeMap::<_, usize>::new();
    checked.iter().flat_map(|file| &file.reasons).for_each(|reason| *files.entry(*reason).or_default() += 1);
    text += "\n| reason | files | why the exit status is right |\n|---|---|---|\n";
    for reason in REASONS {
        let count = files.get(reason.name).copied().unwrap_or(0);
        let _ = writeln!(text, "| {} | {count} | {} |", reason.name, reason.why);
    }
    text += "\n| file with exit status 1 | reasons |\n|---|---|\n";
    for file in checked.iter().filter(|file| file.status != 0) {
        let reasons: Vec<_> = file.reasons.iter().copied().collect();
        let _ = writeln!(text, "| `{}` | {} |", file.name, reasons.join(", "));
    }
    text
}

fn publish(table: &str, args: &FilesArgs) -> Result<()> {
    let path = workspace::root().join(PAGE);
    let page = fs::read_to_string(&path).with_context(|| format!("cannot read {PAGE}"))?;
    let (before, rest) = page.split_once(BEGIN).with_context(|| format!("{PAGE} has lost its mark"))?;
    let (_, after) = rest.split_once(END).with_context(|| format!("{PAGE} has lost its mark"))?;
    let now = format!("{before}{BEGIN}{table}{END}{after}");
    if args.write {
        return Ok(fs::write(&path, now)?);
    }
    if now != page {
        bail!(
            "{PAGE} is out of date: run `cargo xtask conformance check-files --write`, and read what changed"
        );
    }
    Ok(())
}
