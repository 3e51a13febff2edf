//! Portcullis, which serves the site as Gateway API objects.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::Result;
use portcullis_testbed::build;
use portcullis_testbed::{Datapath, Launch, pin_directory, remove_leftovers};

use super::{Peer, Running, version};
use crate::backend;
use crate::manifests::Manifests;
use crate::process::PROXY_CPU;
use crate::site::Site;

/// Of every agent. One that serves on the machine is no reason to measure nothing.
const ARGUMENTS: [&str; 5] = ["--cores", "1", "--log", "warn", "--beside-others"];

#[derive(Clone)]
pub(crate) struct Portcullis {
    name: &'static str,
    address: &'static str,
    /// Begin of its pins' name; agents that run at the same time have different ones.
    purpose: &'static str,
    pub(crate) binary: PathBuf,
    pub(crate) datapath: Datapath,
    /// Further arguments.
    arguments: Vec<OsString>,
}

/// The agent to measure.
#[derive(clap::Args)]
pub(crate) struct Build {
    /// An agent that is built already
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
    /// Use ordinary sockets instead of the kernel programs
    #[arg(long)]
    userspace: bool,
}

impl Build {
    /// The agent's program.
    pub(crate) fn binary(&self) -> Result<PathBuf> {
        match &self.binary {
            Some(binary) => Ok(binary.clone()),
            None => build::release(),
        }
    }

    /// Installs what benchmarks need and builds the agent, unless there is one already.
    pub(crate) fn portcullis(&self) -> Result<Portcullis> {
        let datapath = if self.userspace { Datapath::Userspace } else { Datapath::Auto };
        let binary = match &self.binary {
            Some(binary) => binary.clone(),
            None => {
                crate::setup()?;
                build::release()?
            }
        };
        Ok(Portcullis::new(binary, datapath))
    }
}

impl Peer for Portcullis {
    fn name(&self) -> &'static str {
        self.name
    }

    fn address(&self) -> &'static str {
        self.address
    }

    fn version(&self) -> Result<String> {
        version(&self.binary.display().to_string(), "--version")
    }

    fn configure(&self, site: &Site, directory: &Path) -> Result<()> {
        let backend = SocketAddr::new(backend::ADDRESS.parse()?, backend::PORT);
        let manifests = Manifests { address: self.address().parse()?, backend };
        manifests.write(site, &config_directory(directory))
    }

    fn start(&self, directory: &Path) -> Result<Running> {
        remove_leftovers(self.purpose)?;
        Ok(Running::Agent(Box::new(self.launch(directory).spawn()?)))
    }
}

impl Portcullis {
    pub(crate) fn new(binary: PathBuf, datapath: Datapath) -> Self {
        Self {
            name: "Portcullis",
            address: "127.0.0.91",
            purpose: "bench",
            binary,
            datapath,
            arguments: vec![],
        }
    }

    /// With further arguments.
    pub(crate) fn with(self, arguments: &[&str]) -> Self {
        Self { arguments: arguments.iter().map(Into::into).collect(), ..self }
    }

    /// Another build, to be measured beside this one.
    pub(crate) fn earlier(&self, binary: &Path) -> Self {
        Self {
            name: "Portcullis, earlier",
            address: "127.0.0.95",
            purpose: "bench-earlier",
            binary: binary.to_owned(),
            ..self.clone()
        }
    }

    pub(crate) fn launch(&self, directory: &Path) -> Launch {
        Launch {
            binary: self.binary.clone(),
            config: config_directory(directory),
            scratch: directory.to_owned(),
            pins: pin_directory(self.purpose),
            datapath: self.datapath,
            interface: "none".to_owned(),
            arguments: [&ARGUMENTS.map(Into::into), &*self.arguments].concat(),
            through: ["taskset", "--cpu-list", PROXY_CPU].map(Into::into).to_vec(),
        }
    }
}

/// Directory of the manifests, among an agent's other files.
pub(crate) fn config_directory(directory: &Path) -> PathBuf {
    directory.join("config")
}
