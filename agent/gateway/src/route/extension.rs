//! RouteFilters: our own filters, which routes of their namespace refer to. Compiled once, however
//! many routes do. Nothing here knows who refers to what.

use std::collections::HashSet;
use std::sync::Arc;

use http::{HeaderName, StatusCode, header};
use portcullis_api::types::routefilters::{
    RouteFilter, RouteFilterDirectResponse, RouteFilterPathRewrite, RouteFilterSpec,
};
use portcullis_api::types::shared::{HeaderTemplates as Headers, HeaderValue as NamedValue};
use portcullis_model::{
    DirectResponse, HeaderTemplates, PathPart, PathSubstitution, Template, TemplatePart, Variable,
};
use regex::bytes::Regex;

use super::filter::{header_value, present};
use super::matches::{check_length, check_path, unknown_type};
use super::pattern;
use crate::Fault;
use crate::field_names::{check_written, header_name};

/// A RouteFilter as rules have it.
#[derive(Clone, Debug, PartialEq)]
pub enum Extension {
    Path(Arc<PathSubstitution>),
    Response(Arc<DirectResponse>),
    RequestHeaders(Arc<HeaderTemplates>),
    ResponseHeaders(Arc<HeaderTemplates>),
}

/// The same, with the bytes that its regular expression counts as.
pub(crate) struct CompiledFilter {
    pub(crate) extension: Extension,
    pub(crate) bytes: usize,
}

/// The schema says so, too.
const LONGEST_PATTERN: usize = 1024;
const LONGEST_SUBSTITUTION: usize = 1024;
const LONGEST_BODY: usize = 4096;
const LONGEST_TYPE: usize = 256;
const LONGEST_TEMPLATE: usize = 4096;
const MOST_FIELDS: usize = 16;

const TEXT: &str = "text/plain; charset=utf-8";

/// A part of a text with `$`.
enum Piece<'t> {
    Text(&'t str),
    /// The name in `${name}`, or the number in `$1`.
    Named(&'t str),
}

/// Compiles a filter.
///
/// # Errors
/// The fault that its status reports.
pub(crate) fn compile(filter: &RouteFilter) -> Result<CompiledFilter, Fault> {
    let spec = &filter.spec;
    only_one(spec)?;
    let extension = match spec.r#type.as_str() {
        "PathRewrite" => {
            let rewrite = present(spec.path_rewrite.as_ref(), "pathRewrite")?;
            return path_rewrite(rewrite).map_err(|fault| fault.within("pathRewrite"));
        }
        "DirectResponse" => {
            let response = present(spec.direct_response.as_ref(), "directResponse")?;
            let response = direct_response(response).map_err(|fault| fault.within("directResponse"))?;
            Extension::Response(Arc::new(response))
        }
        "RequestHeaders" => {
            let headers = present(spec.request_headers.as_ref(), "requestHeaders")?;
            let templates = templates(headers).map_err(|fault| fault.within("requestHeaders"))?;
            // What a client chose of it might name another site.
            if templates.names().any(|name| name == header::HOST) {
                let message = "requestHeaders: header host names the site: use a URLRewrite with a hostname";
                return Err(Fault::unsupported(message));
            }
            let written = templates.names().try_for_each(check_written);
            written.map_err(|fault| fault.within("requestHeaders"))?;
            Extension::RequestHeaders(Arc::new(templates))
        }
        "ResponseHeaders" => {
            let headers = present(spec.response_headers.as_ref(), "responseHeaders")?;
            let templates = templates(headers).map_err(|fault| fault.within("responseHeaders"))?;
            Extension::ResponseHeaders(Arc::new(templates))
        }
        other => {
            return Err(unknown_type(
                other,
                "PathRewrite, DirectResponse, RequestHeaders or ResponseHeaders",
            ));
        }
    };
    Ok(CompiledFilter { extension, bytes: 0 })
}

fn only_one(spec: &RouteFilterSpec) -> Result<(), Fault> {
    let RouteFilterSpec { direct_response, path_rewrite, request_headers, response_headers, .. } = spec;
    let given = [
        direct_response.is_some(),
        path_rewrite.is_some(),
        request_headers.is_some(),
        response_headers.is_some(),
    ];
    let count = given.into_iter().filter(|given| *given).count();
    (count < 2).then_some(()).ok_or_else(|| Fault::unsupported("only the field of its type may be given"))
}

// === paths ===

fn path_rewrite(rewrite: &RouteFilterPathRewrite) -> Result<CompiledFilter, Fault> {
    let RouteFilterPathRewrite { pattern, substitution } = rewrite;
    let (regex, bytes) = check_length(pattern, LONGEST_PATTERN)
        .and_then(|()| pattern::whole_path(pattern))
        .map_err(|fault| fault.within("pattern"))?;
    let parts = check_length(substitution, LONGEST_SUBSTITUTION)
        .and_then(|()| path_parts(substitution, &regex))
        .map_err(|fault| fault.within("substitution"))?;
    let compiled = PathSubstitution::new(regex, parts, [pattern, substitution]);
    Ok(CompiledFilter { extension: Extension::Path(Arc::new(compiled)), bytes })
}

/// The parts of a substitution. The text of groups is known for each request only; the rest must be
/// a path, as that of a match.
fn path_parts(substitution: &str, regex: &Regex) -> Result<Vec<PathPart>, Fault> {
    let mut parts = Vec::new();
    let mut shown = String::new();
    for piece in pieces(substitution) {
        match piece? {
            Piece::Text(text) => {
                shown.push_str(text);
                match parts.last_mut() {
                    Some(PathPart::Text(last)) => *last = format!("{last}{text}").into(),
                    _ => parts.push(PathPart::Text(text.into())),
                }
            }
            Piece::Named(name) => {
                let group = group(name, regex)?;
                shown.push_str(if shown.is_empty() { "/$" } else { "$" });
                shown.push_str(&group.to_string());
                parts.push(PathPart::Group(group));
            }
        }
    }
    check_path(&shown).map(|()| parts)
}

fn group(name: &str, regex: &Regex) -> Result<usize, Fault> {
    let last = regex.captures_len() - 1;
    let group = match name.parse::<usize>() {
        Ok(number) => Some(number).filter(|number| *number <= last),
        Err(_) => regex.capture_names().position(|known| known == Some(name)),
    };
    group.ok_or_else(|| {
        let names: Vec<_> = regex.capture_names().flatten().map(|name| format!("{{{name}}}")).collect();
        let names = if names.is_empty() { String::new() } else { format!(", and ${}", names.join(", $")) };
        Fault::unsupported(format!("the pattern has no group {name:?}; there are $0 to ${last}{names}"))
    })
}

// === responses ===

fn direct_response(response: &RouteFilterDirectResponse) -> Result<DirectResponse, Fault> {
    let code = response.status_code;
    let status = u16::try_from(code).ok().filter(|code| (200..600).contains(code));
    let status = status.and_then(|code| StatusCode::from_u16(code).ok());
    let status =
        status.ok_or_else(|| Fault::unsupported(format!("statusCode is {code}: write 200 to 599")))?;
    let body = response.body.as_deref().unwrap_or_default();
    check_length(body, LONGEST_BODY).map_err(|fault| fault.within("body"))?;
    if matches!(code, 204 | 205 | 304) && !body.is_empty() {
        return Err(Fault::unsupported(format!("a response of status {code} has no body: remove body")));
    }
    let content_type = response.content_type.as_deref().or((!body.is_empty()).then_some(TEXT));
    let content_type = content_type
        .map(|text| check_length(text, LONGEST_TYPE).and_then(|()| header_value(text)))
        .transpose()
        .map_err(|fault| fault.within("contentType"))?;
    Ok(DirectResponse { status, content_type, body: body.into() })
}

// === header fields ===

fn templates(headers: &Headers) -> Result<HeaderTemplates, Fault> {
    let fields = |list: &str, fields: Option<&[NamedValue]>| {
        fields_of(fields.unwrap_or_default()).map_err(|fault| fault.within(list))
    };
    let set = fields("set", headers.set.as_deref())?;
    let add = fields("add", headers.add.as_deref())?;
    let templates = HeaderTemplates { set, add };
    let mut seen = HashSet::new();
    if let Some(twice) = templates.names().find(|name| !seen.insert(*name)) {
        return Err(Fault::unsupported(format!(
            "header {twice} is given more than once: set it, or add to it"
        )));
    }
    if seen.is_empty() {
        return Err(Fault::unsupported("neither set nor add names a header"));
    }
    Ok(templates)
}

fn fields_of(fields: &[NamedValue]) -> Result<Box<[(HeaderName, Template)]>, Fault> {
    if fields.len() > MOST_FIELDS {
        return Err(Fault::unsupported(format!(
            "{} headers; at most {MOST_FIELDS} are allowed",
            fields.len()
        )));
    }
    let field = |field: &NamedValue| {
        let name = header_name(&field.name)?;
        let template = check_length(&field.value, LONGEST_TEMPLATE).and_then(|()| template(&field.value));
        template.map_err(|fault| fault.within(name.as_str())).map(|template| (name, template))
    };
    fields.iter().map(field).collect()
}

fn template(text: &str) -> Result<Template, Fault> {
    header_value(text)?;
    let parts = pieces(text).map(|piece| match piece? {
        Piece::Text(text) => Ok(TemplatePart::Text(text.into())),
        Piece::Named(name) => {
            Variable::named(name).map(TemplatePart::Variable).ok_or_else(|| no_variable(name))
        }
    });
    parts.collect::<Result<_, _>>().map(Template::new)
}

/// The name is not told: it may be a part of a credential.
fn no_variable(name: &str) -> Fault {
    if name.starts_with("claim.") {
        return Fault::unsupported(
            "claims cannot be filled in: RouteFilters know none of verified tokens; use another variable",
        );
    }
    let known: Vec<_> = Variable::ALL.iter().map(|variable| variable.name()).collect();
    Fault::unsupported(format!("there is no such variable; there are {}", known.join(", ")))
}

// === texts with $ ===

/// `$1`, `${name}`, and `$$` for a dollar sign.
fn pieces(text: &str) -> impl Iterator<Item = Result<Piece<'_>, Fault>> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let Some(behind) = rest.strip_prefix('$') else {
            let (piece, behind) = rest.split_at(rest.find('$').unwrap_or(rest.len()));
            rest = behind;
            return Some(Ok(Piece::Text(piece)));
        };
        if let Some(behind) = behind.strip_prefix('$') {
            rest = behind;
            return Some(Ok(Piece::Text("$")));
        }
        let digits = behind.len() - behind.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let named = match behind.strip_prefix('{').and_then(|name| name.split_once('}')) {
            Some((name, behind)) => Some((name, behind)),
            None if digits > 0 => Some(behind.split_at(digits)),
            None => None,
        };
        let Some((name, behind)) = named.filter(|(name, _)| !name.is_empty()) else {
            rest = "";
            let message = "behind $ comes a number, a name between braces, or another $ for a dollar sign";
            return Some(Err(Fault::unsupported(message)));
        };
        rest = behind;
        Some(Ok(Piece::Named(name)))
    })
}

#[cfg(test)]
#[path = "extension_tests.rs"]
mod tests;
