//! Log lines on standard error, for people or as JSON.

use std::io::IsTerminal;

use anyhow::{Context, Result};
use tracing_subscriber::EnvFilter;

use crate::cli::LogFormat;

/// Crates that log each request that fails, each watch that has gone with its directory, and each
/// ClientHello that is wrong, with as much of it as its client likes. The code that made the
/// request or the watch logs it once and in words, and hellos are counted;
/// `--log kube_runtime=warn` brings these lines back.
const QUIET: &str = "kube_client=off,kube_runtime=off,notify=off,rustls=off";

pub(crate) fn start(filter: &str, format: LogFormat) -> Result<()> {
    let filter = quieted(filter)?;
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let lines = lines.with_ansi(std::io::stderr().is_terminal());
    match format {
        LogFormat::Text => lines.with_target(false).init(),
        LogFormat::Json => lines.json().flatten_event(true).init(),
    }
    Ok(())
}

fn quieted(filter: &str) -> Result<EnvFilter> {
    EnvFilter::try_new(format!("{QUIET},{filter}"))
        .with_context(|| format!("--log {filter:?} is no log filter"))
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    /// The lines of a client's wrong hello and of our own, at this filter.
    fn logged(filter: &str) -> String {
        let lines = Lines::default();
        let writer = lines.clone();
        let subscriber = tracing_subscriber::fmt().with_env_filter(quieted(filter).unwrap());
        let subscriber = subscriber.without_time().with_ansi(false).with_target(false);
        let subscriber = subscriber.with_writer(move || writer.clone()).finish();
        tracing::subscriber::with_default(subscriber, || {
            tracing::warn!(target: "rustls::msgs::handshake", "Illegal SNI hostname received");
            tracing::warn!(target: "portcullis_proxy", "clients are kept out");
        });
        String::from_utf8(lines.0.lock().unwrap().clone()).unwrap()
    }

    #[test]
    fn clients_write_no_lines_into_the_log() {
        assert_eq!(logged("info"), " WARN clients are kept out\n");
        assert_eq!(logged("info,rustls=warn").lines().count(), 2, "where it is asked for");
    }
}
