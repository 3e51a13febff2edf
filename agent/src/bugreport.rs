//! `portcullis bugreport`: all that an agent tells of itself in one archive, without secrets. What
//! could not be got is said in it, and why. The configuration has all routes: their text, in which
//! values cannot be told from the rest, is not asked for.

use std::fs::OpenOptions;
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use flate2::Compression;
use flate2::write::GzEncoder;
use portcullis_inspect::{withhold, without_quoted_values};
use serde_json::Value;

use crate::about::about;
use crate::admin::client::Agent;
use crate::cli::BugreportArgs;
use crate::output;

/// The endpoints that are asked, and the files of their answers.
const PARTS: [(&str, &str, Form); 12] = [
    ("/about", "agent.json", Form::Json),
    ("/readyz", "ready.txt", Form::Readiness),
    ("/problems", "problems.txt", Form::Text),
    ("/api/v1/problems?limit=1000", "problems.json", Form::Json),
    ("/status", "status.json", Form::Json),
    ("/listeners", "listeners.json", Form::Json),
    ("/config", "config.json", Form::Json),
    ("/api/v1/node", "node.json", Form::Json),
    ("/api/v1/traffic?limit=1000", "traffic.json", Form::Json),
    ("/api/v1/certificates?limit=1000", "certificates.json", Form::Json),
    ("/metrics", "metrics.txt", Form::Metrics),
    ("/log", "log.txt", Form::Text),
];

#[derive(Clone, Copy)]
enum Form {
    Text,
    Json,
    /// Text whose quotes are around names, not around values of others.
    Metrics,
    /// Text, with a status that is no failure.
    Readiness,
}

struct File {
    name: &'static str,
    text: String,
}

pub(crate) fn run(args: &BugreportArgs, agent: &Agent) -> Result<ExitCode> {
    let taken = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let name = format!("portcullis-bugreport-{taken}");
    let file = args.file.clone().unwrap_or_else(|| PathBuf::from(format!("{name}.tar.gz")));
    let (mut files, mut missing) = (Vec::new(), Vec::new());
    for (endpoint, name, form) in PARTS {
        match answer(agent, endpoint, form) {
            Ok(text) => files.push(File { name, text }),
            Err(error) => missing.push((name, format!("{error:#}"))),
        }
    }
    let is_silent = files.is_empty();
    let asking = serde_json::to_string_pretty(&about()).context("about this program")?;
    files.push(File { name: "asking.json", text: asking });
    if !missing.is_empty() {
        let lines = missing.iter().map(|(name, why)| format!("{name}: {why}\n"));
        files.push(File { name: "missing.txt", text: lines.collect() });
    }
    write(&file, &name, &files, taken)?;
    if file.as_os_str() != "-" {
        output::text(&format!("{}: {} files, without secrets\n", file.display(), files.len()));
    }
    for names in missing.chunk_by(|(_, why), (_, next)| why == next) {
        let why = &names[0].1;
        let names: Vec<_> = names.iter().map(|(name, _)| *name).collect();
        output::error(&format!("portcullis: not in it: {}: {why}", names.join(", ")));
    }
    if is_silent {
        bail!("the agent said nothing: the report has only what this program knows of its own machine");
    }
    Ok(ExitCode::SUCCESS)
}

fn answer(agent: &Agent, endpoint: &str, form: Form) -> Result<String> {
    match form {
        Form::Readiness => {
            let (status, text) = agent.ask_for(endpoint)?;
            Ok(format!("{status}\n{text}"))
        }
        Form::Metrics => agent.get(endpoint),
        Form::Text => Ok(without_quoted_values(&agent.get(endpoint)?)),
        Form::Json => {
            let mut value: Value = agent.get_json(endpoint)?;
            withhold(&mut value);
            Ok(serde_json::to_string_pretty(&value)? + "\n")
        }
    }
}

/// Only its owner may read it: names of hosts and addresses are no secrets, but not for all.
fn write(file: &PathBuf, directory: &str, files: &[File], time: u64) -> Result<()> {
    if file.as_os_str() == "-" {
        return match archive(io::stdout().lock(), directory, files, time) {
            // A reader that goes away is no error.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
            written => written.context("cannot write the report"),
        };
    }
    let opened = OpenOptions::new().write(true).create_new(true).mode(0o600).open(file);
    let opened = opened.with_context(|| match file.exists() {
        true if !file.is_file() => {
            format!("{} is no file: choose another --file, or - for standard output", file.display())
        }
        true => format!("{} exists already: remove it, or choose another --file", file.display()),
        false => format!("cannot write {}: choose another --file", file.display()),
    })?;
    archive(opened, directory, files, time).with_context(|| format!("cannot write {}", file.display()))
}

fn archive(to: impl Write, directory: &str, files: &[File], time: u64) -> io::Result<()> {
    let mut archive = tar::Builder::new(GzEncoder::new(to, Compression::default()));
    for file in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(file.text.len() as u64);
        header.set_mode(0o600);
        header.set_mtime(time);
        archive.append_data(&mut header, format!("{directory}/{}", file.name), file.text.as_bytes())?;
    }
    archive.into_inner()?.finish()?.flush()
}
