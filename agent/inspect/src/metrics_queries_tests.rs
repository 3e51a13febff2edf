//! The chart's dashboards and alerts: each metric that they ask for exists, and has the labels by
//! which they ask. No parser of PromQL: it reads names, braces, and labels after `by` and `on`.

use std::collections::{BTreeMap, BTreeSet};

use super::everything;
use crate::{MetricsFormat, metrics};

const DASHBOARDS: &[(&str, &str)] = &[
    ("overview", include_str!("../../../deploy/helm/portcullis/dashboards/overview.json")),
    ("listeners", include_str!("../../../deploy/helm/portcullis/dashboards/listeners.json")),
    ("routes", include_str!("../../../deploy/helm/portcullis/dashboards/routes.json")),
    ("node", include_str!("../../../deploy/helm/portcullis/dashboards/node.json")),
];
const ALERTS: &str = include_str!("../../../deploy/helm/portcullis/rules/alerts.yaml");

/// Metrics that no dashboard shows on purpose.
const UNUSED: &[&str] = &[];

/// Labels that Prometheus gives to all that it scrapes.
const OF_TARGETS: &[&str] = &["job", "instance"];

/// Words of PromQL that are no metric.
const WORDS: &[&str] = &["and", "or", "unless", "bool", "offset", "inf", "nan"];
/// Words with labels in parentheses behind them.
const GROUPINGS: &[&str] = &["by", "on", "without", "ignoring", "group_left", "group_right"];

/// Labels by the names of samples.
type Samples = BTreeMap<String, BTreeSet<String>>;

/// A query, with what its legend or text names.
struct Asked {
    place: String,
    expression: String,
    text: String,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Parsed {
    /// Metrics with the labels in their braces, and those that they are summed by.
    selectors: Vec<(String, BTreeSet<String>)>,
    /// Labels that pairs are made by.
    pairs: BTreeSet<String>,
}

#[test]
fn dashboards_and_alerts_ask_for_what_exists() {
    let exported = exported();
    let mut asked = asked_by_dashboards();
    asked.extend(asked_by_alerts());
    assert!(asked.len() > 100, "{} queries", asked.len());
    let mut known = exported.clone();
    known.extend(recorded(&exported));
    known.insert("up".to_owned(), OF_TARGETS.iter().map(|it| (*it).to_owned()).collect());
    let wrong: Vec<_> = asked.iter().flat_map(|it| problems(it, &known)).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn every_metric_is_in_a_dashboard() {
    let text = metrics(&everything(), MetricsFormat::Text);
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    let exist: BTreeSet<_> = types.map(|(name, _)| name).collect();
    let asked = asked_by_dashboards();
    let parsed = asked.iter().map(|it| parse(&it.expression));
    let used: BTreeSet<_> = parsed.flat_map(|it| it.selectors).map(|(name, _)| name).collect();
    let is_used =
        |name: &str| ["", "_bucket", "_count"].iter().any(|it| used.contains(&format!("{name}{it}")));
    let unused: BTreeSet<_> = exist.into_iter().filter(|name| !is_used(name)).collect();
    assert_eq!(unused, UNUSED.iter().copied().collect());
}

#[test]
fn every_alert_says_what_to_do() {
    for rule in rules().iter().filter(|rule| rule["alert"].is_string()) {
        let severity = rule["labels"]["severity"].as_str();
        assert!(matches!(severity, Some("critical" | "warning" | "info")), "{rule}");
        for annotation in ["summary", "description"] {
            assert!(rule["annotations"][annotation].as_str().is_some_and(|it| it.len() > 20), "{rule}");
        }
    }
}

#[test]
fn a_query_is_read_as_prometheus_reads_it() {
    let labels = |labels: &[&str]| labels.iter().map(|it| (*it).to_owned()).collect();
    let parsed =
        parse(r#"sum by (le, route) (rate(a_bucket{job=~"x,y=\"}",le="1"}[5m])) / on (job) b > 3e2"#);
    let selectors =
        vec![("a_bucket".to_owned(), labels(&["job", "le", "route"])), ("b".to_owned(), BTreeSet::new())];
    assert_eq!(parsed, Parsed { selectors, pairs: labels(&["job"]) });
}

fn exported() -> Samples {
    let mut samples = Samples::new();
    for line in metrics(&everything(), MetricsFormat::Text).lines().filter(|line| !line.starts_with('#')) {
        let end = line.find(['{', ' ']).unwrap();
        let labels = samples.entry(line[..end].to_owned()).or_default();
        labels.extend(OF_TARGETS.iter().map(|it| (*it).to_owned()));
        labels.extend(parse(line.rsplit_once(' ').unwrap().0).selectors.remove(0).1);
    }
    samples
}

/// Samples that recording rules make, with the labels that they sum by.
fn recorded(exported: &Samples) -> Samples {
    let names = rules().into_iter().filter_map(|rule| {
        let expression = rule["expr"].as_str()?;
        let summed = parse(expression).selectors.into_iter().map(|(_, labels)| labels);
        let summed = summed.reduce(|one, other| one.intersection(&other).cloned().collect())?;
        assert!(exported.values().any(|labels| labels.is_superset(&summed)), "{expression}");
        Some((rule["record"].as_str()?.to_owned(), summed))
    });
    names.collect()
}

fn asked_by_dashboards() -> Vec<Asked> {
    let mut asked = Vec::new();
    for (name, text) in DASHBOARDS {
        let dashboard: serde_json::Value = serde_json::from_str(text).unwrap();
        for panel in dashboard["panels"].as_array().unwrap() {
            for target in panel["targets"].as_array().into_iter().flatten() {
                asked.push(Asked {
                    place: format!("{name}: {}", panel["title"]),
                    expression: target["expr"].as_str().unwrap().to_owned(),
                    text: target["legendFormat"].as_str().unwrap().replace("{{", "{{ $labels."),
                });
            }
        }
        for variable in dashboard["templating"]["list"].as_array().unwrap() {
            let query = variable["definition"].as_str().and_then(|it| it.strip_prefix("label_values("));
            let Some((expression, label)) = query.and_then(|it| it.rsplit_once(", ")) else { continue };
            asked.push(Asked {
                place: format!("{name}: variable {}", variable["name"]),
                expression: expression.to_owned(),
                text: format!("$labels.{}", label.trim_end_matches(')')),
            });
        }
    }
    asked
}

fn asked_by_alerts() -> Vec<Asked> {
    let asked = |rule: serde_json::Value| Asked {
        place: rule["alert"].as_str().or(rule["record"].as_str()).unwrap().to_owned(),
        expression: rule["expr"].as_str().unwrap().to_owned(),
        text: rule["annotations"].to_string(),
    };
    rules().into_iter().map(asked).collect()
}

fn rules() -> Vec<serde_json::Value> {
    let file: serde_json::Value = serde_saphyr::from_str(ALERTS).unwrap();
    let groups = file["groups"].as_array().unwrap().clone();
    groups.iter().flat_map(|group| group["rules"].as_array().unwrap().clone()).collect()
}

fn problems(asked: &Asked, known: &Samples) -> Vec<String> {
    let Asked { place, expression, text } = asked;
    let parsed = parse(expression);
    let mut problems = Vec::new();
    let mut of_all = BTreeSet::new();
    for (name, labels) in &parsed.selectors {
        let Some(has) = known.get(name) else {
            problems.push(format!("{place}: there is no {name}"));
            continue;
        };
        of_all.extend(has);
        let unknown = labels.iter().filter(|label| !has.contains(*label));
        problems.extend(unknown.map(|label| format!("{place}: {name} has no {label}")));
    }
    let shown = text.split("$labels.").skip(1);
    let shown = shown.map(|it| it.split(|c: char| !is_of_name(c)).next().unwrap_or_default().to_owned());
    let unknown = shown.chain(parsed.pairs).filter(|label| !of_all.contains(label));
    problems.extend(unknown.map(|label| format!("{place}: nothing in it has {label}")));
    problems
}

fn is_of_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == ':'
}

fn parse(expression: &str) -> Parsed {
    let mut parsed = Parsed::default();
    // The labels of each open parenthesis that are summed by.
    let mut open: Vec<BTreeSet<String>> = Vec::new();
    let mut summed_by = BTreeSet::new();
    let mut rest = expression;
    while let Some(c) = rest.chars().next() {
        if c == '(' {
            open.push(std::mem::take(&mut summed_by));
        } else if c == ')' {
            open.pop();
        } else if c == '[' {
            rest = rest.split_once(']').unwrap().1;
            continue;
        } else if c.is_ascii_digit() {
            rest = rest.trim_start_matches(|c: char| c.is_ascii_alphanumeric() || c == '.');
            continue;
        } else if c.is_ascii_alphabetic() {
            let end = rest.find(|c| !is_of_name(c)).unwrap_or(rest.len());
            let (word, behind) = rest.split_at(end);
            let behind = behind.trim_start();
            rest = behind;
            if GROUPINGS.contains(&word) {
                let (labels, behind) = behind[1..].split_once(')').unwrap();
                let labels = labels.split(',').map(|it| it.trim().to_owned()).filter(|it| !it.is_empty());
                match word {
                    "by" => summed_by = labels.collect(),
                    _ => parsed.pairs.extend(labels),
                }
                rest = behind;
            } else if !behind.starts_with('(') && !WORDS.contains(&word) && !is_aggregation(behind) {
                let mut labels: BTreeSet<_> = open.iter().flatten().cloned().collect();
                if let Some(braces) = behind.strip_prefix('{') {
                    rest = matchers(braces, &mut labels);
                }
                parsed.selectors.push((word.to_owned(), labels));
            }
            continue;
        }
        rest = &rest[c.len_utf8()..];
    }
    parsed
}

/// True for a word that groups, as in `sum by (…) (…)`.
fn is_aggregation(behind: &str) -> bool {
    ["by (", "without ("].iter().any(|it| behind.starts_with(it))
}

/// Returns what stands behind the braces.
fn matchers<'a>(braces: &'a str, labels: &mut BTreeSet<String>) -> &'a str {
    let mut rest = braces;
    while let Some((label, behind)) = rest.split_once(['=', '!']).filter(|_| !rest.starts_with('}')) {
        labels.insert(label.trim_start_matches(',').trim().to_owned());
        rest = behind.split_once('"').unwrap().1;
        let mut escaped = false;
        let end = rest.find(|c| {
            let ends = c == '"' && !escaped;
            escaped = c == '\\' && !escaped;
            ends
        });
        rest = &rest[end.unwrap() + 1..];
    }
    rest.strip_prefix('}').unwrap()
}
