//! A test cluster with an agent, and what all pages need of it.

use std::cell::Cell;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use portcullis_chart_tests::{Agent, existing};
use portcullis_test_cluster::{Cluster, Options, layout, wait};
use portcullis_testbed::{build, command, workspace};

/// For controllers, which look again after ten seconds, and pods on a machine that is busy.
pub(crate) const LIMIT: Duration = Duration::from_secs(120);

const CRDS: [&str; 2] = ["deploy/crds", "deploy/helm/portcullis/files"];
/// Addresses that this test, as the load balancer, may give.
const BALANCED: &str = "198.51.100.0/24";

/// Dropped in this order.
pub(crate) struct World {
    _agent: Agent,
    pub(crate) cluster: Cluster,
    /// Number of manifests applied so far.
    applied: Cell<usize>,
}

impl World {
    pub(crate) fn start(directory: Option<&PathBuf>, agent: Option<&Path>) -> Result<Self> {
        let built = build::debug_program();
        let agent = existing(agent.unwrap_or(&built)).context("run `cargo build -p portcullis`")?;
        let cluster = Cluster::obtain(layout(directory)?, &Options::default())?;
        for crds in CRDS {
            cluster.install_crds(&workspace::root().join(crds))?;
        }
        let _agent = Agent::start(&cluster, &agent, &["--load-balancer-addresses", BALANCED])?;
        Ok(Self { _agent, cluster, applied: Cell::new(0) })
    }

    pub(crate) fn logs(&self) -> PathBuf {
        self.cluster.layout().path("logs")
    }

    /// Makes namespaces anew: a run that was killed may have left some.
    pub(crate) fn make_namespaces(&self, names: &[&str]) -> Result<()> {
        self.remove_namespaces(names)?;
        names.iter().try_for_each(|name| self.cluster.kubectl(&["create", "namespace", name]).map(drop))
    }

    /// Controllers have to live still: they take their finalizers away.
    pub(crate) fn remove_namespaces(&self, names: &[&str]) -> Result<()> {
        let delete = ["delete", "--ignore-not-found", "--timeout=120s", "namespaces"];
        self.cluster.kubectl(&[&delete[..], names].concat()).map(drop)
    }

    /// Applies a file of a page, with what differs here put in the place of what it says.
    pub(crate) fn apply_shown(&self, page: &str, file: &str, changes: &[(&str, &str)]) -> Result<()> {
        let text = portcullis_task_tests::file(&format!("docs/tasks/{page}.md"), file)?;
        self.apply(&text, changes).with_context(|| format!("{file} of {page}"))
    }

    /// Applies a file of `tests/tasks/cluster`, likewise.
    pub(crate) fn apply_file(&self, file: &str, changes: &[(&str, &str)]) -> Result<()> {
        let text = fs::read_to_string(workspace::root().join("tests/tasks/cluster").join(file));
        self.apply(&text.with_context(|| file.to_owned())?, changes).with_context(|| file.to_owned())
    }

    fn apply(&self, text: &str, changes: &[(&str, &str)]) -> Result<()> {
        let mut text = text.to_owned();
        for (from, to) in changes {
            if !text.contains(from) {
                bail!("it does not say `{from}`");
            }
            text = text.replace(from, to);
        }
        self.applied.set(self.applied.get() + 1);
        let path = self.cluster.layout().path(&format!("applied-{}.yaml", self.applied.get()));
        fs::write(&path, text)?;
        self.cluster.kubectl(&["apply", "-f", &path.display().to_string()]).map(drop)
    }

    /// A field, or text of several, of an object or a list of objects.
    pub(crate) fn field(&self, namespace: &str, object: &[&str], path: &str) -> Result<String> {
        let output = format!("jsonpath={path}");
        let get = ["get", "--namespace", namespace, "-o", &output];
        self.cluster.kubectl(&[&get[..], object].concat())
    }

    /// Waits until a field is as wanted, and says what it was if it never is.
    pub(crate) fn await_field(
        &self,
        namespace: &str,
        object: &[&str],
        path: &str,
        wanted: impl Fn(&str) -> bool,
    ) -> Result<String> {
        let what = format!("{} {path}", object.join(" "));
        await_answer(&what, || self.field(namespace, object, path), wanted)
    }

    /// The address of a Gateway that is programmed.
    pub(crate) fn address(&self, namespace: &str, gateway: &str) -> Result<String> {
        let object = ["gateway", gateway];
        let programmed = "{.status.conditions[?(@.type=='Programmed')].status}";
        self.await_field(namespace, &object, programmed, |found| found == "True")?;
        self.field(namespace, &object, "{.status.addresses[0].value}")
    }

    /// Asks with curl until the output is as wanted.
    pub(crate) fn await_curl(&self, arguments: &[&str], wanted: impl Fn(&str) -> bool) -> Result<String> {
        await_answer("an answer", || self.curl(arguments), wanted)
    }

    pub(crate) fn curl(&self, arguments: &[&str]) -> Result<String> {
        command::output(self.cluster.command("curl").args(["-sS", "--max-time", "5"]).args(arguments))
    }

    /// A program of ours, on the node, with the API server's address and an administrator's rights.
    pub(crate) fn command(&self, program: &Path) -> Command {
        self.cluster.command(&program.display().to_string())
    }

    pub(crate) fn kubeconfig(&self) -> String {
        self.cluster.layout().kubeconfig("admin").display().to_string()
    }
}

/// Asks until the answer is as wanted, and says what it was if it never is.
pub(crate) fn await_answer(
    what: &str,
    mut ask: impl FnMut() -> Result<String>,
    wanted: impl Fn(&str) -> bool,
) -> Result<String> {
    let mut last = Ok(String::new());
    let is_there = wait::until_true(what, LIMIT, || {
        last = ask();
        last.as_ref().is_ok_and(|found| wanted(found))
    });
    match (is_there, last) {
        (Ok(()), last) => last,
        (Err(error), Ok(found)) => Err(error.context(format!("it is {found:?}"))),
        (Err(error), Err(last)) => Err(error.context(format!("{last:#}"))),
    }
}
