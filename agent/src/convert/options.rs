//! The Gateway that everything is written for, as the command line names it. An API server takes
//! what these types hold.

use std::num::NonZeroU16;

use anyhow::{Context, Result};

use super::shape::is_host;

#[derive(Debug)]
pub(super) struct Options {
    pub gateway: GatewayName,
    pub http_port: NonZeroU16,
    pub https_port: NonZeroU16,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct GatewayName {
    pub namespace: String,
    pub name: String,
}

impl Options {
    /// # Errors
    /// One of them is not what an API server takes; the error names the option.
    pub(super) fn parse(gateway: &str, http_port: u16, https_port: u16) -> Result<Self> {
        let gateway = GatewayName::parse(gateway).with_context(|| {
            format!(
                "--gateway {gateway:?}: NAMESPACE/NAME is wanted, or NAME, in lower-case letters, digits and -"
            )
        })?;
        let port = |option: &str, port| {
            NonZeroU16::new(port)
                .with_context(|| format!("{option} {port}: a port from 1 to 65535 is wanted"))
        };
        let (http_port, https_port) = (port("--http-port", http_port)?, port("--https-port", https_port)?);
        Ok(Self { gateway, http_port, https_port })
    }
}

impl GatewayName {
    /// A name alone is of the namespace `default`.
    fn parse(text: &str) -> Option<Self> {
        let (namespace, name) = text.split_once('/').unwrap_or(("default", text));
        let is_name = |text: &str| is_host(text) && !text.starts_with('*');
        (is_name(namespace) && !namespace.contains('.') && is_name(name))
            .then(|| Self { namespace: namespace.to_owned(), name: name.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_ports_are_those_of_an_api_server() {
        let gateway = |text: &str| GatewayName::parse(text).map(|it| (it.namespace, it.name));
        let of = |namespace: &str, name: &str| Some((namespace.to_owned(), name.to_owned()));
        assert_eq!(gateway("infra/web"), of("infra", "web"));
        assert_eq!(gateway("web.v2"), of("default", "web.v2"));
        for wrong in ["", "/", "a/", "/b", "A B/c", "a/B", "a.b/c", "a/b/c", "a/*.b", "a/-b"] {
            assert_eq!(gateway(wrong), None, "{wrong}");
        }
        let error = |options: Result<Options>| options.map_err(|error| error.to_string()).err();
        let said = error(Options::parse("web", 0, 443));
        assert_eq!(said.as_deref(), Some("--http-port 0: a port from 1 to 65535 is wanted"));
        assert!(error(Options::parse("web", 80, 0)).is_some_and(|it| it.starts_with("--https-port 0")));
        assert_eq!(error(Options::parse("web", 80, 443)), None);
    }
}
