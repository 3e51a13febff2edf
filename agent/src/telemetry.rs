//! Log lines on standard error, for people or as JSON; the latest of them are kept.

use std::io::IsTerminal;

use anyhow::Result;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, fmt};

use crate::cli::{LogFilter, LogFormat};
use crate::recent_log;

/// Crates that log each request that fails, each watch that has gone with its directory, and each
/// ClientHello that is wrong, with as much of it as its client likes. The code that made the
/// request or the watch logs it once and in words, and hellos are counted;
/// `--log kube_runtime=warn` brings these lines back.
const QUIET: &str = "kube_client=off,kube_runtime=off,notify=off,rustls=off";

/// The level of what a filter has no other one for, and of the lines that are kept.
const DEFAULT: &str = "info";

pub(crate) fn start(filter: &LogFilter, format: LogFormat) -> Result<()> {
    let lines = fmt::layer().with_writer(std::io::stderr).with_ansi(std::io::stderr().is_terminal());
    let lines = match format {
        LogFormat::Text => lines.with_target(false).boxed(),
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
    };
    let recent = fmt::layer().with_writer(recent_log::writer()).with_ansi(false).with_target(false);
    let lines = lines.with_filter(quieted(&filter.to_string())?);
    tracing_subscriber::registry().with(lines).with(recent.with_filter(quieted(DEFAULT)?)).init();
    Ok(())
}

fn quieted(filter: &str) -> Result<EnvFilter> {
    Ok(EnvFilter::try_new(format!("{DEFAULT},{QUIET},{filter}"))?)
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

    #[test]
    fn what_is_asked_of_a_part_silences_no_other() {
        for filter in ["", "portcullis_control=trace", "rustls=off"] {
            assert_eq!(logged(filter), " WARN clients are kept out\n", "{filter}");
        }
        assert_eq!(logged("error"), "");
        assert_eq!(logged("off,rustls=warn").lines().count(), 1);
    }
}
