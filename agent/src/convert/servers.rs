//! Hosts and their paths, merged from all Ingresses as ingress-nginx merges them: of several that
//! claim a path the oldest has it, and a canary goes beside the path that it names.

use std::collections::BTreeMap;

use super::difference::{Difference, Outcome};
use super::ingress::{Backend, Ingress, PathKind, World};

/// By host; the empty one is for all that no other takes.
pub(super) type Servers = BTreeMap<String, Server>;

#[derive(Debug, Default)]
pub(super) struct Server {
    pub locations: Vec<Location>,
    /// The Ingress whose Secret it is, and the Secret.
    pub certificate: Option<(usize, String)>,
    /// An Ingress wants TLS with the controller's own certificate, which is not here.
    pub lacks_certificate: bool,
    /// The Ingress whose `auth-tls-secret` it is.
    pub client_certificates: Option<usize>,
    pub passthrough: bool,
}

#[derive(Clone, Debug)]
pub(super) struct Location {
    /// Index into the Ingresses.
    pub ingress: usize,
    pub path: String,
    pub kind: PathKind,
    pub backend: Option<Backend>,
    pub canary: Option<(usize, Backend)>,
}

impl Server {
    /// True if every path is a regular expression that begins at the path's begin, in any case.
    pub(super) fn is_regex(&self, world: &World) -> bool {
        self.locations.iter().any(|location| world.ingresses[location.ingress].has_regex())
    }

    pub(super) fn has_tls(&self) -> bool {
        self.certificate.is_some() || self.lacks_certificate || self.passthrough
    }

    fn claim(&mut self, location: Location, host: &str, world: &World, report: &mut Vec<Difference>) {
        let same = |other: &&Location| other.path == location.path && other.kind == location.kind;
        if let Some(first) = self.locations.iter().find(same) {
            let (first, ingress) = (&world.ingresses[first.ingress], &world.ingresses[location.ingress]);
            let text = format!("{} is older and has it; not written", first.key());
            report.push(Difference::new(
                &ingress.key(),
                &format!("{host}{}", location.path),
                Outcome::Differs,
                text,
            ));
        } else {
            self.locations.push(location);
        }
    }
}

pub(super) fn servers(world: &World, report: &mut Vec<Difference>) -> Servers {
    let mut servers = Servers::new();
    let all = || world.ingresses.iter().enumerate();
    for (index, ingress) in all().filter(|(_, ingress)| !ingress.is_canary()) {
        for (host, paths) in &ingress.rules {
            for host in with_aliases(ingress, host, world) {
                let server = servers.entry(host.clone()).or_default();
                for path in paths {
                    let backend = path.backend.clone();
                    let (path, kind) = (path.path.clone(), path.kind);
                    let location = Location { ingress: index, path, kind, backend, canary: None };
                    server.claim(location, &host, world, report);
                }
            }
        }
    }
    for (index, ingress) in all().filter(|(_, ingress)| !ingress.is_canary()) {
        rest(&mut servers, index, ingress);
        certificates(&mut servers, index, ingress, world);
    }
    for (index, ingress) in all().filter(|(_, ingress)| ingress.is_canary()) {
        canaries(&mut servers, index, ingress, world, report);
    }
    servers
}

fn with_aliases(ingress: &Ingress, host: &str, world: &World) -> Vec<String> {
    let aliases = ingress.get("server-alias").unwrap_or_default().split(',').map(str::trim);
    let taken = |alias: &str| world.ingresses.iter().flat_map(|it| &it.rules).any(|(host, _)| host == alias);
    let aliases = aliases.filter(|alias| is_host(alias) && !taken(alias)).map(str::to_owned);
    std::iter::once(host.to_owned()).chain(aliases).collect()
}

pub(super) fn is_host(text: &str) -> bool {
    let name = text.strip_prefix("*.").unwrap_or(text);
    name.contains('.')
        && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-.".contains(&b))
}

/// The default backend takes what no path takes: of its Ingress' hosts, or, without rules, of all.
fn rest(servers: &mut Servers, index: usize, ingress: &Ingress) {
    let Some(backend) = &ingress.default_backend else { return };
    let mut hosts: Vec<_> = ingress.rules.iter().map(|(host, _)| host.clone()).collect();
    if hosts.is_empty() {
        hosts.push(String::new());
    }
    for host in hosts {
        let server = servers.entry(host).or_default();
        if !server.locations.iter().any(|location| location.path == "/" && location.kind != PathKind::Exact) {
            let (path, backend) = ("/".to_owned(), Some(backend.clone()));
            server.locations.push(Location {
                ingress: index,
                path,
                kind: PathKind::Prefix,
                backend,
                canary: None,
            });
        }
    }
}

fn certificates(servers: &mut Servers, index: usize, ingress: &Ingress, world: &World) {
    let own: Vec<String> =
        ingress.rules.iter().flat_map(|(host, _)| with_aliases(ingress, host, world)).collect();
    for host in &own {
        let Some(server) = servers.get_mut(host) else { continue };
        let named = |name: &String| name == host || covers(name, host);
        let alias = !ingress.rules.iter().any(|(own, _)| own == host);
        let tls = ingress.tls.iter().find(|tls| alias || tls.hosts.is_empty() || tls.hosts.iter().any(named));
        match tls.map(|tls| &tls.secret) {
            Some(Some(secret)) if server.certificate.is_none() => {
                server.certificate = Some((index, secret.clone()));
            }
            Some(None) => server.lacks_certificate = true,
            _ => {}
        }
        let asks =
            ingress.get("auth-tls-secret").is_some() && ingress.get("auth-tls-verify-client") != Some("off");
        if asks && server.client_certificates.is_none() {
            server.client_certificates = Some(index);
        }
        server.passthrough |= ingress.is("ssl-passthrough");
    }
}

fn covers(wildcard: &str, host: &str) -> bool {
    let below = wildcard.strip_prefix("*.");
    below.is_some_and(|below| host.split_once('.').is_some_and(|(_, rest)| rest == below))
}

fn canaries(
    servers: &mut Servers,
    index: usize,
    ingress: &Ingress,
    world: &World,
    report: &mut Vec<Difference>,
) {
    for (host, paths) in &ingress.rules {
        for path in paths {
            let Some(backend) = &path.backend else { continue };
            let locations = servers.get_mut(host).into_iter().flat_map(|server| &mut server.locations);
            let mut beside = locations.filter(|location| {
                location.path == path.path
                    && location.canary.is_none()
                    && world.ingresses[location.ingress].namespace == ingress.namespace
            });
            if let Some(location) = beside.next() {
                location.canary = Some((index, backend.clone()));
            } else {
                let text = format!(
                    "no Ingress of this namespace has {host}{} for it to go beside; not written",
                    path.path
                );
                report.push(Difference::new(&ingress.key(), "canary", Outcome::Lost, text));
            }
        }
    }
}
