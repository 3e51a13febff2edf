//! Matches and actions of rules in a line of text.

use portcullis_model::{
    Action, BackendTarget, L4Action, L4Rule, L4Target, RouteMatch, Rule, Split, ValueMatch, Weighted,
};

/// `GET PathPrefix /a, header x=1, query q~^a$`
pub(crate) fn match_text(matches: &RouteMatch) -> String {
    let method = matches.method.as_ref().map(|method| format!("{method} ")).unwrap_or_default();
    let mut text = format!("{method}{}", matches.path);
    for (name, value) in &matches.headers {
        text += &format!(", header {name}{}", value_text(value));
    }
    for (name, value) in &matches.query {
        text += &format!(", query {name}{}", value_text(value));
    }
    text
}

pub(crate) fn value_text(value: &ValueMatch) -> String {
    match value {
        ValueMatch::Exact(exact) => format!("={exact}"),
        ValueMatch::Regex(regex) => format!("~{regex}"),
    }
}

/// `shop/cart:80 (90 of 100), …`
pub(crate) fn action_text(rule: &Rule) -> String {
    match &rule.action {
        Action::Redirect(redirect) => format!("redirect {}", redirect.status.as_str()),
        Action::Fail(failure) => failure.to_string(),
        Action::Forward(split) => shares(split, |backend| match &backend.target {
            BackendTarget::Known(name) => name.to_string(),
            BackendTarget::Invalid(failure) => failure.to_string(),
        }),
    }
}

/// `shop/db:5432`, or `refused: the rule has no backendRefs`
pub(crate) fn l4_action_text(rule: &L4Rule) -> String {
    let refused = |reason: &str| format!("refused: {reason}");
    match &rule.action {
        L4Action::Refuse(reason) => refused(reason),
        L4Action::Forward(split) => shares(split, |backend| match &backend.target {
            L4Target::Known(name) => name.to_string(),
            L4Target::Refuse(reason) => refused(reason),
        }),
    }
}

fn shares<B: Weighted>(split: &Split<B>, name: impl Fn(&B) -> String) -> String {
    let total = split.total();
    let backends = split.backends().iter().map(|backend| match split.backends() {
        [_] => name(backend),
        _ => format!("{} ({} of {total})", name(backend), backend.weight()),
    });
    backends.collect::<Vec<_>>().join(", ")
}
