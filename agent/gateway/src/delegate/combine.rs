//! One rule of a parent and one rule of a child, combined: "an object in the parent route is added
//! (logical AND) to each equivalent object(s) in the child route" (GEP-1058). Either the result
//! means exactly "both", or there is a [`CombineError`].

use std::slice;

use portcullis_api::Kind;
use portcullis_api::types::grpcroutes::GrpcMethodMatch;
use portcullis_api::types::httproutes::{HttpBackendReference, HttpPathMatch};
use portcullis_api::types::shared::{
    HeaderModifier, HeaderValue, HttpRouteFilter, HttpRouteTimeouts, NamedMatch,
};

use super::fields::{Fields, actions};
use crate::route::{Draft, DraftMatch, Inherited, carried_extension, parse_duration, pattern};

/// Two elements that cannot be combined, each in the words of its owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CombineError {
    /// The field, relative to the rule, for readers who may not see the element.
    pub(super) place: &'static str,
    pub(super) why: String,
    pub(super) parent: String,
    pub(super) child: String,
    pub(super) kind: CombineErrorKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CombineErrorKind {
    /// No request can have both: as one of several alternatives it just drops out.
    Impossible,
    /// The specification does not say what both together mean.
    Undefined,
}

/// Of a match, by the CRD.
const MOST_CONDITIONS: usize = 16;
/// Of a header modifier, by the CRD: headers to set, to add, to remove.
const MOST_ACTIONS: usize = 16;
/// Of a rule, and of a backendRef, by the CRD.
const MOST_FILTERS: usize = 16;

/// All pairs of matches that can hold; at least one.
pub(super) fn matches(parent: &Draft, child: &Draft) -> Result<Vec<DraftMatch>, CombineError> {
    let mut combined = Vec::with_capacity(parent.matches.len() * child.matches.len());
    let mut impossible = None;
    for ours in &parent.matches {
        for theirs in &child.matches {
            match both(ours, theirs) {
                Ok(matched) => combined.push(matched),
                Err(error) if error.kind == CombineErrorKind::Impossible => impossible = Some(error),
                Err(error) => return Err(error),
            }
        }
    }
    match impossible {
        Some(error) if combined.is_empty() => Err(error),
        _ => Ok(combined),
    }
}

/// Filters parent → child, backends of the child, the stricter timeouts. `of_reference` are the
/// filters of the parent's reference to the child: they belong to each backend that the child
/// brings, and to its rule if that redirects and so needs none. `foreign` holds the child's
/// namespace if it is not the parent's.
pub(super) fn rest(
    parent: &Draft,
    child: &Draft,
    of_reference: &[HttpRouteFilter],
    foreign: Option<&str>,
    fields: Fields<'_>,
) -> Result<Draft, CombineError> {
    let mut theirs =
        child.filters.iter().map(|filter| carried(filter, foreign)).collect::<Result<Vec<_>, _>>()?;
    let of_reference = extended(of_reference, parent, child);
    let mut inherited =
        Inherited { of_rule: referring(&parent.filters), of_backends: referring(&of_reference) };
    if theirs.iter().any(|filter| filter.r#type == "RequestRedirect") {
        theirs = filters(&of_reference, theirs, fields)?;
        inherited.of_rule += inherited.of_backends;
    }
    let mut backend_refs = Vec::with_capacity(child.backend_refs.len());
    for reference in &child.backend_refs {
        let mut reference = qualified(reference, foreign)?;
        for theirs in reference.filters.iter().flatten() {
            keep_from_overriding(&parent.filters, theirs, fields)?;
        }
        if !of_reference.is_empty() {
            let own = reference.filters.unwrap_or_default();
            reference.filters = Some(filters(&of_reference, own, fields)?);
        }
        backend_refs.push(reference);
    }
    Ok(Draft {
        filters: filters(&extended(&parent.filters, parent, child), theirs, fields)?,
        backend_refs,
        timeouts: stricter(parent.timeouts.as_ref(), child.timeouts.as_ref()),
        retry: child.retry.clone().or_else(|| parent.retry.clone()),
        session: child.session.clone().or_else(|| parent.session.clone()),
        inherited,
        ..Draft::default()
    })
}

/// One alternative of each side.
pub(super) fn both(parent: &DraftMatch, child: &DraftMatch) -> Result<DraftMatch, CombineError> {
    let combined = DraftMatch {
        path: path(parent.path.as_ref(), child.path.as_ref())?,
        grpc: grpc(parent.grpc.as_ref(), child.grpc.as_ref())?,
        method: same("method", parent.method.as_ref(), child.method.as_ref())?,
        headers: conditions("headers", &parent.headers, &child.headers, str::eq_ignore_ascii_case)?,
        query: conditions("queryParams", &parent.query, &child.query, |a, b| a == b)?,
    };
    for (place, names, ours, theirs) in [
        ("headers", &combined.headers, &parent.headers, &child.headers),
        ("queryParams", &combined.query, &parent.query, &child.query),
    ] {
        if names.len() > MOST_CONDITIONS {
            let count = |conditions: &[NamedMatch]| format!("{} conditions", conditions.len());
            return Err(undefined(place, "a match has at most 16 of them", count(ours), count(theirs)));
        }
    }
    Ok(combined)
}

// === paths ===

/// "The only explicitly supported pattern for using path matching, in both a parent and a child
/// route, is using the matching type `PathPrefix` in both routes. The two paths are concatenated".
/// Ours beyond it: so is an exact path below a prefix. The prefix `/` sets no path: the CRD
/// defaults to it.
fn path(
    parent: Option<&HttpPathMatch>,
    child: Option<&HttpPathMatch>,
) -> Result<Option<HttpPathMatch>, CombineError> {
    match (parent.filter(|path| sets_path(path)), child.filter(|path| sets_path(path))) {
        (None, path) | (path, None) => Ok(path.cloned()),
        (Some(ours), Some(theirs)) if is_prefix(ours) && (is_prefix(theirs) || is_exact(theirs)) => {
            let r#type = if is_prefix(theirs) { "PathPrefix" } else { "Exact" };
            let value = format!("{}{}", value_of(ours).trim_end_matches('/'), value_of(theirs));
            Ok(Some(HttpPathMatch { r#type: Some(r#type.to_owned()), value: Some(value) }))
        }
        (Some(ours), Some(theirs)) => Err(undefined(
            "path",
            "below a PathPrefix of the parent, a path is of type PathPrefix or Exact; below other types there can be none",
            shown(ours),
            shown(theirs),
        )),
    }
}

fn sets_path(path: &HttpPathMatch) -> bool {
    !(is_prefix(path) && value_of(path) == "/")
}

fn is_prefix(path: &HttpPathMatch) -> bool {
    path.r#type.as_deref().unwrap_or("PathPrefix") == "PathPrefix"
}

fn is_exact(path: &HttpPathMatch) -> bool {
    path.r#type.as_deref() == Some("Exact")
}

/// A combination that is valid and seldom meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Suspicion {
    /// `Exact /`, which is the parent's path with a slash at its end, and not without.
    SlashOnly,
    /// The child's path begins with the parent's, as it does where paths of children are absolute.
    ParentRepeated,
}

pub(super) fn suspicion(parent: &DraftMatch, child: &DraftMatch) -> Option<Suspicion> {
    let ours = parent.path.as_ref().filter(|path| is_prefix(path) && sets_path(path))?;
    let theirs = child.path.as_ref().filter(|path| sets_path(path))?;
    if is_exact(theirs) && value_of(theirs) == "/" {
        return Some(Suspicion::SlashOnly);
    }
    let rest = value_of(theirs).strip_prefix(value_of(ours).trim_end_matches('/'))?;
    (rest.is_empty() || rest.starts_with('/')).then_some(Suspicion::ParentRepeated)
}

fn value_of(path: &HttpPathMatch) -> &str {
    path.value.as_deref().unwrap_or("/")
}

pub(super) fn shown(path: &HttpPathMatch) -> String {
    format!("{} {}", path.r#type.as_deref().unwrap_or("PathPrefix"), value_of(path))
}

// === gRPC methods ===

fn grpc(
    parent: Option<&GrpcMethodMatch>,
    child: Option<&GrpcMethodMatch>,
) -> Result<Option<GrpcMethodMatch>, CombineError> {
    let (ours, theirs) = match (parent, child) {
        (Some(ours), Some(theirs)) if ours != theirs => (ours, theirs),
        (one, other) => return Ok(one.or(other).cloned()),
    };
    let is_exact = |matched: &GrpcMethodMatch| matched.r#type.as_deref().unwrap_or("Exact") == "Exact";
    if !(is_exact(ours) && is_exact(theirs)) {
        let any = |name: &Option<String>| name.as_deref().unwrap_or("*").to_owned();
        let show = |matched: &GrpcMethodMatch| format!("{}/{}", any(&matched.service), any(&matched.method));
        let why = "regular expressions for gRPC methods cannot be combined";
        return Err(undefined("method", why, show(ours), show(theirs)));
    }
    Ok(Some(GrpcMethodMatch {
        r#type: Some("Exact".to_owned()),
        service: same("method.service", given(&ours.service), given(&theirs.service))?,
        method: same("method.method", given(&ours.method), given(&theirs.method))?,
    }))
}

fn given(name: &Option<String>) -> Option<&String> {
    name.as_ref().filter(|name| !name.is_empty())
}

// === methods, headers, query parameters ===

fn same(
    place: &'static str,
    parent: Option<&String>,
    child: Option<&String>,
) -> Result<Option<String>, CombineError> {
    match (parent, child) {
        (Some(ours), Some(theirs)) if ours != theirs => Err(impossible(place, ours.clone(), theirs.clone())),
        (one, other) => Ok(one.or(other).cloned()),
    }
}

/// The parent's conditions, then the child's that are new.
fn conditions(
    place: &'static str,
    parent: &[NamedMatch],
    child: &[NamedMatch],
    equal_names: impl Fn(&str, &str) -> bool,
) -> Result<Vec<NamedMatch>, CombineError> {
    let mut combined = Vec::<NamedMatch>::new();
    // Of equal names within one route, the first counts.
    for ours in parent {
        if !combined.iter().any(|known| equal_names(&known.name, &ours.name)) {
            combined.push(ours.clone());
        }
    }
    for (at, theirs) in child.iter().enumerate() {
        if child[..at].iter().any(|first| equal_names(&first.name, &theirs.name)) {
            continue;
        }
        match combined.iter_mut().find(|ours| equal_names(&ours.name, &theirs.name)) {
            None => combined.push(theirs.clone()),
            Some(ours) => *ours = condition(place, ours, theirs)?,
        }
    }
    Ok(combined)
}

fn condition(
    place: &'static str,
    ours: &NamedMatch,
    theirs: &NamedMatch,
) -> Result<NamedMatch, CombineError> {
    let show = |named: &NamedMatch| format!("{} {} {:?}", named.name, type_of(named), named.value);
    match (type_of(ours), type_of(theirs)) {
        (a, b) if a == b && ours.value == theirs.value => Ok(ours.clone()),
        ("Exact", "Exact") => Err(impossible(place, show(ours), show(theirs))),
        ("Exact", "RegularExpression") if can_hold(&theirs.value, &ours.value) => Ok(ours.clone()),
        ("RegularExpression", "Exact") if can_hold(&ours.value, &theirs.value) => Ok(theirs.clone()),
        ("Exact", "RegularExpression") | ("RegularExpression", "Exact") => {
            Err(impossible(place, show(ours), show(theirs)))
        }
        _ => Err(undefined(
            place,
            "two regular expressions for one name cannot be combined",
            show(ours),
            show(theirs),
        )),
    }
}

fn type_of(named: &NamedMatch) -> &str {
    named.r#type.as_deref().unwrap_or("Exact")
}

fn can_hold(expression: &str, value: &str) -> bool {
    pattern::octets(expression).is_ok_and(|pattern| pattern.regex.is_match(value.as_bytes()))
}

// === filters ===

/// Header modifiers of both sides become one (a rule may have one of each type); every other
/// combination is for the validity rules of a standalone rule to judge.
fn filters(
    parent: &[HttpRouteFilter],
    child: Vec<HttpRouteFilter>,
    fields: Fields<'_>,
) -> Result<Vec<HttpRouteFilter>, CombineError> {
    keep_from_undoing(parent, &child, fields)?;
    let mut combined = parent.to_vec();
    for theirs in child {
        let ours = combined.iter_mut().find(|ours| ours.r#type == theirs.r#type);
        match (ours, theirs.r#type.as_str()) {
            (Some(ours), "RequestHeaderModifier") => {
                ours.request_header_modifier =
                    edits(ours.request_header_modifier.as_ref(), theirs.request_header_modifier.as_ref())?;
            }
            (Some(ours), "ResponseHeaderModifier") => {
                ours.response_header_modifier =
                    edits(ours.response_header_modifier.as_ref(), theirs.response_header_modifier.as_ref())?;
            }
            _ => combined.push(theirs),
        }
    }
    if combined.len() > MOST_FILTERS {
        let count = format!("{} filters", combined.len() - parent.len());
        return Err(undefined(
            "filters",
            "a rule or backendRef has at most 16 of them",
            format!("{} filters", parent.len()),
            count,
        ));
    }
    Ok(combined)
}

/// The number of filters that refer to a service.
fn referring(filters: &[HttpRouteFilter]) -> usize {
    filters.iter().filter(|filter| filter.external_auth.is_some()).count()
}

/// A filter of one of the child's backends comes after those of the rule, whose say would be the
/// child's: what would be in conflict as a filter of the child's rule is so here.
fn keep_from_overriding(
    parent: &[HttpRouteFilter],
    theirs: &HttpRouteFilter,
    fields: Fields<'_>,
) -> Result<(), CombineError> {
    keep_from_undoing(parent, slice::from_ref(theirs), fields)?;
    let Some(ours) = parent.iter().find(|ours| ours.r#type == theirs.r#type) else { return Ok(()) };
    let only = match ours.r#type.as_str() {
        "URLRewrite" => Some("only one rewrite is possible"),
        "CORS" => Some("only one filter can answer preflight requests"),
        _ => None,
    };
    if let Some(why) = only {
        return Err(undefined(
            "filters",
            why,
            ours.r#type.clone(),
            format!("{} of a backendRef", ours.r#type),
        ));
    }
    Ok(())
}

/// "Only one action for a given header name is permitted".
fn keep_from_undoing(
    parent: &[HttpRouteFilter],
    child: &[HttpRouteFilter],
    fields: Fields<'_>,
) -> Result<(), CombineError> {
    let why = "only one action is possible for a header";
    match fields.undone(parent, child) {
        Some((ours, theirs)) => Err(undefined("filters", why, ours, theirs)),
        None => Ok(()),
    }
}

/// Both, where none undoes another: an action of both is one.
fn edits(
    parent: Option<&HeaderModifier>,
    child: Option<&HeaderModifier>,
) -> Result<Option<HeaderModifier>, CombineError> {
    let (Some(ours), Some(theirs)) = (parent, child) else { return Ok(parent.or(child).cloned()) };
    let mut combined = ours.clone();
    for (header, list) in actions(theirs) {
        if !actions(ours).any(|(known, _)| known.name.eq_ignore_ascii_case(&header.name)) {
            add_action(&mut combined, &header, list);
        }
    }
    let lists = [
        ("set", combined.set.as_ref().map(Vec::len)),
        ("add", combined.add.as_ref().map(Vec::len)),
        ("remove", combined.remove.as_ref().map(Vec::len)),
    ];
    if let Some((list, _)) = lists.iter().find(|(_, length)| *length > Some(MOST_ACTIONS)) {
        let count = |edit: &HeaderModifier| {
            format!("{} in {list}", actions(edit).filter(|(_, of)| of == list).count())
        };
        let why = "a header modifier sets, adds and removes at most 16 headers each";
        return Err(undefined("filters", why, count(ours), count(theirs)));
    }
    Ok(Some(combined))
}

/// Filters of the parent as they are for a child: a `ReplacePrefixMatch` replaces the parent's
/// prefix, so the child's path stays behind what it is replaced with.
fn extended(filters: &[HttpRouteFilter], parent: &Draft, child: &Draft) -> Vec<HttpRouteFilter> {
    let mut filters = filters.to_vec();
    let mut possible =
        child.matches.iter().filter(|theirs| parent.matches.iter().any(|ours| both(ours, theirs).is_ok()));
    // More than one match cannot be written with one filter; that is judged with the whole rule.
    let (Some(only), None) = (possible.next(), possible.next()) else { return filters };
    let Some(below) = only.path.as_ref().filter(|path| sets_path(path)) else { return filters };
    for filter in &mut filters {
        let rewrite = filter.url_rewrite.as_mut().and_then(|rewrite| rewrite.path.as_mut());
        let redirect = filter.request_redirect.as_mut().and_then(|redirect| redirect.path.as_mut());
        for path in rewrite.into_iter().chain(redirect) {
            let Some(prefix) = path.replace_prefix_match.take() else { continue };
            let value = format!("{}{}", prefix.trim_end_matches('/'), value_of(below));
            if is_exact(below) {
                path.r#type = "ReplaceFullPath".to_owned();
                path.replace_full_path = Some(value);
            } else if is_prefix(below) {
                path.replace_prefix_match = Some(value);
            } else {
                path.replace_prefix_match = Some(prefix);
            }
        }
    }
    filters
}

fn add_action(edit: &mut HeaderModifier, header: &HeaderValue, list: &str) {
    match list {
        "set" => edit.set.get_or_insert_default().push(header.clone()),
        "add" => edit.add.get_or_insert_default().push(header.clone()),
        _ => edit.remove.get_or_insert_default().push(header.name.clone()),
    }
}

// === references across namespaces ===

/// A child's filter as it has to be written in the parent's namespace.
fn carried(filter: &HttpRouteFilter, foreign: Option<&str>) -> Result<HttpRouteFilter, CombineError> {
    let mut filter = filter.clone();
    let Some(namespace) = foreign else { return Ok(filter) };
    if let Some(extension) = &mut filter.extension_ref {
        if Kind::of(&extension.group, &extension.kind) == Some(Kind::RouteFilter) {
            extension.name = carried_extension(namespace, &extension.name);
            return Ok(filter);
        }
        let why = "an extensionRef is local to its namespace and cannot be carried into the parent's";
        let named = format!("{} {}", extension.kind, extension.name);
        return Err(undefined("filters", why, "a rule of another namespace".to_owned(), named));
    }
    let mirror = filter.request_mirror.as_mut().map(|mirror| &mut mirror.backend_ref);
    let auth = filter.external_auth.as_mut().map(|auth| &mut auth.backend_ref);
    for reference in mirror.into_iter().chain(auth) {
        reference.namespace.get_or_insert_with(|| namespace.to_owned());
    }
    Ok(filter)
}

fn qualified(
    reference: &HttpBackendReference,
    foreign: Option<&str>,
) -> Result<HttpBackendReference, CombineError> {
    let mut reference = reference.clone();
    if let Some(namespace) = foreign {
        reference.namespace.get_or_insert_with(|| namespace.to_owned());
    }
    let filters = reference.filters.take();
    reference.filters = filters
        .map(|filters| filters.iter().map(|filter| carried(filter, foreign)).collect::<Result<_, _>>())
        .transpose()?;
    Ok(reference)
}

// === timeouts ===

/// The shorter of each; `0s` (no limit) loses against any limit. An attempt may not take longer
/// than the whole.
fn stricter(
    parent: Option<&HttpRouteTimeouts>,
    child: Option<&HttpRouteTimeouts>,
) -> Option<HttpRouteTimeouts> {
    let (Some(ours), Some(theirs)) = (parent, child) else { return parent.or(child).cloned() };
    let request = shorter(ours.request.as_ref(), theirs.request.as_ref());
    let backend_request = shorter(ours.backend_request.as_ref(), theirs.backend_request.as_ref());
    let backend_request = backend_request.map(|attempt| match &request {
        Some(whole) if limit(whole) < limit(&attempt) => whole.clone(),
        _ => attempt,
    });
    Some(HttpRouteTimeouts { request, backend_request })
}

fn shorter(parent: Option<&String>, child: Option<&String>) -> Option<String> {
    match (parent, child) {
        (Some(ours), Some(theirs)) if limit(theirs) < limit(ours) => Some(theirs.clone()),
        (one, other) => one.or(other).cloned(),
    }
}

/// A malformed duration counts as none; the rule it is in is invalid on its own.
fn limit(duration: &str) -> std::time::Duration {
    parse_duration(duration).ok().filter(|limit| !limit.is_zero()).unwrap_or(std::time::Duration::MAX)
}

// === impl CombineError ===

fn impossible(place: &'static str, parent: String, child: String) -> CombineError {
    let why = "no request can meet both".to_owned();
    CombineError {
        place,
        why,
        parent: named(place, &parent),
        child: named(place, &child),
        kind: CombineErrorKind::Impossible,
    }
}

fn undefined(place: &'static str, why: &str, parent: String, child: String) -> CombineError {
    let (parent, child) = (named(place, &parent), named(place, &child));
    CombineError { place, why: why.to_owned(), parent, child, kind: CombineErrorKind::Undefined }
}

fn named(place: &str, element: &str) -> String {
    format!("{place} {element}")
}

#[cfg(test)]
#[path = "combine_tests.rs"]
mod tests;
