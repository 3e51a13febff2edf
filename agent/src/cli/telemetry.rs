//! The options of `portcullis run` about traces, and about where they and the access log go.

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use http::Uri;
use portcullis_model::Share;
use portcullis_proxy::{Collector, LogFile, LogOutput, Otlp, Parents, Traces};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;

/// Parts of a percentage: thousandths.
const PARTS: u32 = 1000;

const ENDPOINT: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";

#[derive(Args)]
pub(crate) struct TelemetryArgs {
    /// Collector of traces, and of access logs if they are to go there, by OTLP over HTTP
    /// (protobuf): https://collector.example:4318, for instance [default: none]
    #[arg(long, value_name = "URL", value_parser = endpoint, env = ENDPOINT)]
    pub otlp_endpoint: Option<Endpoint>,
    /// File of header fields for the collector, each in a line as "name: value"; read for each
    /// message
    #[arg(long, value_name = "FILE", requires = "otlp_endpoint", env = "PORTCULLIS_OTLP_HEADERS_FILE")]
    pub otlp_headers_file: Option<PathBuf>,
    /// Authorities (PEM) of the collector's certificate [default: those of the system]
    #[arg(long, value_name = "FILE", requires = "otlp_endpoint", env = "PORTCULLIS_OTLP_CA")]
    pub otlp_ca: Option<PathBuf>,
    /// Percentage of requests that begin a trace which is recorded, where no TrafficPolicy says
    /// another: 0.1, for instance
    #[arg(long, value_name = "PERCENT", default_value = "1", value_parser = percentage, env = "PORTCULLIS_TRACE_SAMPLING")]
    pub trace_sampling: Percentage,
    /// The largest percentage that others can ask for: a TrafficPolicy, or the flag "sampled" of
    /// traces that go on here; with 0, none of those is recorded
    #[arg(long, value_name = "PERCENT", default_value = "100", value_parser = percentage, env = "PORTCULLIS_TRACE_SAMPLING_LIMIT")]
    pub trace_sampling_limit: Percentage,
    /// Spans a second that are recorded at most, of which each core has its part, rounded up;
    /// requests beyond that are not recorded, and counted
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=1 << 20), env = "PORTCULLIS_TRACE_SPANS")]
    pub trace_spans: u32,
    /// The senders whose traces go on here, and are recorded if theirs are
    #[arg(long, value_name = "WHOSE", value_enum, default_value_t, env = "PORTCULLIS_TRACE_PARENTS")]
    pub trace_parents: ParentsChoice,
    /// Destination of access logs: "stdout", "otlp" for the collector, or the path of a file, which
    /// is rotated
    #[arg(long, value_name = "WHERE", default_value = "stdout", value_parser = log_destination, env = "PORTCULLIS_ACCESS_LOG")]
    pub access_log: LogDestination,
    /// Size of that file, and of each old one, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1 << 20), env = "PORTCULLIS_ACCESS_LOG_SIZE")]
    pub access_log_size: u32,
    /// Old files that are kept beside it: FILE.1 is the newest of them
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(0..=1000), env = "PORTCULLIS_ACCESS_LOG_FILES")]
    pub access_log_files: u32,
}

/// A share of a hundred, and how it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Percentage {
    share: Share,
    text: String,
}

/// `None` if it is empty: OpenTelemetry has an empty variable be one that is not set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Endpoint(Option<Uri>);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LogDestination {
    Stdout,
    Otlp,
    File(PathBuf),
}

#[derive(Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum ParentsChoice {
    /// Proxies in front that are believed about clients
    #[default]
    Trusted,
    /// All: clients choose what is recorded, up to --trace-spans
    Any,
    /// None: each request begins a trace
    None,
}

// === impl TelemetryArgs ===

impl TelemetryArgs {
    fn collector(&self) -> Option<&Uri> {
        self.otlp_endpoint.as_ref()?.0.as_ref()
    }

    /// # Errors
    /// When it is to be a collector's, and there is none; or a file's, and it has no directory.
    pub(crate) fn log_output(&self) -> Result<LogOutput> {
        Ok(match &self.access_log {
            LogDestination::Stdout => LogOutput::Stdout,
            LogDestination::Otlp if self.collector().is_none() => {
                bail!("--access-log otlp: name the collector, by --otlp-endpoint")
            }
            LogDestination::Otlp => LogOutput::Collector,
            LogDestination::File(path) => {
                if let Some(directory) = path.parent().filter(|directory| !directory.is_dir()) {
                    let (path, directory) = (path.display(), directory.display());
                    bail!("--access-log {path}: there is no directory {directory}: make the directory");
                }
                LogOutput::Rotated(LogFile {
                    path: path.clone(),
                    bytes: u64::from(self.access_log_size) << 20,
                    old: self.access_log_files,
                })
            }
        })
    }

    /// Variables by which pods of mode Dedicated send the same to the collector, unless there is a
    /// reason for which they cannot.
    pub(crate) fn of_pods(&self) -> Vec<(&'static str, String)> {
        let Some(collector) = self.collector() else { return Vec::new() };
        if self.kept_from_pods().is_some() {
            return Vec::new();
        }
        let parents = self.trace_parents.to_possible_value();
        let mut variables = vec![
            (ENDPOINT, collector.to_string()),
            ("PORTCULLIS_TRACE_SAMPLING", self.trace_sampling.text.clone()),
            ("PORTCULLIS_TRACE_SAMPLING_LIMIT", self.trace_sampling_limit.text.clone()),
            ("PORTCULLIS_TRACE_SPANS", self.trace_spans.to_string()),
            ("PORTCULLIS_TRACE_PARENTS", parents.map_or_else(String::new, |it| it.get_name().to_owned())),
        ];
        if self.access_log == LogDestination::Otlp {
            variables.push(("PORTCULLIS_ACCESS_LOG", "otlp".to_owned()));
        }
        variables
    }

    /// The reason for which pods do not reach the collector, if there is one of both.
    pub(crate) fn kept_from_pods(&self) -> Option<String> {
        let collector = self.collector()?;
        let files = [("--otlp-headers-file", &self.otlp_headers_file), ("--otlp-ca", &self.otlp_ca)];
        let given: Vec<_> =
            files.into_iter().filter(|(_, file)| file.is_some()).map(|(option, _)| option).collect();
        if !given.is_empty() {
            return Some(format!("they do not have the file of {}", given.join(" and ")));
        }
        is_loopback(collector).then(|| "a loopback address leads a pod to itself".to_owned())
    }

    /// `None` if there is no collector. `node` is the name of this one, in a cluster.
    ///
    /// # Errors
    /// When a file cannot be read that is needed for it.
    pub(crate) fn otlp(&self, node: Option<&str>) -> Result<Option<Otlp>> {
        let Some(endpoint) = self.collector().cloned() else { return Ok(None) };
        if let Some(file) = &self.otlp_headers_file {
            ordinary("--otlp-headers-file", file)?;
        }
        if let Some(file) = &self.otlp_ca {
            let text = ordinary("--otlp-ca", file)?;
            if !CertificateDer::pem_slice_iter(&text).any(|certificate| certificate.is_ok()) {
                bail!(
                    "--otlp-ca: {} has no certificate: write the authorities there as PEM, or leave the option out \
                     for those of the system",
                    file.display()
                );
            }
        }
        let mut resource = vec![
            ("service.name".to_owned(), "portcullis".to_owned()),
            ("service.version".to_owned(), env!("CARGO_PKG_VERSION").to_owned()),
            ("host.name".to_owned(), rustix::system::uname().nodename().to_string_lossy().into_owned()),
        ];
        resource.extend(node.map(|node| ("k8s.node.name".to_owned(), node.to_owned())));
        Ok(Some(Otlp {
            collector: Collector {
                endpoint,
                headers: self.otlp_headers_file.clone(),
                authorities: self.otlp_ca.clone(),
                resource,
            },
            traces: Some(Traces {
                sampling: self.trace_sampling.share,
                most: self.trace_sampling_limit.share,
                spans: self.trace_spans,
                parents: match self.trace_parents {
                    ParentsChoice::Trusted => Parents::Trusted,
                    ParentsChoice::Any => Parents::Any,
                    ParentsChoice::None => Parents::None,
                },
            }),
        }))
    }
}

/// The bytes of a file. Any other, a pipe for instance, could have the agent wait for ever.
fn ordinary(option: &str, file: &Path) -> Result<Vec<u8>> {
    let cannot = || format!("{option}: cannot read {}", file.display());
    if !fs::metadata(file).with_context(cannot)?.is_file() {
        bail!("{option}: {} is no ordinary file: it is read again and again, so write one", file.display());
    }
    fs::read(file).with_context(cannot)
}

fn log_destination(text: &str) -> Result<LogDestination> {
    match text {
        "stdout" => Ok(LogDestination::Stdout),
        "otlp" => Ok(LogDestination::Otlp),
        path if path.contains('/') => Ok(LogDestination::File(path.into())),
        _ => bail!(
            "write stdout, otlp or the path of a file, with its directory: /var/log/portcullis/access.log"
        ),
    }
}

fn endpoint(text: &str) -> Result<Endpoint> {
    if text.is_empty() {
        return Ok(Endpoint(None));
    }
    let uri: Uri = text.parse().context("write a URL, such as http://collector.example:4318")?;
    let is_http = matches!(uri.scheme_str(), Some("http" | "https"));
    if !is_http || uri.host().is_none_or(str::is_empty) {
        bail!(
            "write http:// or https://, a host and its port for OTLP over HTTP: http://collector.example:4318"
        );
    }
    if uri.authority().is_some_and(|authority| authority.as_str().contains('@')) {
        bail!("a password does not belong here: write it into --otlp-headers-file");
    }
    if uri.host().is_some_and(|host| host.contains(['$', '(', ')'])) {
        bail!("its host is a variable that has no value here: see that it is set");
    }
    if has_no_port(&uri) {
        bail!("its port is no number from 1 to 65535: that of OTLP over HTTP is 4318, unless another is set");
    }
    if uri.query().is_some() {
        bail!("a query is not sent along: write credentials as fields into --otlp-headers-file");
    }
    Ok(Endpoint(Some(uri)))
}

fn is_loopback(uri: &Uri) -> bool {
    let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
    host.parse::<IpAddr>().map_or(host.eq_ignore_ascii_case("localhost"), |address| address.is_loopback())
}

/// True if there is a colon, and no port behind it.
fn has_no_port(uri: &Uri) -> bool {
    let authority = uri.authority().map_or("", |authority| authority.as_str());
    let behind = authority.rsplit_once(']').map_or(authority, |(_, behind)| behind);
    behind.contains(':') && uri.port_u16().is_none_or(|port| port == 0)
}

fn percentage(text: &str) -> Result<Percentage> {
    Ok(Percentage { share: share(text)?, text: text.to_owned() })
}

/// Of a percentage, which may have three decimal places.
fn share(text: &str) -> Result<Share> {
    const FORM: &str = "write a percentage from 0 to 100, with three decimal places at most";
    let (whole, places) = text.split_once('.').unwrap_or((text, ""));
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || whole.len() > 3 || places.len() > 3 || !is_number(whole) || !is_number(places) {
        bail!(FORM);
    }
    let parts = whole.parse::<u32>()? * PARTS + format!("{places:0<3}").parse::<u32>()?;
    Share::new(parts, 100 * PARTS).context(FORM)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[test]
    fn percentages_are_shares() {
        for (text, parts) in [
            ("1", Some(1000)),
            ("0", Some(0)),
            ("100", Some(100_000)),
            ("0.1", Some(100)),
            ("12.345", Some(12_345)),
            ("100.001", None),
            ("1000", None),
            ("0.0001", None),
            ("-1", None),
            (".5", None),
            ("", None),
            ("1e1", None),
        ] {
            assert_eq!(share(text).ok(), parts.map(|parts| Share::new(parts, 100_000).unwrap()), "{text}");
        }
    }

    #[derive(clap::Parser)]
    struct Run {
        #[command(flatten)]
        telemetry: TelemetryArgs,
    }

    fn given(options: &[&str]) -> TelemetryArgs {
        let mut begin = vec!["run"];
        if !options.contains(&"--otlp-endpoint") {
            begin.extend(["--otlp-endpoint", "http://127.0.0.1:4318"]);
        }
        let options = [&begin, options].concat();
        Run::try_parse_from(options).ok().unwrap().telemetry
    }

    #[test]
    fn files_for_the_collector_are_looked_at_before_the_start() {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().join("file");
        let place = place.to_str().unwrap();
        let problem = |option, file| given(&[option, file]).otlp(None).unwrap_err().to_string();
        for option in ["--otlp-headers-file", "--otlp-ca"] {
            assert_eq!(problem(option, place), format!("{option}: cannot read {place}"));
            assert!(problem(option, "/dev/null").contains("/dev/null is no ordinary file"));
        }
        fs::write(place, "no certificate").unwrap();
        assert!(problem("--otlp-ca", place).contains("has no certificate"));
        assert!(given(&["--otlp-headers-file", place]).otlp(None).is_ok());
    }

    #[test]
    fn pods_send_what_agents_send_unless_it_takes_files() {
        let options = [
            "--trace-sampling",
            "0.1",
            "--trace-parents",
            "any",
            "--access-log",
            "otlp",
            "--trace-spans",
            "7",
        ];
        let collector = ["--otlp-endpoint", "http://collector.example:4318"];
        let mut variables = given(&[&collector[..], &options].concat()).of_pods();
        variables.sort_unstable();
        let expected = [
            (ENDPOINT, "http://collector.example:4318/"),
            ("PORTCULLIS_ACCESS_LOG", "otlp"),
            ("PORTCULLIS_TRACE_PARENTS", "any"),
            ("PORTCULLIS_TRACE_SAMPLING", "0.1"),
            ("PORTCULLIS_TRACE_SAMPLING_LIMIT", "100"),
            ("PORTCULLIS_TRACE_SPANS", "7"),
        ];
        assert_eq!(variables, expected.map(|(name, value)| (name, value.to_owned())));
        let files = ["--otlp-headers-file", "/fields", "--otlp-ca", "/ca.pem"];
        for (options, reason) in [
            (&[&collector[..], &files].concat()[..], "the file of --otlp-headers-file and --otlp-ca"),
            (&["--otlp-endpoint", "http://localhost:4318"], "a loopback address"),
            (&["--otlp-endpoint", "http://[::1]:4318"], "a loopback address"),
        ] {
            assert_eq!(given(options).of_pods(), []);
            let told = given(options).kept_from_pods().unwrap();
            assert!(told.contains(reason), "{told}");
        }
    }

    #[test]
    fn the_access_log_needs_its_directory() {
        let directory = tempfile::tempdir().unwrap();
        let [there, missing] =
            ["access.log", "none/access.log"].map(|name| format!("{}/{name}", directory.path().display()));
        assert!(given(&["--access-log", &there]).log_output().is_ok());
        let problem = given(&["--access-log", &missing]).log_output().unwrap_err().to_string();
        assert!(problem.starts_with(&format!("--access-log {missing}: there is no directory ")), "{problem}");
        assert!(problem.ends_with(": make the directory"), "{problem}");
    }

    #[test]
    fn endpoints_are_urls_without_secrets() {
        for (text, is_one) in [
            ("http://127.0.0.1:4318", true),
            ("https://collector.example/otlp", true),
            ("collector.example:4318", false),
            ("grpc://collector.example", false),
            ("http://user:secret@collector.example", false),
            ("http://:4318", false),
            ("http://[::1]", true),
            ("http://[::1]:4318/", true),
            ("http://[::1]:99999", false),
            ("http://127.0.0.1:99999/", false),
            ("http://127.0.0.1:0", false),
            ("http://127.0.0.1:", false),
            ("http://$(HOST_IP):4318", false),
            ("https://collector.example/otlp?api_key=secret", false),
        ] {
            assert_eq!(endpoint(text).is_ok_and(|it| it.0.is_some()), is_one, "{text}");
        }
        assert_eq!(endpoint("").unwrap(), Endpoint(None));
    }
}
