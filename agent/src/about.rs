//! A program and its machine, for bug reports: version, kernel, options. No secret is an option of
//! an agent; pods of its own may have some, so of those only the names of fields are told.

use std::collections::BTreeMap;
use std::ffi::OsString;

use clap::parser::ValueSource;
use clap::{ArgMatches, CommandFactory};
use serde::Serialize;
use serde_json::Value;

use crate::cli::Cli;

#[derive(Serialize)]
pub(crate) struct About {
    version: &'static str,
    kernel: String,
    architecture: String,
    /// Of the file system that it sees: in a container, the image.
    system: Option<String>,
    processors: Option<usize>,
    memory: Option<String>,
    /// Those of `run` that are not as by default.
    options: BTreeMap<String, GivenOption>,
}

#[derive(Serialize)]
struct GivenOption {
    values: Vec<String>,
    from: &'static str,
}

/// Option whose value is a part of a pod, which may have environment variables.
const POD: &str = "dedicated-pod";

pub(crate) fn about() -> About {
    let kernel = rustix::system::uname();
    let text = |text: &std::ffi::CStr| text.to_string_lossy().into_owned();
    About {
        version: env!("CARGO_PKG_VERSION"),
        kernel: format!("{} {} {}", text(kernel.sysname()), text(kernel.release()), text(kernel.version())),
        architecture: text(kernel.machine()),
        system: field("/etc/os-release", "PRETTY_NAME=").map(|name| name.trim_matches('"').to_owned()),
        processors: std::thread::available_parallelism().ok().map(Into::into),
        memory: field("/proc/meminfo", "MemTotal:"),
        options: options(std::env::args_os()),
    }
}

fn field(file: &str, name: &str) -> Option<String> {
    let text = std::fs::read_to_string(file).ok()?;
    let value = text.lines().find_map(|line| line.strip_prefix(name))?;
    Some(value.trim().to_owned())
}

fn options(arguments: impl Iterator<Item = OsString>) -> BTreeMap<String, GivenOption> {
    let mut command = Cli::command();
    let Ok(matches) = command.try_get_matches_from_mut(arguments) else { return BTreeMap::new() };
    let Some(("run", matches)) = matches.subcommand() else { return BTreeMap::new() };
    let run = command.find_subcommand("run").into_iter().flat_map(|run| run.get_arguments());
    run.filter_map(|argument| {
        Some((argument.get_long()?.to_owned(), given(argument.get_id().as_str(), matches)?))
    })
    .map(|(name, option)| {
        let option = if name == POD { names_of_fields(option) } else { option };
        (name, option)
    })
    .collect()
}

/// `None` if the option is as by default.
fn given(id: &str, matches: &ArgMatches) -> Option<GivenOption> {
    let from = match matches.value_source(id)? {
        ValueSource::CommandLine => "command line",
        ValueSource::EnvVariable => "environment",
        _ => return None,
    };
    let values = matches.get_raw(id).into_iter().flatten();
    Some(GivenOption { values: values.map(|value| value.to_string_lossy().into_owned()).collect(), from })
}

fn names_of_fields(option: GivenOption) -> GivenOption {
    let names = option.values.iter().flat_map(|value| match serde_json::from_str(value) {
        Ok(Value::Object(fields)) => fields.into_iter().map(|(name, _)| name).collect(),
        _ => Vec::new(),
    });
    GivenOption { values: names.collect(), ..option }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_those_that_were_given() {
        let pod = r#"{"tolerations": [], "containers": [{"env": [{"value": "s3cret"}]}]}"#;
        let arguments = [
            "portcullis",
            "run",
            "--config-dir",
            "/etc/x",
            "--beside-others",
            "--cores",
            "2",
            "--dedicated-pod",
            pod,
        ];
        let options = options(arguments.map(OsString::from).into_iter());
        let values = |name: &str| options[name].values.clone();
        assert_eq!(values("config-dir"), ["/etc/x"]);
        assert_eq!(values("cores"), ["2"]);
        assert_eq!(values("dedicated-pod"), ["containers", "tolerations"]);
        assert!(options.contains_key("beside-others") && !options.contains_key("drain-timeout"));
        assert_eq!(options["cores"].from, "command line");
    }
}
