//! The steps of an API server before it stores an object, in its order: drop what the schema does
//! not know, fill in defaults, validate, and evaluate rules if all is well until then. Messages are
//! worded as the API server words them.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

use serde_json::{Map, Value};

use super::rules::Scope;
use super::{ListType, Schema, Type};
use crate::name::is_plain_key;

/// Advice where a boolean stands for a string: in YAML, these words need quotes.
pub(crate) const QUOTE_WORDS: &str = ": quote it (yes, no, on, off, y and n are booleans, too)";

/// Takes the place of values that are not repeated.
pub const LEFT_OUT: &str = "(left out)";

/// Fields with values for header fields and parameters below them, whatever shape a mistake gives
/// them.
const WITH_CREDENTIALS: [&str; 8] = [
    "set",
    "add",
    "headers",
    "queryParams",
    "requestHeaderModifier",
    "responseHeaderModifier",
    "requestHeaders",
    "responseHeaders",
];

/// The result for an object. Violations refuse it; unknown fields were dropped.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Review {
    pub violations: Vec<Violation>,
    /// API paths.
    pub unknown_fields: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// `spec.rules[0].matches[1].path.value`
    pub path: String,
    pub message: String,
}

/// A place in the object; rendered only when there is something to say.
struct Path<'a> {
    parent: Option<&'a Path<'a>>,
    step: Step<'a>,
}

enum Step<'a> {
    Root,
    Field(&'a str),
    Key(&'a str),
    Index(usize),
}

impl Schema {
    /// Prunes and defaults `object` in place and says what is wrong with it.
    pub fn review(&self, object: &mut Value) -> Review {
        let mut review = Review::default();
        let root = Path { parent: None, step: Step::Root };
        review.visit(self, object, &root);
        // Rules are written for objects of the right shape and size.
        if review.violations.is_empty() {
            review.evaluate(self, object, &root);
        }
        review
    }

    fn is_met_by(&self, value: &Value) -> bool {
        let mut review = Review::default();
        review.visit(self, &mut value.clone(), &Path { parent: None, step: Step::Root });
        review.violations.is_empty()
    }
}

// === impl Review ===

impl Review {
    fn visit(&mut self, schema: &Schema, value: &mut Value, at: &Path<'_>) {
        if !is_of_type(schema, value) {
            let is_unquoted = value.is_boolean() && schema.kind == Some(Type::String);
            let advice = if is_unquoted { QUOTE_WORDS } else { "" };
            let why = format!("must be of type {}{advice}", type_name(schema));
            // Of a list, or of a block without a blank behind a colon: a header field, maybe.
            if has_fields(schema) && value.as_str().is_some_and(may_be_field) {
                return self.violation(at, format!("Invalid value: {LEFT_OUT}: {why}"));
            }
            return self.refuse(at, value, &why);
        }
        match value {
            Value::Object(fields) => self.visit_object(schema, fields, at),
            Value::Array(items) => self.visit_list(schema, items, at),
            Value::String(text) => self.check_text(schema, text, at),
            Value::Number(number) => self.check_number(schema, number.as_f64().unwrap_or(f64::NAN), at),
            Value::Bool(_) | Value::Null => {}
        }
        self.check_allowed(schema, value, at);
        self.check_combinations(schema, value, at);
    }

    fn evaluate(&mut self, schema: &Schema, value: &Value, at: &Path<'_>) {
        if !schema.rules.is_empty() {
            let scope = Scope::of(schema, value);
            for message in schema.rules.iter().filter_map(|rule| rule.broken_by(&scope)) {
                self.refuse(at, value, &message);
            }
        }
        match value {
            Value::Object(fields) => {
                for (name, value) in fields {
                    match (schema.properties.get(name), &schema.additional_properties) {
                        (Some(known), _) => self.evaluate(known, value, &at.field(name)),
                        (None, Some(any)) => self.evaluate(any, value, &at.key(name)),
                        (None, None) => {}
                    }
                }
            }
            Value::Array(items) => {
                for (item_schema, (index, item)) in schema
                    .items
                    .iter()
                    .flat_map(|schema| items.iter().enumerate().map(move |it| (schema, it)))
                {
                    self.evaluate(item_schema, item, &at.index(index));
                }
            }
            _ => {}
        }
    }

    fn visit_object(&mut self, schema: &Schema, fields: &mut Map<String, Value>, at: &Path<'_>) {
        drop_nulls(schema, fields);
        self.prune(schema, fields, at);
        fill_defaults(schema, fields);
        for name in schema.required.iter().filter(|name| !fields.contains_key(*name)) {
            self.violation(&at.field(name), "Required value".to_owned());
        }
        let count = fields.len();
        self.check_size(schema.min_properties, schema.max_properties, count, "properties", at);
        for (name, value) in fields.iter_mut() {
            match (schema.properties.get(name), &schema.additional_properties) {
                (Some(known), _) => self.visit(known, value, &at.field(name)),
                (None, Some(any)) => self.visit(any, value, &at.key(name)),
                (None, None) => {}
            }
        }
    }

    /// A schema without properties (as under `not` or `anyOf`) says nothing about which fields
    /// exist.
    fn prune(&mut self, schema: &Schema, fields: &mut Map<String, Value>, at: &Path<'_>) {
        let open = schema.preserve_unknown_fields || schema.additional_properties.is_some();
        if open || schema.kind.is_none() {
            return;
        }
        fields.retain(|name, _| {
            let known = schema.properties.contains_key(name);
            if !known {
                let name = if is_plain_key(name) { name } else { LEFT_OUT };
                self.unknown_fields.push(at.field(name).to_string());
            }
            known
        });
    }

    fn visit_list(&mut self, schema: &Schema, items: &mut [Value], at: &Path<'_>) {
        self.check_size(schema.min_items, schema.max_items, items.len(), "items", at);
        if let Some(item_schema) = &schema.items {
            for (index, item) in items.iter_mut().enumerate() {
                self.visit(item_schema, item, &at.index(index));
            }
        }
        self.check_duplicates(schema, items, at);
    }

    fn check_duplicates(&mut self, schema: &Schema, items: &[Value], at: &Path<'_>) {
        let identities: Vec<_> = match schema.list_type {
            Some(ListType::Map) => items.iter().map(|item| identity(schema, item)).collect(),
            Some(ListType::Set) => items.to_vec(),
            Some(ListType::Atomic) | None => return,
        };
        for (index, identity) in identities.iter().enumerate() {
            if identities[..index].contains(identity) {
                let is_shown = !at.has_credentials() || is_of_words(identity);
                let shown = if is_shown { identity.to_string() } else { LEFT_OUT.to_owned() };
                self.violation(&at.index(index), format!("Duplicate value: {shown}"));
            }
        }
    }

    fn check_text(&mut self, schema: &Schema, text: &str, at: &Path<'_>) {
        let length = text.chars().count();
        if schema.max_length.is_some_and(|max| length > max) {
            let max = schema.max_length.unwrap_or_default();
            self.violation(at, format!("Too long: {length} characters, at most {max} are allowed"));
        } else if schema.min_length.is_some_and(|min| length < min) {
            let min = schema.min_length.unwrap_or_default();
            self.refuse_text(at, text, &format!("should be at least {min} chars long"));
        } else if let Some(pattern) = schema.pattern.as_ref().filter(|pattern| !pattern.permits(text)) {
            self.refuse_text(at, text, &format!("should match '{}'", pattern.text));
        } else if let Some(format) = schema.format.as_deref().filter(|format| !has_format(format, text)) {
            self.refuse_text(at, text, &format!("must be of format {format}"));
        }
    }

    fn check_number(&mut self, schema: &Schema, number: f64, at: &Path<'_>) {
        let shown = if at.has_credentials() { LEFT_OUT.to_owned() } else { number.to_string() };
        if let Some(min) = schema.minimum.filter(|min| number < *min) {
            self.violation(at, format!("Invalid value: {shown}: should be greater than or equal to {min}"));
        }
        if let Some(max) = schema.maximum.filter(|max| number > *max) {
            self.violation(at, format!("Invalid value: {shown}: should be less than or equal to {max}"));
        }
    }

    fn check_size(
        &mut self,
        min: Option<usize>,
        max: Option<usize>,
        count: usize,
        what: &str,
        at: &Path<'_>,
    ) {
        if let Some(max) = max.filter(|max| count > *max) {
            self.violation(at, format!("Too many: {count}: must have at most {max} {what}"));
        }
        if let Some(min) = min.filter(|min| count < *min) {
            self.violation(at, format!("Invalid value: should have at least {min} {what}, has {count}"));
        }
    }

    fn check_allowed(&mut self, schema: &Schema, value: &Value, at: &Path<'_>) {
        if schema.allowed.is_empty() || schema.allowed.contains(value) {
            return;
        }
        let supported = schema.allowed.iter().map(Value::to_string).collect::<Vec<_>>().join(", ");
        self.violation(
            at,
            format!("Unsupported value: {}: supported values: {supported}", excerpt(value, at)),
        );
    }

    fn check_combinations(&mut self, schema: &Schema, value: &Value, at: &Path<'_>) {
        let met = |schemas: &[Schema]| schemas.iter().filter(|schema| schema.is_met_by(value)).count();
        match met(&schema.one_of) {
            1 => {}
            0 if !schema.one_of.is_empty() => match meant(&schema.one_of, value, at) {
                Some(violations) => self.violations.extend(violations),
                None => {
                    self.refuse(at, value, "must be as one of several alternatives, and is as none (oneOf)")
                }
            },
            0 => {}
            _ => self.refuse(at, value, "must be as one of several alternatives, and is as more (oneOf)"),
        }
        if !schema.any_of.is_empty() && met(&schema.any_of) == 0 {
            let formats: Vec<_> =
                schema.any_of.iter().filter_map(|schema| schema.format.as_deref()).collect();
            if formats.len() == schema.any_of.len() {
                self.refuse(at, value, &format!("must be of format {}", formats.join(" or ")));
            } else {
                self.refuse(at, value, "must be as one of several alternatives, and is as none (anyOf)");
            }
        }
        if schema.not.as_ref().is_some_and(|not| not.is_met_by(value)) {
            self.refuse(at, value, "must not validate the schema (not)");
        }
    }

    fn refuse(&mut self, at: &Path<'_>, value: &Value, why: &str) {
        self.violation(at, format!("Invalid value: {}: {why}", excerpt(value, at)));
    }

    fn refuse_text(&mut self, at: &Path<'_>, text: &str, why: &str) {
        self.refuse(at, &Value::from(text), why);
    }

    fn violation(&mut self, at: &Path<'_>, message: String) {
        self.violations.push(Violation { path: at.to_string(), message });
    }
}

/// The violations of the alternative that the value is meant to be: one whose fixed values it has.
fn meant(alternatives: &[Schema], value: &Value, at: &Path<'_>) -> Option<Vec<Violation>> {
    let violations = |schema: &Schema| {
        let mut review = Review::default();
        review.visit(schema, &mut value.clone(), at);
        review.violations
    };
    let is_another = |violation: &Violation| {
        violation.message.starts_with("Unsupported value") || violation.message.ends_with("(not)")
    };
    alternatives.iter().map(violations).find(|violations| !violations.iter().any(is_another))
}

/// "Nulls for fields that don't have the nullable flag will be pruned before defaulting happens."
fn drop_nulls(schema: &Schema, fields: &mut Map<String, Value>) {
    fields.retain(|name, value| {
        !value.is_null() || schema.properties.get(name).is_none_or(|property| property.nullable)
    });
}

fn fill_defaults(schema: &Schema, fields: &mut Map<String, Value>) {
    for (name, property) in &schema.properties {
        if let Some(default) = property.default.as_ref().filter(|_| !fields.contains_key(name)) {
            fields.insert(name.clone(), default.clone());
        }
    }
}

fn is_of_type(schema: &Schema, value: &Value) -> bool {
    match (schema.kind, value) {
        (_, Value::Null) => schema.nullable || schema.kind.is_none(),
        (None, _)
        | (Some(Type::Object), Value::Object(_))
        | (Some(Type::Array), Value::Array(_))
        | (Some(Type::String), Value::String(_))
        | (Some(Type::Boolean), Value::Bool(_))
        | (Some(Type::Number), Value::Number(_)) => true,
        (Some(Type::Integer), Value::Number(number)) => number.is_i64() || number.is_u64(),
        _ => false,
    }
}

fn has_fields(schema: &Schema) -> bool {
    matches!(schema.kind, Some(Type::Object | Type::Array))
}

fn type_name(schema: &Schema) -> &'static str {
    match schema.kind {
        Some(Type::Object) => "object",
        Some(Type::Array) => "array",
        Some(Type::String) => "string",
        Some(Type::Integer) => "integer",
        Some(Type::Number) => "number",
        Some(Type::Boolean) => "boolean",
        None => "any",
    }
}

/// Formats the Gateway API's CRDs use; others are left to the typed parser.
fn has_format(format: &str, text: &str) -> bool {
    match format {
        "ipv4" => text.parse::<Ipv4Addr>().is_ok(),
        "ipv6" => text.parse::<Ipv6Addr>().is_ok(),
        _ => true,
    }
}

fn identity(schema: &Schema, item: &Value) -> Value {
    let field = |key: &String| item.get(key).map(|value| (key.clone(), value.clone()));
    schema.list_map_keys.iter().filter_map(field).collect::<Map<_, _>>().into()
}

/// Long values are cut: a message is for people, in logs and on pages of others than those who
/// wrote the value, too. What is written of header fields and parameters is left out, as there are
/// credentials among it.
fn excerpt(value: &Value, at: &Path<'_>) -> String {
    if at.has_credentials() {
        return LEFT_OUT.to_owned();
    }
    let mut value = value.clone();
    leave_values_out(&mut value);
    cut(value.to_string())
}

/// Text in quotes that is cut has its closing quote: what is read next is not part of it.
fn cut(json: String) -> String {
    const MAX: usize = 120;
    let Some((end, _)) = json.char_indices().nth(MAX) else { return json };
    let (mut is_quoted, mut is_escaped) = (false, false);
    for c in json[..end].chars() {
        is_quoted ^= c == '"' && !is_escaped;
        is_escaped = c == '\\' && !is_escaped;
    }
    let whole = &json[..end - usize::from(is_escaped)];
    let quote = if is_quoted { "\"" } else { "" };
    format!("{whole}{quote}…")
}

/// True of names, and of text that cannot be a header field with its value.
fn is_word(text: &str) -> bool {
    text.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_')
}

/// True of text that may be a header field with its value, or a value in several words.
fn may_be_field(text: &str) -> bool {
    text.contains(|c: char| c == ':' || c.is_whitespace())
}

fn is_of_words(identity: &Value) -> bool {
    match identity {
        Value::String(text) => is_word(text),
        Value::Object(fields) => fields.values().all(is_of_words),
        Value::Array(_) | Value::Number(_) | Value::Bool(_) | Value::Null => false,
    }
}

fn leave_values_out(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            if fields.contains_key("name")
                && let Some(value) = fields.get_mut("value")
            {
                *value = LEFT_OUT.into();
            }
            for (name, value) in fields.iter_mut() {
                match WITH_CREDENTIALS.contains(&name.as_str()) {
                    true => *value = LEFT_OUT.into(),
                    false if name == "filters" => leave_filters_out(value),
                    false => leave_values_out(value),
                }
            }
            let count = fields.len();
            fields.retain(|name, _| is_plain_key(name));
            if fields.len() < count {
                fields.insert(LEFT_OUT.to_owned(), LEFT_OUT.into());
            }
        }
        Value::Array(items) => items.iter_mut().for_each(leave_values_out),
        Value::String(text) => *text = without_password(&without_query(text)),
        Value::Number(_) | Value::Bool(_) | Value::Null => {}
    }
}

/// A path or URL without what follows it, which may have tokens.
fn without_query(text: &str) -> String {
    match text.split_once('?') {
        Some((path, query)) if path.contains('/') || query.contains('=') => format!("{path}?{LEFT_OUT}"),
        _ => text.to_owned(),
    }
}

/// A URL or origin without the user and password before its host.
fn without_password(text: &str) -> String {
    let begin = text.find("://").map_or(0, |at| at + "://".len());
    let (scheme, rest) = text.split_at(begin);
    let authority = rest.split('/').next().unwrap_or_default();
    match authority.rsplit_once('@') {
        Some((user, _)) => format!("{scheme}{LEFT_OUT}{}", &rest[user.len()..]),
        None => text.to_owned(),
    }
}

/// Filters that are text are none, and may be header fields.
fn leave_filters_out(value: &mut Value) {
    match value {
        Value::Array(filters) => filters.iter_mut().for_each(leave_filters_out),
        Value::Object(_) => leave_values_out(value),
        Value::String(_) | Value::Number(_) => *value = LEFT_OUT.into(),
        Value::Bool(_) | Value::Null => {}
    }
}

// === impl Path ===

impl<'a> Path<'a> {
    fn field(&'a self, name: &'a str) -> Self {
        Self { parent: Some(self), step: Step::Field(name) }
    }

    fn key(&'a self, name: &'a str) -> Self {
        Self { parent: Some(self), step: Step::Key(name) }
    }

    fn index(&'a self, index: usize) -> Self {
        Self { parent: Some(self), step: Step::Index(index) }
    }

    fn is_root(&self) -> bool {
        self.parent.is_none()
    }

    /// True at and below fields that have values for header fields and parameters.
    fn has_credentials(&self) -> bool {
        matches!(self.step, Step::Field(name) if WITH_CREDENTIALS.contains(&name))
            || self.parent.is_some_and(Path::has_credentials)
    }
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.parent.map_or(Ok(()), |parent| parent.fmt(f))?;
        match self.step {
            Step::Root => Ok(()),
            Step::Field(name) if self.parent.is_some_and(Path::is_root) => f.write_str(name),
            Step::Field(name) => write!(f, ".{name}"),
            Step::Key(name) => write!(f, "[{name}]"),
            Step::Index(index) => write!(f, "[{index}]"),
        }
    }
}

// === impl Violation ===

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.message)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::Schemas;
    use super::*;

    /// `s3cret` stands for credentials, in every shape that filters and matches may be given.
    #[test]
    fn no_shape_of_a_field_is_told_of() {
        let rule = |part: &str, value: Value| json!({part: [value]});
        let filter =
            |kind: &str, value: Value| rule("filters", json!({"type": "RequestHeaderModifier", kind: value}));
        let request = |value: Value| filter("requestHeaderModifier", value);
        for rule in [
            request(json!("authorization: s3cret")),
            request(json!({"set": "authorization: s3cret"})),
            request(json!({"set": ["authorization: s3cret"]})),
            request(json!({"set": [{"name": "authorization: s3cret", "value": "a"}]})),
            request(json!({"set": [{"name": "a", "authorization: s3cret": 1}]})),
            request(json!({"add": {"authorization": "s3cret"}})),
            request(json!({"add": [
                {"name": "authorization: s3cret", "value": "a"}, {"name": "authorization: s3cret", "value": "b"}]})),
            request(json!({"authorization: s3cret": 1, "set": 1})),
            request(json!({"remove": ["authorization: s3cret", "authorization: s3cret"]})),
            filter("responseHeaderModifier", json!({"set": {"cookie": "s3cret"}})),
            json!({"filters": {"requestHeaderModifier": {"set": {"authorization": "s3cret"}}}}),
            json!({"filters": [{"type": "URLRewrite", "requestHeaderModifier": {"set": [{"name": "a: s3cret", "value": "b"}]}}]}),
            rule("matches", json!({"headers": {"authorization": "s3cret"}})),
            rule("matches", json!({"headers": ["authorization: s3cret"]})),
            rule("matches", json!({"queryParams": "token=s3cret"})),
            rule("matches", json!({"headers": [{"type": "s3cret", "name": "a", "value": "b"}]})),
            rule("filters", json!("authorization: s3cret")),
            rule("filters", json!({"type": "RequestHeaderModifier", "authorization: s3cret": 1})),
            rule("filters", json!({"authorization:s3cret": null, "type": "ExtensionRef"})),
            json!({"filters": "authorization:s3cret"}),
            json!({"filters": {"authorization: s3cret": "authorization: s3cret"}}),
            json!({"filters": {"filters": ["authorization: s3cret"]}}),
            json!({"authorization:s3cret": 1}),
            json!("authorization: s3cret"),
            json!([{"filters": ["authorization: s3cret", {"authorization\ns3cret": 1}]}]),
        ] {
            let mut route = json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute",
                "metadata": {"name": "r"}, "spec": {"rules": [rule]}});
            let schemas = Schemas::embedded();
            let schema = &schemas.get("gateway.networking.k8s.io", "HTTPRoute").unwrap().versions["v1"];
            let review = schema.review(&mut route);
            assert!(!(review.violations.is_empty() && review.unknown_fields.is_empty()), "{rule}");
            assert!(!format!("{review:?}").contains("s3cret"), "{review:?}");
        }
    }

    #[test]
    fn no_shape_of_a_route_filters_field_is_told_of() {
        let long = "s3cret".repeat(100);
        for value in [
            json!(["authorization: s3cret"]),
            json!("authorization: s3cret"),
            json!("authorization:s3cret"),
            json!({"authorization:s3cret": 1, "set": [{"name": "a", "value": "b"}]}),
            json!({"authorization:s3cret": null}),
            json!({"authorization: s3cret": "x"}),
            json!({"a\n\"s3cret": {"s3cret.s3cret": 1}}),
            json!({long: 1}),
            json!({"set": ["authorization: s3cret"]}),
            json!({"set": {"authorization": "s3cret"}}),
            json!({"set": [{"name": "authorization: s3cret", "value": "a"}]}),
            json!({"add": [{"name": "a", "value": ["s3cret"]}]}),
            json!({"set": [{"name": "a", "authorization:s3cret": 1}]}),
        ] {
            for (kind, field) in
                [("RequestHeaders", "requestHeaders"), ("ResponseHeaders", "responseHeaders")]
            {
                let mut filter = json!({"apiVersion": "portcullis.dev/v1alpha1", "kind": "RouteFilter",
                    "metadata": {"name": "f"}, "spec": {"type": kind, field: value}});
                let schemas = Schemas::embedded();
                let schema = &schemas.get("portcullis.dev", "RouteFilter").unwrap().versions["v1alpha1"];
                let mut of_other_type = filter.clone();
                of_other_type["spec"]["type"] = "PathRewrite".into();
                for review in [schema.review(&mut filter), schema.review(&mut of_other_type)] {
                    assert!(!(review.violations.is_empty() && review.unknown_fields.is_empty()), "{value}");
                    assert!(!format!("{review:?}").contains("s3cret"), "{review:?}");
                }
            }
        }
    }

    #[test]
    fn tokens_of_queries_and_passwords_are_not_told_of() {
        let schemas = Schemas::embedded();
        let schema = &schemas.get("gateway.networking.k8s.io", "HTTPRoute").unwrap().versions["v1"];
        for (filter, is_told) in [
            (
                json!({"requestRedirect": {"path": {"type": "ReplaceFullPath", "replaceFullPath": "/cb?s3cret"}}}),
                "/cb?(",
            ),
            (
                json!({"requestRedirect": {"path": {"type": "ReplacePrefixMatch", "replacePrefixMatch": "cb?a=s3cret"}}}),
                "cb?(",
            ),
            (json!({"requestRedirect": {"hostname": 1, "path": "https://a.example?s3cret"}}), "(left out)"),
            (
                json!({"cors": {"allowOrigins": ["https://user:s3cret@a.example/x"]}}),
                "https://(left out)@a.example/x",
            ),
            (json!({"cors": {"allowOrigins": ["user:s3cret@a.example"]}}), "(left out)@a.example"),
        ] {
            // Of the wrong type, and with a filter that it must not be beside.
            let mut route = json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute",
                "metadata": {"name": "r"}, "spec": {"rules": [{"filters": [
                    filter, {"type": "URLRewrite", "urlRewrite": {"hostname": "b.example"}}]}]}});
            route["spec"]["rules"][0]["filters"][0]["type"] = "RequestRedirect".into();
            let review = format!("{:?}", schema.review(&mut route).violations);
            assert!(review.contains(is_told) && !review.contains("s3cret"), "{review}");
        }
        assert_eq!(without_query("(a?b)+"), "(a?b)+");
    }

    #[test]
    fn quotes_of_what_is_cut_are_closed() {
        let long = |text: &str| text.repeat(100);
        for (value, end) in [
            (json!(long("aa")), "aa\"…"),
            (json!([1, long("ab")]), "ab\"…"),
            (json!([long("\n")]), "\\n\"…"),
            (json!(long("\n")), "\\n\"…"),
            (json!([long("a"), "b", 100_000, 200_000]), "\",\"b\",100000,20000…"),
            (json!("ab"), "\"ab\""),
        ] {
            let text = cut(value.to_string());
            assert!(text.ends_with(end) && text.chars().count() <= 122, "{text}");
        }
    }
}
