//! Actions of filters on header fields: of modifiers, and of RouteFilters. A child's comes after
//! its parent's, and would undo it: two on one field are a conflict. Nothing here knows how filters
//! are combined.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use portcullis_api::Kind;
use portcullis_api::types::shared::{HeaderModifier, HeaderValue, HttpRouteFilter, LocalObjectReference};
use portcullis_model::origin::is_alike;
use portcullis_model::{HeaderTemplates, ObjectName};

use crate::route::{Draft, Extension, ParsedRoute, RuleFilters, carried_from};

/// The RouteFilters that a parent and its child refer to; `None` for one that edits no fields, or
/// is not there.
pub(super) type RouteFilters = BTreeMap<ObjectName, Option<Extension>>;

/// The fields that filters of a combined rule act on; `namespace` is the parent's.
#[derive(Clone, Copy)]
pub(super) struct Fields<'f> {
    pub(super) namespace: &'f Arc<str>,
    pub(super) route_filters: &'f RouteFilters,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Message {
    Request,
    Response,
}

/// One action on one field.
struct Action {
    message: Message,
    /// `set`, `add` or `remove`.
    list: &'static str,
    name: String,
    /// As a RouteFilter would have it, where a dollar sign is two. Removals have none.
    value: String,
    /// As its owner knows it: no value, which may be a credential.
    shown: String,
}

// === impl Fields ===

impl<'f> Fields<'f> {
    /// An action of ours, and one of theirs by which it would be undone. Setting the same value
    /// twice is one action.
    pub(super) fn undone(
        self,
        ours: &[HttpRouteFilter],
        theirs: &[HttpRouteFilter],
    ) -> Option<(String, String)> {
        let ours = self.actions(ours);
        self.actions(theirs).into_iter().find_map(|theirs| {
            let undone = ours.iter().find(|ours| ours.is_undone_by(&theirs))?;
            Some((undone.shown.clone(), theirs.shown))
        })
    }

    fn actions(self, filters: &[HttpRouteFilter]) -> Vec<Action> {
        let mut actions = Vec::new();
        for filter in filters {
            let request = filter.request_header_modifier.iter().map(|it| (Message::Request, it));
            let response = filter.response_header_modifier.iter().map(|it| (Message::Response, it));
            for (message, modifier) in request.chain(response) {
                actions.extend(of_modifier(message, modifier));
            }
            let Some(extension) = &filter.extension_ref else { continue };
            match self.route_filter(extension) {
                Some(Extension::RequestHeaders(templates)) => {
                    actions.extend(of_templates(Message::Request, templates));
                }
                Some(Extension::ResponseHeaders(templates)) => {
                    actions.extend(of_templates(Message::Response, templates));
                }
                _ => {}
            }
        }
        actions
    }

    fn route_filter(self, reference: &LocalObjectReference) -> Option<&'f Extension> {
        if Kind::of(&reference.group, &reference.kind) != Some(Kind::RouteFilter) {
            return None;
        }
        let own = || ObjectName::new(self.namespace.clone(), reference.name.as_str());
        self.route_filters.get(&carried_from(&reference.name).unwrap_or_else(own))?.as_ref()
    }
}

/// Every action of a modifier with the name of its list; removals have no value.
pub(super) fn actions(edit: &HeaderModifier) -> impl Iterator<Item = (HeaderValue, &'static str)> + '_ {
    let set = edit.set.iter().flatten().map(|header| (header.clone(), "set"));
    let add = edit.add.iter().flatten().map(|header| (header.clone(), "add"));
    let remove = edit.remove.iter().flatten();
    set.chain(add)
        .chain(remove.map(|name| (HeaderValue { name: name.clone(), value: String::new() }, "remove")))
}

fn of_modifier(message: Message, modifier: &HeaderModifier) -> impl Iterator<Item = Action> + '_ {
    actions(modifier).map(move |(header, list)| Action {
        message,
        list,
        name: header.name.to_ascii_lowercase(),
        value: header.value.replace('$', "$$"),
        shown: format!("{list} {}", header.name),
    })
}

fn of_templates(message: Message, templates: &HeaderTemplates) -> impl Iterator<Item = Action> + '_ {
    let set = templates.set.iter().map(|field| ("set", field));
    let fields = set.chain(templates.add.iter().map(|field| ("add", field)));
    fields.map(move |(list, (name, template))| Action {
        message,
        list,
        name: name.as_str().to_owned(),
        value: template.to_string(),
        shown: format!("{list} {name} of a RouteFilter"),
    })
}

// === impl Action ===

impl Action {
    fn is_undone_by(&self, later: &Self) -> bool {
        let is_same = self.list == later.list
            && match self.list {
                "add" => false,
                "remove" => true,
                _ => self.name == later.name && self.value == later.value,
            };
        self.message == later.message && self.is_about_field_of(later) && !is_same
    }

    /// An action on a request's field is about all spellings of it that applications read alike.
    fn is_about_field_of(&self, other: &Self) -> bool {
        match self.message {
            Message::Request => is_alike(&self.name, &other.name),
            Message::Response => self.name == other.name,
        }
    }
}

// === names of RouteFilters ===

/// Those that the rules of a parent refer to, by filters of their own or of references to children.
pub(super) fn of_parent(namespace: &Arc<str>, drafts: &[Draft]) -> BTreeSet<ObjectName> {
    let filters = drafts.iter().flat_map(|draft| {
        let of_references = draft.backend_refs.iter().flat_map(|to| to.filters.iter().flatten());
        draft.filters.iter().chain(of_references)
    });
    let extensions = filters.filter_map(|filter| filter.extension_ref.as_ref());
    let route_filters = extensions.filter(|to| Kind::of(&to.group, &to.kind) == Some(Kind::RouteFilter));
    route_filters.map(|to| ObjectName::new(namespace.clone(), to.name.as_str())).collect()
}

/// Those that the rules of a child refer to, or their backends.
pub(super) fn of_child(child: &ParsedRoute) -> impl Iterator<Item = &ObjectName> {
    child.rules.iter().flat_map(|rule| {
        let of_backends = rule.backend_refs.iter().map(|backend| &backend.filters);
        std::iter::once(&rule.filters).chain(of_backends).flat_map(RuleFilters::route_filters)
    })
}
