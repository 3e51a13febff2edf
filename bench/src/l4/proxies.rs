//! The proxies that are compared, each set up as its documentation recommends for one core, without
//! access log. A reference that copies is one of them.

mod copying;
mod haproxy;
mod nginx;
mod portcullis;

use std::path::Path;

use anyhow::{Result, bail};

use self::copying::Copying;
use self::haproxy::{Haproxy, Splicing};
use self::nginx::Nginx;
use super::site::Site;
use super::workload::Kind;
use crate::peers::{Portcullis, Running};

pub(super) trait Proxy {
    fn name(&self) -> &'static str;

    /// A loopback address of its own.
    fn address(&self) -> &'static str;

    /// `None` of what has none.
    fn version(&self) -> Result<Option<String>>;

    fn forwards(&self, kind: Kind) -> bool;

    /// Writes the site as its configuration.
    fn configure(&self, site: &Site, directory: &Path) -> Result<()>;

    /// Starts it on what was written there.
    fn start(&self, directory: &Path) -> Result<Running>;

    /// Forwards connections of every kind.
    fn is_whole(&self) -> bool {
        self.forwards(Kind::Connections) && self.forwards(Kind::OneName)
    }
}

/// Portcullis first; all others are compared with it.
pub(super) fn all(
    agent: Portcullis,
    earlier: Option<&Path>,
    chosen: &[String],
) -> Result<Vec<Box<dyn Proxy>>> {
    let earlier = earlier.map(|binary| agent.earlier(binary));
    let mut proxies: Vec<Box<dyn Proxy>> = vec![Box::new(agent), Box::new(Copying)];
    for name in chosen {
        match name.as_str() {
            "haproxy" => {
                proxies.push(Box::new(Haproxy(Splicing::Auto)));
                proxies.push(Box::new(Haproxy(Splicing::Off)));
            }
            "nginx" => proxies.push(Box::new(Nginx)),
            other => bail!("no peer is called {other:?}"),
        }
    }
    proxies.extend(earlier.map(|agent| -> Box<dyn Proxy> { Box::new(agent) }));
    Ok(proxies)
}
