//! `cargo xtask bench delegation`: 1,000 child routes on 10 parents, under load. Edits a child, a
//! parent's filter, and the label of a namespace that the parents select, which moves a tenth of
//! all children; measures for each how long it takes until a client sees it. No request of the
//! load, which a child serves, may fail.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::change::{Connection, put, visible};
use super::load::{Background, Seen};
use super::peers::{self, Build, Peer, config_directory};
use super::site::{ONE, Site, Size};
use super::workload::Load;
use super::{backend, document, report};

/// Namespaces of children; each has the same share of every parent's.
const TEAMS: usize = 10;
/// Label of the namespaces that parents select.
const SELECTED: &str = "family";

#[derive(clap::Args)]
pub(super) struct Args {
    /// Number of edits of each kind
    #[arg(long, default_value_t = 200)]
    edits: usize,
    #[arg(long, default_value_t = 10)]
    parents: usize,
    /// Number of children of every parent
    #[arg(long, default_value_t = 100)]
    children: usize,
    #[command(flatten)]
    build: Build,
    /// Put the result into docs/performance.md
    #[arg(long)]
    write: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Edit {
    Child,
    Parent,
    Leave,
    Return,
}

const KINDS: [(Edit, &str); 4] = [
    (Edit::Child, "a header that one child sets"),
    (Edit::Parent, "a header that one parent sets for its children"),
    (Edit::Leave, "a label that parents select by: a tenth of all children leaves"),
    (Edit::Return, "the same: they come back"),
];

pub(super) fn run(args: &Args) -> Result<()> {
    ensure!(args.parents > 1, "the first parent is for the load: give two at least");
    let scratch = super::scratch()?;
    let peer = args.build.portcullis()?;
    let _backend = backend::start(scratch.path())?;
    let site = Site::create(Size::Small, &scratch.path().join("site"))?;
    let directory = scratch.path().join("agent");
    let _running = peers::serve(&peer, &site, &directory)?;
    let families = Families { config: config_directory(&directory), args, address: peer.address() };
    families.create()?;
    let (times, seen) = families.edit_under_load(scratch.path())?;
    let text = families.report(&times, &seen);
    println!("{text}");
    if args.write {
        document::replace("delegation", &text)?;
    }
    ensure!(seen.failed == 0 && seen.requests > 0, "requests of the load failed");
    Ok(())
}

struct Families<'a> {
    config: PathBuf,
    args: &'a Args,
    address: &'a str,
}

impl Families<'_> {
    /// Namespaces and Services, parents, children; then waits until the last one is served.
    fn create(&self) -> Result<()> {
        for team in 0..TEAMS {
            self.put(
                &format!("team-{team}"),
                &(labels(&team_name(team), SELECTED) + &service(&team_name(team))),
            )?;
        }
        self.put(
            "root",
            &(labels("root", SELECTED) + &service("root") + &child("root", "root", &parent_name(0), "/", 0)),
        )?;
        for parent in 0..self.args.parents {
            self.put(&parent_name(parent), &parent_route(parent, 0))?;
            for number in 0..self.args.children {
                self.put(&format!("child-{parent}-{number}"), &self.child(parent, number, 0))?;
            }
        }
        let mut connection = Connection::open(self.address)?;
        for (parent, number) in [(0, 0), (self.args.parents - 1, self.args.children - 1)] {
            visible(|| Ok(self.ask(&mut connection, parent, number)?.contains("x-child: 0\r\n")))?;
        }
        Ok(())
    }

    fn edit_under_load(&self, scratch: &Path) -> Result<(Vec<(Edit, Duration)>, Seen)> {
        let load = Background::start(Load::HTTP1, self.address, scratch)?;
        let mut connection = Connection::open(self.address)?;
        let mut times = Vec::new();
        for number in 1..=self.args.edits {
            for (edit, what) in KINDS {
                let took = self.edit(edit, number, &mut connection);
                times.push((edit, took.with_context(|| format!("edit {number}, {what}"))?));
            }
        }
        Ok((times, load.finish()?))
    }

    /// From the file being in place until a client sees it.
    fn edit(&self, edit: Edit, number: usize, connection: &mut Connection) -> Result<Duration> {
        // A step that is no divisor: neighbours in time are far apart.
        let (parent, child) = (number % self.args.parents, number * 37 % self.args.children);
        match edit {
            Edit::Child => {
                self.put(&format!("child-{parent}-{child}"), &self.child(parent, child, number))?;
                let expected = format!("x-child: {number}\r\n");
                visible(|| Ok(self.ask(connection, parent, child)?.contains(&expected)))
            }
            Edit::Parent => {
                self.put(&parent_name(parent), &parent_route(parent, number))?;
                let expected = format!("x-parent: {number}\r\n");
                visible(|| Ok(self.ask(connection, parent, child)?.contains(&expected)))
            }
            Edit::Leave => self.label(number, "none", connection),
            Edit::Return => self.label(number, SELECTED, connection),
        }
    }

    /// Seen at the last parent: the first one's host answers everything, for the load.
    fn label(&self, number: usize, part: &str, connection: &mut Connection) -> Result<Duration> {
        let team = number % TEAMS;
        let text = labels(&team_name(team), part) + &service(&team_name(team));
        self.put(&format!("team-{team}"), &text)?;
        let expected = if part == SELECTED { " 200 " } else { " 404 " };
        visible(|| Ok(self.ask(connection, self.args.parents - 1, team)?.contains(expected)))
    }

    fn ask(&self, connection: &mut Connection, parent: usize, child: usize) -> Result<String> {
        connection.ask(&host(parent), &format!("/c{child}"))
    }

    fn child(&self, parent: usize, number: usize, version: usize) -> String {
        let (name, path) = (format!("c-{parent}-{number}"), format!("/c{number}"));
        child(&team_name(number % TEAMS), &name, &parent_name(parent), &path, version)
    }

    fn put(&self, name: &str, text: &str) -> Result<()> {
        put(&self.config, &format!("{name}.yaml"), text)
    }

    fn report(&self, times: &[(Edit, Duration)], seen: &Seen) -> String {
        let mut text = format!(
            "{}\n\n{} children on {} parents, {} edits of each kind under load: {} requests of a child, {} failed, p99 {:.1} ms.\n\n\
             | edit | until visible, median ms | p99 ms | max ms |\n|---|---|---|---|\n",
            report::machine(),
            self.args.parents * self.args.children,
            self.args.parents,
            self.args.edits,
            seen.requests,
            seen.failed,
            seen.p99.as_secs_f64() * 1e3
        );
        for (edit, what) in KINDS {
            let mut times: Vec<_> = times
                .iter()
                .filter(|(kind, _)| *kind == edit)
                .map(|(_, time)| time.as_secs_f64() * 1e3)
                .collect();
            times.sort_by(f64::total_cmp);
            let at = |part: usize| times.get((times.len() * part / 100).min(times.len().saturating_sub(1)));
            let at = |part| at(part).copied().unwrap_or(f64::NAN);
            let _ = writeln!(text, "| {what} | {:.1} | {:.1} | {:.1} |", at(50), at(99), at(100));
        }
        text
    }
}

fn host(parent: usize) -> String {
    if parent == 0 { ONE.to_owned() } else { format!("family-{parent}.example.com") }
}

/// Goes before the route `one` of the site, so that the load meets the family.
fn parent_name(parent: usize) -> String {
    format!("family-{parent}")
}

fn team_name(team: usize) -> String {
    format!("team-{team}")
}

fn parent_route(parent: usize, version: usize) -> String {
    let (name, host) = (parent_name(parent), host(parent));
    format!(
        "---\napiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata: {{name: {name}}}\nspec:\n  \
         parentRefs: [{{name: edge}}]\n  hostnames: [{host}]\n  rules:\n  \
         - filters:\n    - type: ResponseHeaderModifier\n      \
         responseHeaderModifier: {{set: [{{name: X-Parent, value: \"{version}\"}}]}}\n    \
         allowedRoutes: {{namespaces: {{from: Selector, selector: {{matchLabels: {{part: family}}}}}}}}\n"
    )
}

fn child(namespace: &str, name: &str, parent: &str, path: &str, version: usize) -> String {
    let port = backend::PORT;
    format!(
        "---\napiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata: {{name: {name}, namespace: {namespace}}}\n\
         spec:\n  parentRefs: [{{kind: HTTPRoute, name: {parent}, namespace: default}}]\n  rules:\n  \
         - matches: [{{path: {{type: PathPrefix, value: {path}}}}}]\n    filters:\n    \
         - type: ResponseHeaderModifier\n      \
         responseHeaderModifier: {{set: [{{name: X-Child, value: \"{version}\"}}]}}\n    \
         backendRefs: [{{name: web, port: {port}}}]\n"
    )
}

fn labels(namespace: &str, part: &str) -> String {
    format!(
        "---\napiVersion: v1\nkind: Namespace\nmetadata: {{name: {namespace}, labels: {{part: {part}}}}}\n"
    )
}

fn service(namespace: &str) -> String {
    let (address, port) = (backend::ADDRESS, backend::PORT);
    format!(
        "---\napiVersion: v1\nkind: Service\nmetadata: {{name: web, namespace: {namespace}}}\n\
         spec: {{ports: [{{port: {port}}}]}}\n---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n\
         addressType: IPv4\nmetadata: {{name: web-1, namespace: {namespace}, labels: {{kubernetes.io/service-name: web}}}}\n\
         ports: [{{port: {port}}}]\nendpoints: [{{addresses: [{address}]}}]\n"
    )
}
