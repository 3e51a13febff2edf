//! Matches and actions of rules in a line of text.

use portcullis_model::{Action, BackendTarget, RouteMatch, Rule, ValueMatch};

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
        Action::Forward(split) => {
            let total = split.total();
            let share = |weight: u32| match split.backends() {
                [_] => String::new(),
                _ => format!(" ({weight} of {total})"),
            };
            let backends = split.backends().iter().map(|backend| match &backend.target {
                BackendTarget::Known(name) => format!("{name}{}", share(backend.weight)),
                BackendTarget::Invalid(failure) => format!("{failure}{}", share(backend.weight)),
            });
            backends.collect::<Vec<_>>().join(", ")
        }
    }
}
