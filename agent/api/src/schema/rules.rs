//! The validation rules of CRDs (`x-kubernetes-validations`, in CEL), as an API server evaluates
//! them when an object is created: the rules of a node see nothing but the node, as `self`. What
//! compares with an older version of the object is left out, since a manifest has none.

use std::borrow::Cow;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, LazyLock, OnceLock, PoisonError, RwLock};

use cel::common::types::{CelBool, CelDouble, CelInt, CelList, CelMap, CelMapKey, CelNull, CelString};
use cel::common::value::Val;
use cel::extractors::This;
use cel::objects::OptionalValue;
use cel::{Context, Env, ExecutionError, Program};
use regex::Regex;
use serde::Deserialize;
use serde_json::Value;

use super::{Schema, Type};
use crate::name::is_subdomain;

/// A rule as a schema has it, compiled when first used.
#[derive(Deserialize)]
pub(super) struct Rule {
    rule: String,
    message: Option<String>,
    #[serde(skip)]
    compiled: OnceLock<Option<Program>>,
}

/// A node as its rules see it: as `self`, beside everything that they may call.
pub(super) struct Scope<'a>(Context<'a, 'a>);

// === impl Rule ===

impl Rule {
    /// The message of the rule, if the node of the scope breaks it. One that cannot be compiled
    /// permits everything; a test proves that all of the CRDs' can.
    pub(super) fn broken_by(&self, scope: &Scope<'_>) -> Option<Cow<'_, str>> {
        let message = self.message.as_deref().unwrap_or(&self.rule);
        match self.program()?.execute(&scope.0) {
            Ok(cel::Value::Bool(true)) => None,
            Ok(_) => Some(Cow::Borrowed(message)),
            Err(error) => Some(Cow::Owned(format!("{message} (the rule cannot be evaluated: {error})"))),
        }
    }

    fn program(&self) -> Option<&Program> {
        self.compiled.get_or_init(|| self.compile().ok().flatten()).as_ref()
    }

    /// `None` for a rule about a change.
    ///
    /// # Errors
    /// When it is no CEL.
    pub(super) fn compile(&self) -> Result<Option<Program>, cel::ParseErrors> {
        if self.rule.contains("oldSelf") { Ok(None) } else { Program::compile(&self.rule).map(Some) }
    }
}

impl std::fmt::Debug for Rule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.rule)
    }
}

// === impl Scope ===

impl<'a> Scope<'a> {
    pub(super) fn of(schema: &Schema, node: &'a Value) -> Self {
        static FUNCTIONS: LazyLock<Context<'static, 'static>> = LazyLock::new(functions);
        let functions: &'a Context<'a, 'a> = &FUNCTIONS;
        let mut scope = functions.new_inner_scope();
        scope.add_variable_as_val("self", value(schema, node));
        Self(scope)
    }
}

/// Everything that rules may call. Adding something can only fail for a name that is taken; a test
/// calls each of them.
fn functions() -> Context<'static, 'static> {
    let mut env = Env::stdlib();
    let _ = cel::extensions::strings(&mut env);
    let mut context = Context::with_env(Arc::new(env));
    let _ = context.add_function("matches", |This(text): This<Arc<String>>, pattern: Arc<String>| {
        matches(&text, &pattern)
    });
    let _ = context.add_function("duration", |text: Arc<String>| duration(&text));
    let _ = context.add_function("isIP", |text: Arc<String>| text.parse::<IpAddr>().is_ok());
    // `format.dns1123Subdomain().validate(text).hasValue()`: an optional list of errors.
    context.add_variable_from_value("format", "format");
    let _ = context.add_function("dns1123Subdomain", |This(format): This<Arc<String>>| format);
    let _ = context.add_function("qualifiedName", |This(_): This<Arc<String>>| QUALIFIED_NAME.to_owned());
    let _ = context.add_function("validate", |This(format): This<Arc<String>>, text: Arc<String>| {
        let is_valid = if *format == QUALIFIED_NAME { is_qualified(&text) } else { is_subdomain(&text) };
        let errors = if is_valid { OptionalValue::none() } else { OptionalValue::of(text.into()) };
        cel::Value::Opaque(Arc::new(errors))
    });
    context
}

/// The format of labels' keys, as `validate` is told of it.
const QUALIFIED_NAME: &str = "qualifiedName";

/// A name of 63 characters at most, with a subdomain and a slash in front of it or without.
fn is_qualified(text: &str) -> bool {
    let (prefix, name) = text.split_once('/').map_or((None, text), |(prefix, name)| (Some(prefix), name));
    let is_end = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let name = name.as_bytes();
    prefix.is_none_or(is_subdomain)
        && name.len() <= 63
        && is_end(name.first())
        && is_end(name.last())
        && name.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(byte))
}

/// The patterns come from CRDs, never from objects: there are few.
fn matches(text: &str, pattern: &str) -> Result<bool, ExecutionError> {
    static PATTERNS: LazyLock<RwLock<HashMap<String, Regex>>> = LazyLock::new(RwLock::default);
    if let Some(regex) = PATTERNS.read().unwrap_or_else(PoisonError::into_inner).get(pattern) {
        return Ok(regex.is_match(text));
    }
    let regex = Regex::new(pattern).map_err(|error| ExecutionError::function_error("matches", error))?;
    let is_match = regex.is_match(text);
    PATTERNS.write().unwrap_or_else(PoisonError::into_inner).insert(pattern.to_owned(), regex);
    Ok(is_match)
}

/// Nanoseconds: rules only compare durations with each other.
fn duration(text: &str) -> Result<i64, ExecutionError> {
    let malformed = || ExecutionError::function_error("duration", format!("{text:?} is no duration"));
    let (negative, mut rest) = text.strip_prefix('-').map_or((false, text), |rest| (true, rest));
    let mut total = 0.0;
    if rest == "0" {
        return Ok(0);
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(malformed)?;
        let number: f64 = rest[..digits].parse().map_err(|_| malformed())?;
        let unit = rest[digits..].find(|c: char| c.is_ascii_digit() || c == '.');
        let (unit, after) = rest[digits..].split_at(unit.unwrap_or(rest.len() - digits));
        total += number
            * match unit {
                "ns" => 1.0,
                "us" | "µs" => 1e3,
                "ms" => 1e6,
                "s" => 1e9,
                "m" => 60e9,
                "h" => 3600e9,
                _ => return Err(malformed()),
            };
        rest = after;
    }
    if text.is_empty() { Err(malformed()) } else { Ok(if negative { -total } else { total } as i64) }
}

// === JSON to CEL ===

/// Texts and names are borrowed: most rules read few of them.
fn value<'a>(schema: &Schema, json: &'a Value) -> Box<dyn Val + 'a> {
    match json {
        Value::Null => Box::new(CelNull),
        Value::Bool(bool) => Box::new(CelBool::from(*bool)),
        Value::Number(number) => match number.as_i64() {
            Some(integer) if schema.kind != Some(Type::Number) => Box::new(CelInt::from(integer)),
            _ => Box::new(CelDouble::from(number.as_f64().unwrap_or(f64::NAN))),
        },
        Value::String(text) => Box::new(CelString::from(text.as_str())),
        Value::Array(items) => {
            let none = Schema::default();
            let of_items = schema.items.as_deref().unwrap_or(&none);
            Box::new(CelList::from(items.iter().map(|item| value(of_items, item)).collect::<Vec<_>>()))
        }
        Value::Object(fields) => {
            let none = Schema::default();
            let entry = |(name, field): (&'a String, &'a Value)| {
                let known = schema.properties.get(name);
                let of_field = known.or(schema.additional_properties.as_deref()).unwrap_or(&none);
                let name = if known.is_some() { escaped(name) } else { Cow::Borrowed(name.as_str()) };
                (CelMapKey::String(CelString::from(name)), value(of_field, field))
            };
            Box::new(CelMap::from(fields.iter().map(entry).collect::<HashMap<_, _>>()))
        }
    }
}

/// "Accessible property names are escaped" where they are no identifiers, or CEL's own words.
fn escaped(name: &str) -> Cow<'_, str> {
    const RESERVED: [&str; 20] = [
        "true",
        "false",
        "null",
        "in",
        "as",
        "break",
        "const",
        "continue",
        "else",
        "for",
        "function",
        "if",
        "import",
        "let",
        "loop",
        "package",
        "namespace",
        "return",
        "var",
        "void",
    ];
    if RESERVED.contains(&name) {
        return Cow::Owned(format!("__{name}__"));
    }
    if !name.contains(['.', '-', '/']) {
        return Cow::Borrowed(name);
    }
    Cow::Owned(name.replace('.', "__dot__").replace('-', "__dash__").replace('/', "__slash__"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_like_gos() {
        for (text, expected) in [
            ("0", Some(0)),
            ("1s", Some(1_000_000_000)),
            ("1h0m30s", Some(3_630_000_000_000)),
            ("1.5ms", Some(1_500_000)),
            ("-2us", Some(-2_000)),
            ("", None),
            ("5", None),
            ("s", None),
            ("1d", None),
        ] {
            assert_eq!(duration(text).ok(), expected, "{text:?}");
        }
    }

    #[test]
    fn everything_that_rules_call_is_there() {
        let node = serde_json::json!({"a": "x.example/y", "n": 3});
        let scope = Scope::of(&Schema::default(), &node);
        for rule in [
            "self.a.split('/')[0] == 'x.example' && self.a.substring(2) == 'example/y'",
            "self.a.matches(r\"\"\"^x\\.\"\"\") && !self.a.matches('^y')",
            "isIP('10.0.0.1') && isIP('::1') && !isIP(self.a)",
            "format.dns1123Subdomain().validate('-').hasValue()",
            "!format.dns1123Subdomain().validate('a.b').hasValue()",
            "!format.qualifiedName().validate('a.b/C_1').hasValue()",
            "format.qualifiedName().validate('a.b/c/d').hasValue() && format.qualifiedName().validate('-a').hasValue()",
            "duration('90s') > duration('1m') && size(self) == 2 && self.a.size() == 11",
            "has(self.a) && !has(self.b) && ['a'].exists_one(x, x == 'a') && self.n <= 3",
            "self.b == 1 || true",
        ] {
            let rule = Rule { rule: rule.to_owned(), message: None, compiled: OnceLock::new() };
            assert_eq!(rule.broken_by(&scope), None, "{rule:?}");
        }
    }
}
