//! Filters: compiled where we support them, a typed fault where we do not. "If a reference to a
//! custom filter type cannot be resolved, the filter MUST NOT be skipped. Instead, requests that
//! would have been processed by that filter MUST receive a HTTP error response" (HTTPRouteFilter):
//! so every fault here fails the rule.

use std::sync::Arc;

use http::{HeaderName, HeaderValue, StatusCode, header};
use portcullis_api::Kind;
use portcullis_api::types::shared::{
    BackendObjectReference, Cors as WrittenCors, HeaderModifier, HeaderValue as NamedValue, HttpRouteFilter,
    PathModifier, RequestMirror, RequestRedirect, UrlRewrite,
};
use portcullis_model::{
    AllowedNames, AllowedOrigins, Cors, Credentials, Filter, HeaderEdit, HostPattern, ObjectName,
    OriginPattern, PathRewrite, Redirect, Rewrite, RuleId, Scheme, Share,
};

use super::external_auth::ParsedAuth;
use super::matches::{check_length, unknown_type};
use super::service_reference::Referred;
use crate::field_names::{check_written, header_name};
use crate::{Fault, Reason};

/// A rule's filters, in order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RuleFilters {
    pub filters: Vec<Filter>,
    pub redirect: Option<Box<Redirect>>,
    /// Those of RequestMirror, in order.
    pub mirrors: Vec<ParsedMirror>,
    /// The filters that refer to other objects, in order: those of ExternalAuth, and RouteFilters.
    pub references: Vec<FilterReference>,
}

/// A backend for copies of requests.
#[derive(Clone, Debug, PartialEq)]
pub struct ParsedMirror {
    /// The namespace of the route that wrote it: its permissions count.
    pub owner: Arc<str>,
    pub to: BackendObjectReference,
    pub share: Share,
}

/// A filter that is completed by what it refers to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FilterReference {
    Auth(ParsedAuth),
    RouteFilter(ExtensionRef),
}

/// A reference to a RouteFilter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExtensionRef {
    pub name: ObjectName,
    /// Its place in the list that was written.
    pub index: usize,
    /// The number of filters in front of it that refer to nothing.
    pub at: usize,
    pub is_behind_redirect: bool,
}

const LONGEST_VALUE: usize = 4096;
const LONGEST_PATH: usize = 1024;

// === impl RuleFilters ===

impl RuleFilters {
    /// Those of a rule, or of one of its backends.
    pub(crate) fn parse(filters: &[HttpRouteFilter], rule: &RuleId, faults: &mut Vec<Fault>) -> Self {
        faults.extend(repeated(filters));
        faults.extend(redirect_and_rewrite(filters));
        let mut compiled = Self::default();
        for (at, filter) in filters.iter().enumerate() {
            if let Err(fault) = compiled.add(at, filter, rule) {
                faults.push(fault.within(&format!("filters[{at}]")));
            }
        }
        compiled
    }

    /// True if a part of the path is replaced whose extent the rule's only PathPrefix has to
    /// define.
    pub(super) fn replace_prefix(&self) -> bool {
        let rewrites = self.filters.iter().filter_map(|filter| match filter {
            Filter::Rewrite(rewrite) => rewrite.path.as_ref(),
            _ => None,
        });
        let redirect = self.redirect.as_ref().and_then(|redirect| redirect.path.as_ref());
        rewrites.chain(redirect).any(|path| matches!(path, PathRewrite::Prefix(_)))
    }

    /// True if there is a CORS filter.
    pub(super) fn answer_preflights(&self) -> bool {
        self.filters.iter().any(|filter| matches!(filter, Filter::Cors(_)))
    }

    /// The services that filters make use of.
    pub(crate) fn services(&self) -> impl Iterator<Item = Referred<'_>> {
        self.references.iter().filter_map(|reference| match reference {
            FilterReference::Auth(auth) => Some(auth.service.referred()),
            FilterReference::RouteFilter(_) => None,
        })
    }

    /// The RouteFilters that are referred to.
    pub(crate) fn route_filters(&self) -> impl Iterator<Item = &ObjectName> {
        self.references.iter().filter_map(|reference| match reference {
            FilterReference::Auth(_) => None,
            FilterReference::RouteFilter(extension) => Some(&extension.name),
        })
    }

    /// Takes the first so many references for those of a route in `parent`.
    pub(super) fn inherit(&mut self, written: &[HttpRouteFilter], count: usize, parent: &Arc<str>) {
        let written = written.iter().filter_map(|filter| filter.external_auth.as_ref());
        let parsed = self.references.iter_mut().filter_map(|reference| match reference {
            FilterReference::Auth(auth) => Some(auth),
            FilterReference::RouteFilter(_) => None,
        });
        for (written, parsed) in written.zip(parsed).take(count) {
            parsed.service.move_to(parent, written.backend_ref.namespace.as_deref());
        }
    }

    fn add(&mut self, index: usize, filter: &HttpRouteFilter, rule: &RuleId) -> Result<(), Fault> {
        match filter.r#type.as_str() {
            "RequestHeaderModifier" => {
                let modifier = present(filter.request_header_modifier.as_ref(), "requestHeaderModifier")?;
                self.filters.push(Filter::RequestHeaders(request_header_edit(modifier)?));
            }
            "ResponseHeaderModifier" => {
                let edit = header_edit(present(
                    filter.response_header_modifier.as_ref(),
                    "responseHeaderModifier",
                )?)?;
                self.filters.push(Filter::ResponseHeaders(edit));
            }
            "URLRewrite" => {
                self.filters
                    .push(Filter::Rewrite(rewrite(present(filter.url_rewrite.as_ref(), "urlRewrite")?)?));
            }
            "RequestRedirect" => {
                let filter = present(filter.request_redirect.as_ref(), "requestRedirect")?;
                self.redirect = Some(Box::new(redirect(filter)?));
            }
            "CORS" => {
                let cors =
                    cors(present(filter.cors.as_ref(), "cors")?).map_err(|fault| fault.within("cors"))?;
                self.filters.push(Filter::Cors(Box::new(cors)));
            }
            "RequestMirror" => {
                let filter = present(filter.request_mirror.as_ref(), "requestMirror")?;
                self.mirrors.push(mirror(filter, &rule.route.namespace)?);
            }
            "ExtensionRef" => {
                let name = route_filter(filter, rule)?;
                let (at, is_behind_redirect) = (self.filters.len(), self.redirect.is_some());
                let reference = ExtensionRef { name, index, at, is_behind_redirect };
                self.references.push(FilterReference::RouteFilter(reference));
            }
            "ExternalAuth" => {
                let auth = present(filter.external_auth.as_ref(), "externalAuth")?;
                let auth = ParsedAuth::parse(auth, self.filters.len(), &rule.route.namespace);
                let auth = auth.map_err(|fault| fault.within("externalAuth"))?;
                self.references.push(FilterReference::Auth(auth));
            }
            other => {
                return Err(unknown_type(
                    other,
                    "RequestHeaderModifier, ResponseHeaderModifier, RequestMirror, RequestRedirect, URLRewrite, CORS, \
                     ExternalAuth or ExtensionRef",
                ));
            }
        }
        Ok(())
    }
}

// === impl FilterReference ===

impl FilterReference {
    /// The number of filters in front of it that refer to nothing.
    pub(super) fn at(&self) -> usize {
        match self {
            Self::Auth(auth) => auth.at,
            Self::RouteFilter(extension) => extension.at,
        }
    }
}

/// Separates namespace and name of a filter that was carried into another namespace. No name of an
/// object has it, so no route can write such a reference.
const CARRIED: char = '/';

/// The filter of a child route as it is written in a rule of the parent's namespace.
pub(crate) fn carried_extension(namespace: &str, name: &str) -> String {
    format!("{namespace}{CARRIED}{name}")
}

/// The filter that a reference in a rule of delegation was carried from; `None` for one of the
/// rule's own namespace.
pub(crate) fn carried_from(name: &str) -> Option<ObjectName> {
    let (namespace, name) = name.split_once(CARRIED)?;
    Some(ObjectName::new(namespace, name))
}

/// The RouteFilter that a rule's filter names. It is local to the namespace of the object that has
/// the rule: of a combined one, that is the parent route's.
fn route_filter(filter: &HttpRouteFilter, rule: &RuleId) -> Result<ObjectName, Fault> {
    let Some(to) = &filter.extension_ref else {
        return Err(Fault::unresolved(Reason::InvalidKind, "extensionRef is missing"));
    };
    if Kind::of(&to.group, &to.kind) != Some(Kind::RouteFilter) {
        let message = format!(
            "extensionRef names {} {} of group {:?}, which is no filter this controller knows: refer to a {} of \
             group {}",
            to.kind,
            to.name,
            to.group,
            Kind::RouteFilter,
            Kind::RouteFilter.group()
        );
        return Err(Fault::unresolved(Reason::InvalidKind, message));
    }
    match (carried_from(&to.name), &rule.parent) {
        (Some(name), Some(_)) => Ok(name),
        (Some(_), None) => {
            Err(Fault::unsupported(format!("extensionRef: {:?} is no name of an object", to.name)))
        }
        (None, parent) => {
            let object = parent.as_ref().map_or(&rule.route, |parent| &parent.route);
            Ok(ObjectName::new(object.namespace.clone(), to.name.as_str()))
        }
    }
}

/// "Specifying the same filter multiple times is not supported unless explicitly indicated in the
/// filter."
fn repeated(filters: &[HttpRouteFilter]) -> Option<Fault> {
    // The CRD allows several of the third as well; each has to let the request pass.
    const REPEATABLE: [&str; 3] = ["RequestMirror", "ExtensionRef", "ExternalAuth"];
    let twice = filters.iter().enumerate().find(|(at, filter)| {
        !REPEATABLE.contains(&filter.r#type.as_str())
            && filters.iter().take(*at).any(|earlier| earlier.r#type == filter.r#type)
    });
    twice.map(|(_, filter)| {
        Fault::incompatible(format!("a {} filter may be given only once in a rule", filter.r#type))
    })
}

fn redirect_and_rewrite(filters: &[HttpRouteFilter]) -> Option<Fault> {
    let has = |name: &str| filters.iter().any(|filter| filter.r#type == name);
    (has("RequestRedirect") && has("URLRewrite"))
        .then(|| Fault::incompatible("a rule may have a RequestRedirect or a URLRewrite filter, not both"))
}

pub(super) fn present<'f, T>(payload: Option<&'f T>, field: &str) -> Result<&'f T, Fault> {
    payload.ok_or_else(|| Fault::unsupported(format!("{field} is missing")))
}

// === headers ===

/// A backend that got no `Host`, or two, would refuse the request, or read another than the next
/// one.
fn request_header_edit(modifier: &HeaderModifier) -> Result<HeaderEdit, Fault> {
    let edit = header_edit(modifier)?;
    let written = || edit.set.iter().chain(&edit.add).map(|(name, _)| name);
    written().try_for_each(check_written)?;
    let mut others = edit.add.iter().map(|(name, _)| name).chain(&edit.remove);
    if others.any(|name| *name == header::HOST) {
        let message = "header host is in each request once: set it, or use a URLRewrite with a hostname";
        return Err(Fault::unsupported(message));
    }
    Ok(edit)
}

/// "Only one action for a given header name is permitted" (HTTPHeaderFilter); within a list, the
/// first entry of a name counts.
fn header_edit(modifier: &HeaderModifier) -> Result<HeaderEdit, Fault> {
    let edit = HeaderEdit {
        set: header_values(modifier.set.as_deref())?,
        add: header_values(modifier.add.as_deref())?,
        remove: header_names(modifier.remove.as_deref())?,
    };
    let names = edit.set.iter().chain(&edit.add).map(|(name, _)| name).chain(&edit.remove);
    let mut seen = std::collections::HashSet::new();
    match names.into_iter().find(|name| !seen.insert(*name)) {
        Some(twice) => Err(Fault::incompatible(format!(
            "header {twice} has several actions: give it one of set, add and remove"
        ))),
        None => Ok(edit),
    }
}

fn header_values(values: Option<&[NamedValue]>) -> Result<Vec<(HeaderName, HeaderValue)>, Fault> {
    let mut compiled = Vec::<(HeaderName, HeaderValue)>::new();
    for header in values.unwrap_or_default() {
        let name = header_name(&header.name)?;
        let value = check_length(&header.value, LONGEST_VALUE).and_then(|()| header_value(&header.value));
        let value = value.map_err(|fault| fault.within(name.as_str()))?;
        if compiled.iter().all(|(known, _)| *known != name) {
            compiled.push((name, value));
        }
    }
    Ok(compiled)
}

fn header_names(names: Option<&[String]>) -> Result<Vec<HeaderName>, Fault> {
    let mut compiled = Vec::new();
    for name in names.unwrap_or_default() {
        let name = header_name(name)?;
        if !compiled.contains(&name) {
            compiled.push(name);
        }
    }
    Ok(compiled)
}

/// White space around a value is no part of it (RFC 9110 section 5.5); a backend of HTTP/2 that got
/// some would close the connection that all share.
pub(super) fn header_value(value: &str) -> Result<HeaderValue, Fault> {
    HeaderValue::from_bytes(value.trim_matches([' ', '\t']).as_bytes())
        .map_err(|_| Fault::unsupported("the value has a control character"))
}

// === CORS ===

fn cors(written: &WrittenCors) -> Result<Cors, Fault> {
    let list = |names: &'_ Option<Vec<String>>| names.clone().unwrap_or_default();
    let credentials = match written.allow_credentials {
        Some(true) => Credentials::Allowed,
        Some(false) | None => Credentials::Withheld,
    };
    let mut expose = list(&written.expose_headers);
    // "The gateway cannot use the `*`": it would be the name of a field.
    expose.retain(|name| credentials == Credentials::Withheld || name != "*");
    Ok(Cors {
        origins: allowed_origins(&list(&written.allow_origins))?,
        credentials,
        methods: allowed_names("allowMethods", &list(&written.allow_methods))?,
        headers: allowed_names("allowHeaders", &list(&written.allow_headers))?,
        expose: joined("exposeHeaders", &expose)?,
        max_age: max_age(written.max_age.unwrap_or(5))?,
    })
}

fn allowed_origins(origins: &[String]) -> Result<AllowedOrigins, Fault> {
    match origins {
        [any] if any == "*" => Ok(AllowedOrigins::Any),
        [..] if origins.iter().any(|origin| origin == "*") => Err(beside_wildcard("allowOrigins")),
        [..] => {
            let parse = |origin: &String| OriginPattern::parse(origin).ok_or_else(|| no_origin(origin));
            origins.iter().map(parse).collect::<Result<_, _>>().map(AllowedOrigins::Listed)
        }
    }
}

fn no_origin(origin: &str) -> Fault {
    Fault::unsupported(format!(
        "allowOrigins: {origin:?} is no origin: write http:// or https://, a host name, which may be * or begin with \
         *., and, if need be, a port"
    ))
}

/// Methods and names of header fields have the same form (RFC 9110 section 5.6.2).
fn allowed_names(field: &'static str, names: &[String]) -> Result<AllowedNames, Fault> {
    match names {
        [any] if any == "*" => Ok(AllowedNames::Any),
        [..] if names.iter().any(|name| name == "*") => Err(beside_wildcard(field)),
        [..] => Ok(joined(field, names)?.map_or(AllowedNames::None, AllowedNames::Listed)),
    }
}

fn beside_wildcard(field: &str) -> Fault {
    Fault::incompatible(format!("{field}: * stands for all of them, remove it or the others"))
}

fn joined(field: &str, names: &[String]) -> Result<Option<HeaderValue>, Fault> {
    if let Some(wrong) = names.iter().find(|name| HeaderName::from_bytes(name.as_bytes()).is_err()) {
        return Err(Fault::unsupported(format!("{field}: {wrong:?} is not a name")));
    }
    let value = (!names.is_empty()).then(|| header_value(&names.join(", ")));
    value.transpose().map_err(|fault| fault.within(field))
}

fn max_age(seconds: i32) -> Result<u32, Fault> {
    u32::try_from(seconds)
        .ok()
        .filter(|seconds| *seconds > 0)
        .ok_or_else(|| Fault::unsupported(format!("maxAge: {seconds} is less than 1")))
}

// === mirrors ===

/// "Only one of Fraction or Percent may be specified. If neither field is specified, 100% of
/// requests will be mirrored."
fn mirror(filter: &RequestMirror, namespace: &Arc<str>) -> Result<ParsedMirror, Fault> {
    if let Some(number) = filter.backend_ref.port {
        port(number).map_err(|fault| fault.within("backendRef"))?;
    }
    let share = match (filter.percent, &filter.fraction) {
        (None, None) => Share::ALL,
        (Some(percent), None) => share(percent, 100).map_err(|fault| fault.within("percent"))?,
        (None, Some(fraction)) => {
            let denominator = fraction.denominator.unwrap_or(100);
            share(fraction.numerator, denominator).map_err(|fault| fault.within("fraction"))?
        }
        (Some(_), Some(_)) => {
            return Err(Fault::unsupported("percent and fraction cannot be given together"));
        }
    };
    Ok(ParsedMirror { owner: namespace.clone(), to: filter.backend_ref.clone(), share })
}

fn share(numerator: i32, denominator: i32) -> Result<Share, Fault> {
    let share = u32::try_from(numerator).ok().zip(u32::try_from(denominator).ok());
    share.and_then(|(numerator, denominator)| Share::new(numerator, denominator)).ok_or_else(|| {
        Fault::unsupported(format!("{numerator} of {denominator} is no share: it must be from 0 to all"))
    })
}

// === redirects and rewrites ===

fn redirect(filter: &RequestRedirect) -> Result<Redirect, Fault> {
    Ok(Redirect {
        scheme: filter.scheme.as_deref().map(scheme).transpose()?,
        hostname: filter.hostname.as_deref().map(precise_hostname).transpose()?,
        path: filter.path.as_ref().map(path_rewrite).transpose()?,
        port: filter.port.map(port).transpose()?,
        status: redirect_status(filter.status_code.unwrap_or(302))?,
    })
}

fn rewrite(filter: &UrlRewrite) -> Result<Rewrite, Fault> {
    Ok(Rewrite {
        hostname: filter
            .hostname
            .as_deref()
            .map(|name| precise_hostname(name).and_then(|name| header_value(&name)))
            .transpose()?,
        path: filter.path.as_ref().map(path_rewrite).transpose()?,
    })
}

fn scheme(scheme: &str) -> Result<Scheme, Fault> {
    match scheme {
        "http" => Ok(Scheme::Http),
        "https" => Ok(Scheme::Https),
        _ => Err(Fault::unsupported(format!("scheme {scheme:?} is unknown: use http or https"))),
    }
}

fn redirect_status(status: i64) -> Result<StatusCode, Fault> {
    Ok(match status {
        301 => StatusCode::MOVED_PERMANENTLY,
        302 => StatusCode::FOUND,
        303 => StatusCode::SEE_OTHER,
        307 => StatusCode::TEMPORARY_REDIRECT,
        308 => StatusCode::PERMANENT_REDIRECT,
        _ => {
            let message = format!("statusCode {status} is no redirect: use 301, 302, 303, 307 or 308");
            return Err(Fault::unsupported(message));
        }
    })
}

fn port(port: i32) -> Result<u16, Fault> {
    u16::try_from(port)
        .ok()
        .filter(|port| *port > 0)
        .ok_or_else(|| Fault::unsupported(format!("port {port} is not between 1 and 65535")))
}

fn precise_hostname(name: &str) -> Result<Box<str>, Fault> {
    match HostPattern::parse(name) {
        Ok(HostPattern::Exact(name)) => Ok(name.as_ref().into()),
        Ok(_) => Err(Fault::unsupported(format!("hostname {name:?} must not have a wildcard here"))),
        Err(error) => Err(Fault::unsupported(error.to_string())),
    }
}

fn path_rewrite(modifier: &PathModifier) -> Result<PathRewrite, Fault> {
    match modifier.r#type.as_str() {
        "ReplaceFullPath" => {
            let path = present(modifier.replace_full_path.as_ref(), "path.replaceFullPath")?;
            rewritten(path).map(PathRewrite::Full)
        }
        "ReplacePrefixMatch" => {
            let path = present(modifier.replace_prefix_match.as_ref(), "path.replacePrefixMatch")?;
            rewritten(path).map(PathRewrite::Prefix)
        }
        other => Err(unknown_type(other, "ReplaceFullPath or ReplacePrefixMatch").within("path")),
    }
}

fn rewritten(path: &str) -> Result<Box<str>, Fault> {
    check_length(path, LONGEST_PATH)?;
    if !path.is_empty() && !path.starts_with('/') {
        return Err(Fault::unsupported(format!("path {path:?} must start with /")));
    }
    let fine = path.bytes().all(|b| (b'!'..=b'~').contains(&b) && b != b'#');
    fine.then(|| path.into()).ok_or_else(|| {
        Fault::unsupported(format!("path {path:?} has a character that must be percent-encoded"))
    })
}

#[cfg(test)]
#[path = "filter_tests.rs"]
mod tests;
