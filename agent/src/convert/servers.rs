//! Hosts and their paths, merged from all Ingresses as ingress-nginx merges them: of several that
//! claim a path the first has it, and a canary goes beside the path that it names.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::annotations::protects;
use super::difference::{Difference, Outcome};
use super::ingress::{Backend, Ingress, PathKind, World};
use super::paths::{self, Style};
use super::shape;

/// By host; the empty one is for all that no other takes.
pub(super) type Servers = BTreeMap<String, Server>;

#[derive(Clone, Debug, Default)]
pub(super) struct Server {
    pub locations: Vec<Location>,
    /// The first Ingress that has a rule for it, whose is the `/` that no path is; not of the
    /// empty host.
    pub first: Option<usize>,
    /// The Ingress whose Secret it is, and the Secret.
    pub certificate: Option<(usize, String)>,
    /// An Ingress wants TLS with the controller's own certificate, which is not here.
    pub lacks_certificate: bool,
    /// The Ingress whose `auth-tls-secret` it is.
    pub client_certificates: Option<usize>,
    /// Its first Ingress wants it; later ones cannot.
    pub passthrough: bool,
    /// Namespaces that have too many of its paths: theirs are closed.
    pub crowded: BTreeSet<String>,
    /// An Ingress of it is not written, or cannot be: its paths would be another's.
    pub closed: bool,
}

#[derive(Clone, Debug)]
pub(super) struct Location {
    /// Index into the Ingresses.
    pub ingress: usize,
    pub path: String,
    pub kind: PathKind,
    pub target: Target,
    pub canary: Option<(usize, Backend)>,
    /// Of the path, in routes.
    pub matches: Vec<Value>,
}

/// The answer to requests of a path.
#[derive(Clone, Debug)]
pub(super) enum Target {
    Backend(Option<Backend>),
    /// No path of the host takes it; routes of a wider host are not to have it either.
    Nothing,
}

impl Location {
    fn new(ingress: usize, path: &str, kind: PathKind, backend: Option<Backend>) -> Self {
        let (path, target) = (path.to_owned(), Target::Backend(backend));
        Self { ingress, path, kind, target, canary: None, matches: Vec::new() }
    }

    pub(super) fn backend(&self) -> Option<&Backend> {
        match &self.target {
            Target::Backend(backend) => backend.as_ref(),
            Target::Nothing => None,
        }
    }

    /// True if it takes all that no other path takes.
    pub(super) fn is_rest(&self) -> bool {
        self.path == "/" && self.kind != PathKind::Exact
    }
}

impl Server {
    /// True if every path is a regular expression that begins at the path's begin, in any case.
    pub(super) fn is_regex(&self, world: &World) -> bool {
        let implicit = self.first.filter(|_| !self.locations.iter().any(Location::is_rest));
        implicit.is_some_and(|first| world.ingresses[first].has_regex_at("/"))
            || self.locations.iter().any(|it| world.ingresses[it.ingress].has_regex_at(&it.path))
    }

    /// True if an Ingress has a path of it.
    pub(super) fn has(&self, ingress: usize) -> bool {
        self.locations.iter().any(|location| location.ingress == ingress)
    }

    pub(super) fn has_tls(&self) -> bool {
        self.certificate.is_some() || self.lacks_certificate || self.passthrough
    }

    fn style(&self, world: &World) -> Style {
        if self.is_regex(world) {
            return Style::Expressions;
        }
        // What requests may spell in two ways takes an expression.
        let protects_any = self.locations.iter().any(|it| protects(&world.ingresses[it.ingress]));
        let has_two = |it: &Location| paths::has_two_spellings(&it.path);
        if protects_any && self.locations.iter().any(has_two) { Style::Ordered } else { Style::Plain }
    }

    /// Leaves a path of a kind to the first that has it. As in ingress-nginx, the others are none:
    /// they do not even have the host's paths be expressions.
    fn leave_to_first(&mut self, host: &str, world: &World, report: &mut Vec<Difference>) {
        let mut owners = BTreeMap::<(String, PathKind), usize>::new();
        self.locations.retain(|location| {
            let first = *owners.entry((location.path.clone(), location.kind)).or_insert(location.ingress);
            let is_first = first == location.ingress;
            if !is_first {
                report.push(taken(world, location, host, first, "has it; not written"));
            }
            is_first
        });
    }

    /// Of a host's expressions, the one of `/` is also of the implicit `/` that is the host's first
    /// path: an `Exact` one never has anything.
    fn leave_out_exact_roots(
        &mut self,
        host: &str,
        style: Style,
        world: &World,
        report: &mut Vec<Difference>,
    ) {
        let is_left = |it: &Location| {
            style == Style::Expressions
                && it.kind == PathKind::Exact
                && it.path.trim_start_matches('^') == "/"
        };
        for location in self.locations.extract_if(.., |it| is_left(it)) {
            let key = world.ingresses[location.ingress].key();
            let text = "an expression that never has a request, as / of the host comes first, as before; not written";
            report.push(Difference::new(&key, &format!("{host}{}", location.path), Outcome::Differs, text));
        }
    }

    /// Gives each path its matches, and each match to the first path that wants it.
    fn settle(&mut self, host: &str, world: &World, report: &mut Vec<Difference>) {
        self.leave_to_first(host, world, report);
        let style = self.style(world);
        let unmet = |it: &&Location| style == Style::Expressions && paths::is_encoded_in_requests(&it.path);
        if let Some(location) = self.locations.iter().find(unmet) {
            self.closed = true;
            let text = "an expression with characters that requests have encoded: write it in ASCII; all of the host is closed";
            let key = world.ingresses[location.ingress].key();
            report.push(Difference::new(&key, &format!("{host}{}", location.path), Outcome::Closed, text));
        }
        self.leave_out_exact_roots(host, style, world, report);
        let exact = self.locations.iter().filter(|it| it.kind == PathKind::Exact);
        let exact: BTreeSet<_> = exact.map(|it| it.path.clone()).collect();
        let mut owners = BTreeMap::<(String, String), usize>::new();
        let mut settled = Vec::new();
        let mut asked: Vec<_> = std::mem::take(&mut self.locations).into_iter().enumerate().collect();
        // Of two that differ in case alone, the one that nginx asks first.
        asked.sort_by(|(_, a), (_, b)| style.order((&a.path, a.kind), (&b.path, b.kind)));
        for (place, mut location) in asked {
            let expects = world.ingresses[location.ingress].has_regex_at(&location.path);
            let whole = paths::Whole { style, is_expression: expects, exact: &exact };
            let mut first = None;
            for path in paths::matches(&location.path, location.kind, &whole) {
                match owners.get(&key(&path, style)) {
                    Some(owner) => first = Some(*owner),
                    None => location.matches.push(path),
                }
            }
            let own = location.matches.iter().map(|path| (key(path, style), location.ingress));
            owners.extend(own);
            match first {
                Some(first) if location.matches.is_empty() => {
                    report.push(taken(world, &location, host, first, "has it; not written"));
                    continue;
                }
                Some(first) => report.push(taken(world, &location, host, first, "has a part of it")),
                None => {}
            }
            settled.push((place, location));
        }
        settled.sort_by_key(|(place, _)| *place);
        self.locations = settled.into_iter().map(|(_, location)| location).collect();
        while !self.is_in_order(style, world) && self.close_the_most(host, world, report) {}
    }

    /// True if HTTPRoutes ask the paths in nginx' order from now on.
    fn is_in_order(&mut self, style: Style, world: &World) -> bool {
        let crowded = &self.crowded;
        let mut order: Vec<_> = self.locations.iter_mut().collect();
        order.sort_by(|a, b| style.order((&a.path, a.kind), (&b.path, b.kind)));
        let asked = order.into_iter().flat_map(|location| {
            let is_closed = crowded.contains(&world.ingresses[location.ingress].namespace);
            location.matches.iter_mut().map(move |path| paths::Asked { path, is_closed })
        });
        paths::keep_order(asked.collect()).is_some()
    }

    /// Closes the paths of the namespace that has the most, so that fewer have to be kept in
    /// order. Returns `false` if all are closed.
    fn close_the_most(&mut self, host: &str, world: &World, report: &mut Vec<Difference>) -> bool {
        let mut counts = BTreeMap::<&str, (usize, usize)>::new();
        for location in &self.locations {
            let namespace = world.ingresses[location.ingress].namespace.as_str();
            counts.entry(namespace).or_insert((0, location.ingress)).0 += 1;
        }
        let open = counts.iter().filter(|(namespace, _)| !self.crowded.contains(**namespace));
        let Some((namespace, (count, ingress))) = open.max_by_key(|(_, (count, _))| *count) else {
            return false;
        };
        let text = format!(
            "{count} of its {} paths are of namespace {namespace}, and closed: so many expressions have no length by which nginx' order is kept; write fewer",
            self.locations.len()
        );
        report.push(Difference::new(&world.ingresses[*ingress].key(), host, Outcome::Closed, text));
        self.crowded.insert((*namespace).to_owned());
        true
    }
}

/// A path of which another Ingress has a part, or all.
fn taken(world: &World, location: &Location, host: &str, first: usize, part: &str) -> Difference {
    let text = format!("{} comes first and {part}", world.ingresses[first].key());
    let subject = format!("{host}{}", location.path);
    Difference::new(&world.ingresses[location.ingress].key(), &subject, Outcome::Differs, text)
}

/// Equal for matches that take the same paths.
fn key(path: &Value, style: Style) -> (String, String) {
    let text = |field: &str| path[field].as_str().unwrap_or_default();
    let (kind, value) = (text("type"), text("value"));
    let value = match (kind, style) {
        ("PathPrefix", _) => value.trim_end_matches('/').to_owned(),
        (_, Style::Expressions) => value.to_ascii_lowercase(),
        _ => value.to_owned(),
    };
    (kind.to_owned(), value)
}

/// `closed` are Ingresses whose paths no route can have: their hosts are closed as a whole.
pub(super) fn servers(world: &World, closed: &BTreeSet<usize>, report: &mut Vec<Difference>) -> Servers {
    let mut servers = Servers::new();
    let all = || world.ingresses.iter().enumerate();
    for (index, ingress) in all().filter(|(_, ingress)| !ingress.is_canary()) {
        for (host, paths) in &ingress.rules {
            let passthrough = ingress.is("ssl-passthrough");
            let first = (!host.is_empty()).then_some(index);
            let first = || Server { first, passthrough, ..Server::default() };
            let server = servers.entry(host.clone()).or_insert_with(first);
            server.closed |= closed.contains(&index);
            let locations =
                paths.iter().map(|it| Location::new(index, &it.path, it.kind, it.backend.clone()));
            let is_open = !closed.contains(&index);
            server.locations.extend(locations.filter(|location| is_open || location.is_rest()));
        }
    }
    for (index, _) in all().filter(|(_, ingress)| !ingress.is_canary()) {
        rest(&mut servers, index, world, closed, report);
        certificates(&mut servers, index, world, report);
    }
    for (index, ingress) in all().filter(|(_, ingress)| ingress.is_canary()) {
        canaries(&mut servers, index, ingress, world, report);
    }
    for unreadable in &world.unreadable {
        for host in &unreadable.hosts {
            if let Some(server) = servers.get_mut(host) {
                server.closed = true;
            }
        }
    }
    for (host, server) in &mut servers {
        server.settle(host, world, report);
    }
    aliases(&mut servers, world, report);
    nothing_else(&mut servers);
    servers
}

/// `server-alias` names a whole host once more, with the paths of all its Ingresses: some of them
/// may protect. As in ingress-nginx, an alias is the first host's that wants it, and a host has
/// those of its first Ingress that has any.
fn aliases(servers: &mut Servers, world: &World, report: &mut Vec<Difference>) {
    let hosts: BTreeSet<_> =
        world.ingresses.iter().flat_map(|it| it.rules.iter().map(|rule| &rule.0)).collect();
    let mut owners = BTreeMap::<&str, &str>::new();
    let mut firsts = BTreeMap::<&str, usize>::new();
    let all = world.ingresses.iter().enumerate();
    for (index, ingress) in all.filter(|(_, ingress)| !ingress.is_canary()) {
        let all = ingress.get("server-alias").unwrap_or_default().split(',').map(str::trim);
        let is_also_of_the_rest = ingress.rules.iter().any(|(host, _)| host.is_empty());
        for alias in all.filter(|alias| !alias.is_empty()) {
            let mut tell = |outcome, text: &str| {
                let text = format!("{alias}: {text}");
                report.push(Difference::new(&ingress.key(), "server-alias", outcome, text));
            };
            let host = ingress.rules.iter().map(|(host, _)| host.as_str()).find(|host| !host.is_empty());
            if !shape::is_host(alias) || !alias.contains('.') {
                tell(Outcome::Lost, "it is no hostname: write the names themselves as hosts of rules");
            } else if hosts.contains(&alias.to_owned()) {
                tell(Outcome::NotNeeded, "it is a host of rules, which have it, as before");
            } else if let Some(first) = host.map(|host| *firsts.entry(host).or_insert(index))
                && first != index
            {
                let first = world.ingresses[first].key();
                tell(Outcome::Lost, &format!("{first} comes first, whose aliases its host has, as before"));
            } else if let Some(host) = host {
                let owner = *owners.entry(alias).or_insert(host);
                let server = servers.get(host).cloned().filter(|_| owner == host);
                if let Some(server) = server {
                    servers.entry(alias.to_owned()).or_insert(server);
                    match is_also_of_the_rest {
                        false => tell(Outcome::Became, "hostname of the routes of all Ingresses of its host"),
                        true => tell(
                            Outcome::Differs,
                            &format!("hostname of the routes of {host}; until now rules without host had it"),
                        ),
                    }
                } else {
                    tell(Outcome::Lost, &format!("it is an alias of {owner}, which comes first"));
                }
            }
        }
    }
}

/// At a listener for several hosts, what no path of a host takes would be a wider host's.
fn nothing_else(servers: &mut Servers) {
    let narrow: Vec<_> = servers.keys().filter(|host| wider(servers, host).is_some()).cloned().collect();
    for host in narrow {
        let Some(server) = servers.get_mut(&host) else { continue };
        let first = server.first.or_else(|| server.locations.first().map(|it| it.ingress));
        let Some(first) = first else { continue };
        if !server.locations.iter().any(Location::is_rest) {
            let mut rest = Location::new(first, "/", PathKind::Prefix, None);
            rest.matches = vec![paths::all()];
            rest.target = Target::Nothing;
            server.locations.push(rest);
        }
    }
}

/// The nearest host that is for this one, too: `*.example.com` of `a.example.com`.
pub(super) fn wider<'a>(servers: &'a Servers, host: &str) -> Option<&'a str> {
    let mut below = host.strip_prefix("*.").unwrap_or(host);
    while let Some((_, parent)) = below.split_once('.') {
        if let Some((wildcard, _)) = servers.get_key_value(&format!("*.{parent}")) {
            return Some(wildcard);
        }
        below = parent;
    }
    servers.get_key_value("").map(|(all, _)| all.as_str()).filter(|_| !host.is_empty())
}

/// A host's default backend takes what no path takes: its first Ingress' alone, and, of all hosts,
/// that of the first Ingress without rules.
fn rest(
    servers: &mut Servers,
    index: usize,
    world: &World,
    closed: &BTreeSet<usize>,
    report: &mut Vec<Difference>,
) {
    let ingress = &world.ingresses[index];
    let mut hosts: Vec<_> = ingress.rules.iter().map(|(host, _)| host.clone()).collect();
    if hosts.is_empty() {
        hosts.push(String::new());
    }
    for host in hosts {
        let is_closed = closed.contains(&index);
        let server = servers.entry(host.clone()).or_default();
        server.closed |= is_closed;
        let first = if host.is_empty() {
            world.ingresses.iter().position(|it| it.rules.is_empty() && !it.is_canary())
        } else {
            server.first
        };
        let is_first = first == Some(index);
        if ingress.default_backend.is_some() && !is_first {
            let of =
                first.map_or("an Ingress without rules".to_owned(), |first| world.ingresses[first].key());
            let host = if host.is_empty() { "(any host)" } else { &host };
            let text = format!("{host}: the rest is left to {of}, as before");
            report.push(Difference::new(&ingress.key(), "spec.defaultBackend", Outcome::Lost, text));
        }
        let has_rest = server.locations.iter().any(Location::is_rest);
        let takes_rest = is_first && (ingress.default_backend.is_some() || redirects(ingress));
        if !has_rest && (takes_rest || is_closed) {
            let backend = ingress.default_backend.clone().filter(|_| is_first);
            let mut rest = Location::new(index, "/", PathKind::Prefix, backend);
            if !takes_rest {
                rest.target = Target::Nothing;
            }
            server.locations.push(rest);
        }
    }
}

/// True if the requests of its hosts that no path takes are redirected, too.
fn redirects(ingress: &Ingress) -> bool {
    ["permanent-redirect", "temporal-redirect"].into_iter().any(|it| ingress.get(it).is_some())
}

/// As in ingress-nginx, a host has the Secret that `spec.tls` names for it, or else one whose
/// certificate is for it.
fn certificates(servers: &mut Servers, index: usize, world: &World, report: &mut Vec<Difference>) {
    let ingress = &world.ingresses[index];
    for (host, _) in &ingress.rules {
        let Some(server) = servers.get_mut(host) else { continue };
        let named = |name: &String| name == host || covers(name, host);
        let tls = ingress.tls.iter().find(|tls| tls.hosts.is_empty() || tls.hosts.iter().any(named));
        match tls.map(|tls| &tls.secret) {
            Some(Some(secret)) if server.certificate.is_none() => {
                server.certificate = Some((index, secret.clone()));
            }
            Some(Some(_)) => {}
            Some(None) => server.lacks_certificate = true,
            None if server.certificate.is_none() => match by_names(world, ingress, host) {
                Ok(secret) => server.certificate = secret.map(|secret| (index, secret)),
                Err(secret) => {
                    let text = format!(
                        "{host} is none of its hosts, and has TLS if the certificate in Secret {secret}, which is not in \
                         the input, is for it: name the host in spec.tls, or give the Secret"
                    );
                    report.push(Difference::new(&ingress.key(), "spec.tls", Outcome::Unprotected, text));
                }
            },
            None => {}
        }
        let asks =
            ingress.get("auth-tls-secret").is_some() && ingress.get("auth-tls-verify-client") != Some("off");
        if asks && server.client_certificates.is_none() {
            server.client_certificates = Some(index);
        }
    }
}

/// The Secret of an Ingress whose certificate is for this host.
///
/// # Errors
/// None is, but this one is not given.
fn by_names(world: &World, ingress: &Ingress, host: &str) -> Result<Option<String>, String> {
    let mut unknown = None;
    for secret in ingress.tls.iter().filter_map(|tls| tls.secret.as_ref()) {
        match world.certificate_names(&ingress.namespace, secret) {
            Some(names) if names.iter().any(|name| name == host || covers(name, host)) => {
                return Ok(Some(secret.clone()));
            }
            Some(_) => {}
            None => unknown = Some(secret.clone()),
        }
    }
    unknown.map_or(Ok(None), Err)
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
                (&location.path, location.kind) == (&path.path, path.kind)
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
