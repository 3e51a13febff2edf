//! The remedies for what is wrong, by the reason of a condition: those of `docs/conditions.md`,
//! which a test compares with the reasons that there are.

const PAGE: &str = include_str!("../../../docs/conditions.md");

/// The remedies for the reasons of a state, `Accepted=False/NoMatchingParent,…`.
pub(crate) fn of_state(state: &str) -> Option<String> {
    let mut remedies: Vec<String> = Vec::new();
    for reason in state.split(',').filter_map(|condition| condition.rsplit_once('/')) {
        let remedy = of_reason(reason.1);
        remedies.extend(remedy.filter(|remedy| !remedies.contains(remedy)));
    }
    (!remedies.is_empty()).then(|| remedies.join("; "))
}

fn of_reason(reason: &str) -> Option<String> {
    let row = PAGE.lines().find(|line| {
        let name = line.strip_prefix("| `").and_then(|rest| rest.split_once('`'));
        name.is_some_and(|(name, _)| name == reason)
    })?;
    let (_, remedy) = row.trim_end().strip_suffix('|')?.rsplit_once('|')?;
    let remedy = plain(remedy.trim());
    (!remedy.is_empty()).then_some(remedy)
}

/// Without Markdown's links and code.
fn plain(markdown: &str) -> String {
    let mut text = String::new();
    let mut rest = markdown;
    while let Some((before, link)) = rest.split_once('[') {
        text.push_str(before);
        match link.split_once("](").and_then(|(words, target)| Some((words, target.split_once(')')?.1))) {
            Some((words, after)) => {
                text.push_str(words);
                rest = after;
            }
            None => {
                text.push('[');
                rest = link;
            }
        }
    }
    text.push_str(rest);
    text.replace('`', "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remedies_are_those_of_the_page() {
        assert_eq!(of_state("Accepted=False/NoMatchingParent").as_deref(), Some("correct the parentRef"));
        assert_eq!(of_state("Accepted=True/Accepted"), None, "all is well");
        assert_eq!(of_state("Warning"), None);
        let both = of_state(
            "Accepted=False/NotAllowedByListeners,ResolvedRefs=False/InvalidParameters,ResolvedRefs=False/InvalidParameters",
        );
        assert_eq!(
            both.as_deref(),
            Some(
                "allowedRoutes of the listener, or claims of the Gateway's GatewayParameters; create or correct them"
            )
        );
    }
}
