//! Every rule that could have taken a request, and what kept it from doing so.

use std::sync::Arc;

use portcullis_model::{Entry, HostPattern, RequestHead, RouteMatch, RouteTable, Rule, Step, ValueMatch};

use super::request::{EarlyAnswer, Request};
use crate::text::value_text;

pub(crate) struct Candidates<'t> {
    /// In order of precedence.
    list: Vec<Candidate<'t>>,
}

pub(crate) struct Candidate<'t> {
    pub host: HostPattern,
    pub entry: &'t Entry,
    /// `None` if it takes the request.
    pub miss: Option<Miss>,
}

/// The reason for which a candidate does not take a request.
pub(crate) enum Miss {
    /// Host or path does not match.
    Far(String),
    /// Host and path match.
    Near(String),
}

impl<'t> Candidates<'t> {
    /// # Errors
    /// The answer if the data plane gives the search up.
    pub(crate) fn of(table: &'t RouteTable, request: &Request) -> Result<Self, EarlyAnswer> {
        let mut list: Vec<Candidate<'t>> = Vec::new();
        request.begin_search();
        // The data plane's own search says which rule takes it; here is only said why.
        let found = table.find(request).map(|found| found.rule);
        if let Some(answer) = request.given_up() {
            return Err(answer);
        }
        request.begin_search();
        let mut winner: Option<(HostPattern, &Entry)> = None;
        for (host, paths) in table.hosts() {
            for entry in paths.entries() {
                let miss = miss(&host, entry, request, winner.as_ref(), found);
                if miss.is_none() {
                    winner = Some((host.clone(), entry));
                }
                list.push(Candidate { host: host.clone(), entry, miss });
            }
        }
        Ok(Self { list })
    }

    pub(crate) fn winner(&self) -> Option<&Candidate<'t>> {
        self.list.iter().find(|candidate| candidate.miss.is_none())
    }

    /// Candidates that did not take the request.
    pub(crate) fn others(&self) -> impl Iterator<Item = (&Candidate<'t>, &Miss)> {
        self.list.iter().filter_map(|candidate| Some((candidate, candidate.miss.as_ref()?)))
    }

    /// Number of candidates that did not take the request.
    pub(crate) fn count(&self) -> usize {
        self.list.len() - usize::from(self.winner().is_some())
    }
}

/// `winner` is the candidate before this one that takes the request, if there is one, and `found`
/// the rule that the data plane finds.
fn miss(
    host: &HostPattern,
    entry: &Entry,
    request: &Request,
    winner: Option<&(HostPattern, &Entry)>,
    found: Option<&Arc<Rule>>,
) -> Option<Miss> {
    if !host.matches(request.host()) {
        return Some(Miss::Far(format!("hostname {host} does not match {}", shortened(request.host()))));
    }
    if !entry.matches.path.matches(request.path()) {
        return Some(Miss::Far(format!("the path {} does not match", shortened(request.path()))));
    }
    // The data plane looked at none behind the one that it found.
    if winner.is_some() && !may_look(&entry.matches, request) {
        return Some(Miss::Near("its regular expressions take too long to look at here".to_owned()));
    }
    if let Some(why) = mismatch(&entry.matches, request) {
        return Some(Miss::Near(why));
    }
    let Some((best_host, best)) = winner else {
        let is_found = found.is_some_and(|found| Arc::ptr_eq(found, &entry.rule));
        return (!is_found)
            .then(|| Miss::Near("it matches, too, but the data plane takes another".to_owned()));
    };
    let inferior = match host == best_host {
        true => inferior(entry.precedence.decided_by(&best.precedence)),
        false => "its hostname is less specific",
    };
    Some(Miss::Near(format!("it matches, too, but {inferior}")))
}

impl Miss {
    pub(crate) fn why(&self) -> &str {
        match self {
            Self::Far(why) | Self::Near(why) => why,
        }
    }
}

/// True if the regular expressions of a match may be asked, too.
fn may_look(matches: &RouteMatch, request: &Request) -> bool {
    let is_regex = |wanted: &ValueMatch| matches!(wanted, ValueMatch::Regex(_));
    let headers = matches.headers.iter().filter(|(_, wanted)| is_regex(wanted));
    let query = matches.query.iter().filter(|(_, wanted)| is_regex(wanted));
    headers.filter_map(|(name, _)| Some(request.header(name)?.len())).all(|bytes| request.may_search(bytes))
        && query
            .filter_map(|(name, _)| Some(request.query_param(name)?.len()))
            .all(|bytes| request.may_search(bytes))
}

/// The first condition beyond the path that does not hold.
fn mismatch(matches: &RouteMatch, request: &Request) -> Option<String> {
    if let Some(method) = matches.method.as_ref().filter(|method| *method != request.method()) {
        return Some(format!("the method must be {method}"));
    }
    let headers = matches.headers.iter().find_map(|(name, wanted)| {
        let actual = request.header(name).map(|value| value.into_owned());
        condition("header", name.as_str(), wanted, actual)
    });
    let query = || {
        matches.query.iter().find_map(|(name, wanted)| {
            let actual = request.query_param(name).map(|value| value.into_owned().into_bytes());
            condition("query parameter", name, wanted, actual)
        })
    };
    headers.or_else(query)
}

fn condition(what: &str, name: &str, wanted: &ValueMatch, actual: Option<Vec<u8>>) -> Option<String> {
    let wanted_text = value_text(wanted);
    match actual {
        None => Some(format!("{what} {name}{wanted_text} is wanted, the request has none")),
        Some(actual) if !wanted.matches(&actual) => {
            let actual = excerpt(&String::from_utf8_lossy(&actual));
            Some(format!("{what} {name}{wanted_text} is wanted, the request has {actual}"))
        }
        Some(_) => None,
    }
}

/// A part of the request is told of once for each rule that wants another.
fn excerpt(value: &str) -> String {
    match beginning(value) {
        whole if whole.len() == value.len() => format!("{whole:?}"),
        beginning => format!("{beginning:?}… ({} bytes)", value.len()),
    }
}

fn shortened(part: &str) -> String {
    let beginning = beginning(part);
    let rest = if beginning.len() < part.len() { "…" } else { "" };
    format!("{beginning}{rest}")
}

fn beginning(part: &str) -> &str {
    const MOST: usize = 100;
    part.char_indices().nth(MOST).map_or(part, |(end, _)| &part[..end])
}

/// The words for the step of precedence that decided against an entry.
fn inferior(step: Option<Step>) -> &'static str {
    match step {
        Some(Step::Path) => "its path is less specific",
        Some(Step::Method) => "it matches no method",
        Some(Step::Headers) => "it matches fewer headers",
        Some(Step::QueryParameters) => "it matches fewer query parameters",
        Some(Step::Route) => "its route is younger, or as old and later by name",
        Some(Step::Position) | None => "it comes later in the route",
    }
}
