//! `status`, `routes`, `explain` and `dump` of a running agent: what is chosen, and in what form it
//! is printed.

use std::process::Command;

use serde_json::{Value, json};

use crate::portcullis;
use crate::support::{Agent, eventually};

const MANIFESTS: &str = "
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: web, namespace: infra}
spec:
  gatewayClassName: portcullis
  addresses: [{value: ADDRESS}]
  listeners: [{name: http, protocol: HTTP, port: 8080, allowedRoutes: {namespaces: {from: All}}}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: edge, namespace: shop}
spec:
  gatewayClassName: portcullis
  addresses: [{value: ADDRESS}]
  listeners: [{name: http, protocol: HTTP, port: 8081}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: cart, namespace: shop}
spec:
  parentRefs: [{name: web, namespace: infra}]
  rules: [{backendRefs: [{name: nowhere, port: 80}]}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: home, namespace: infra}
spec:
  parentRefs: [{name: web}]
  hostnames: [home.example]
  rules: [{filters: [{type: RequestRedirect, requestRedirect: {statusCode: 302}}]}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: refused, namespace: shop}
spec: {parentRefs: [{name: web, port: many}]}
";

fn agent() -> Agent {
    let agent = Agent::start(&[("all.yaml", MANIFESTS)]);
    eventually("statuses are written", || {
        let status = agent.command(&["status", "httproute,gateway,gc"]);
        ["shop/cart", "infra/home", "shop/edge", "infra/web", "GatewayClass"]
            .iter()
            .all(|it| status.contains(it))
    });
    agent
}

/// The first two columns of the rows of the first table.
fn objects(text: &str) -> Vec<String> {
    let rows = text.lines().skip(1).take_while(|line| !line.is_empty());
    let mut names: Vec<_> =
        rows.map(|line| line.split_whitespace().take(2).collect::<Vec<_>>().join(" ")).collect();
    names.sort();
    names.dedup();
    names
}

#[test]
fn objects_are_chosen_as_with_kubectl() {
    let agent = agent();
    let chosen = |arguments: &[&str]| objects(&agent.command(&[&["status"], arguments].concat()));
    assert_eq!(chosen(&["gw"]), ["Gateway infra/web", "Gateway shop/edge"]);
    assert_eq!(chosen(&["gateways", "-A"]), ["Gateway infra/web", "Gateway shop/edge"]);
    assert_eq!(chosen(&["gw", "-n", "shop"]), ["Gateway shop/edge"]);
    assert_eq!(chosen(&["-n", "shop"]), ["Gateway shop/edge", "HTTPRoute shop/cart"]);
    assert_eq!(chosen(&["httproute/home"]), ["HTTPRoute infra/home"]);
    assert_eq!(chosen(&["gc", "-n", "shop"]), ["GatewayClass portcullis"]);
    let listeners = agent.command(&["status", "listeners", "-n", "shop"]);
    assert!(listeners.contains("Gateway shop/edge") && !listeners.contains("infra/web"), "{listeners}");
    for (arguments, complaint) in [
        (&["status", "gate"][..], "no kind with a status is called \"gate\""),
        (&["status", "gw", "none"], "no gw none has a status: `portcullis status` lists all"),
        (&["status", "gw", "-n", "none"], "no gw has a status in namespace none: "),
        (&["status", "-A", "-n", "shop"], "cannot be used with"),
        (&["status", "listeners", "--problems"], "--problems is of objects"),
    ] {
        let output = agent.command(arguments);
        assert!(output.contains(complaint), "{arguments:?}: {output}");
    }
}

/// By the options that the command has.
#[test]
fn a_cluster_that_is_nowhere_to_be_found_is_told_of() {
    let directory = tempfile::tempdir().unwrap();
    let plugin = directory.path().join("kubectl-portcullis");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_portcullis"), &plugin).unwrap();
    let program = std::path::Path::new(env!("CARGO_BIN_EXE_portcullis"));
    for (program, arguments) in [(plugin.as_path(), &["status"][..]), (program, &["cleanup", "--cluster"])] {
        let mut command = Command::new(program);
        command.args(arguments).env("HOME", directory.path());
        let output = command.env_remove("KUBECONFIG").env_remove("KUBERNETES_SERVICE_HOST").output().unwrap();
        let says = String::from_utf8(output.stderr).unwrap();
        assert!(says.contains("nor a kubeconfig found: give --kubeconfig ("), "{arguments:?}: {says}");
        assert!(!says.contains("--config-dir"), "{arguments:?}: {says}");
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {says}");
    }
}

#[test]
fn a_status_directory_that_is_not_there_can_be_chosen() {
    let agent = Agent::start_with(&["--status-dir", "/dev/null/none"], &[("all.yaml", MANIFESTS)]);
    let says = agent.command(&["status"]);
    assert!(says.contains("no status files in /dev/null/none: Not a directory"), "{says}");
    assert!(says.contains("start it with a --status-dir that it can write"), "{says}");
    let problems = agent.command(&["status", "--problems"]);
    assert!(problems.contains("HTTPRoute shop/refused: "), "{problems}");
    assert!(problems.contains("no status files in /dev/null/none: "), "{problems}");
}

#[test]
fn lines_that_are_kept_do_not_depend_on_the_filter() {
    let agent = Agent::start_with(&["--log", "off"], &[("all.yaml", MANIFESTS)]);
    let log = agent.admin("/log").unwrap().body;
    assert!(log.contains(" INFO Portcullis ") && log.contains(" INFO datapath: "), "{log}");
}

#[test]
fn mistakes_of_a_tenant_neither_flood_the_log_nor_forge_it() {
    let fields: Vec<_> = (0..100).map(|number| format!("  field{number}: 1\n")).collect();
    let route = format!(
        "apiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata: {{name: r, namespace: red}}\nspec:\n{}",
        fields.concat()
    );
    let forged = "namespace: blue, \"a\\n2026 ERROR forged\\e[31m\": 1";
    let forging = route.replace("namespace: red", forged).replace("  field1:", "  \"a: s3cret\":");
    let forging = forging.replace("  field2: 1\n", "");
    let agent =
        Agent::start_with(&[], &[("all.yaml", MANIFESTS), ("red.yaml", &route), ("blue.yaml", &forging)]);
    let log = agent.admin("/log").unwrap().body;
    let of = |tenant: &str| {
        let of_tenant = format!("HTTPRoute {tenant}/r: ");
        let lines = log.lines().filter(|line| line.contains(&of_tenant) && line.contains("unknown field"));
        lines.count()
    };
    assert_eq!((of("red"), of("blue")), (20, 20), "{log}");
    assert!(log.contains(" 160 more problems came or went: "), "{log}");
    for text in [log, agent.admin("/problems").unwrap().body, agent.command(&["status", "--problems"])] {
        assert!(text.contains("metadata.a\\n2026 ERROR forged\\u{1b}[31m: unknown field"), "{text}");
        assert!(text.contains("spec.(left out): unknown field") && !text.contains("s3cret"), "{text}");
        assert!(!text.lines().any(|line| line.starts_with("2026 ERROR")), "{text}");
    }
}

#[test]
fn problems_are_of_objects_that_are_not_well() {
    let agent = agent();
    let problems = agent.command(&["status", "--problems"]);
    assert_eq!(objects(&problems), ["HTTPRoute shop/cart"], "{problems}");
    assert!(problems.contains("HTTPRoute shop/refused: spec.parentRefs[0].port"), "{problems}");
    assert!(problems.ends_with("\n1 of 5 objects with a status are not well\n"), "{problems}");
    assert_eq!(agent.command(&["status", "gw", "--problems"]), "0 of 2 objects with a status are not well\n");
    let yaml = agent.command(&["status", "--problems", "-o", "yaml"]);
    assert!(yaml.contains("name: cart") && !yaml.contains("name: home"), "{yaml}");
}

#[test]
fn problems_of_an_agent_that_is_not_ready_say_so() {
    let agent = Agent::start_unready(&[]);
    eventually("it has read that there is nothing", || {
        let problems = agent.command(&["status", "--problems"]);
        problems.starts_with("not ready: no Gateway is served; ")
            && problems.ends_with("\n\n0 of 1 objects with a status are not well\n")
    });
    assert_eq!(agent.command(&["status", "gc", "--problems"]), "0 of 1 objects with a status are not well\n");
}

/// Asks for JSON, whatever else.
fn values(agent: &Agent, arguments: &[&str]) -> Value {
    let json = agent.command(&[arguments, &["-o", "json"]].concat());
    let value: Value = serde_json::from_str(&json).map_err(|error| (error, &json)).unwrap();
    let yaml = agent.command(&[arguments, &["-o", "yaml"]].concat());
    assert_eq!(serde_saphyr::from_str::<Value>(&yaml).unwrap(), value, "{arguments:?}");
    value
}

#[test]
fn answers_are_values_too() {
    let agent = agent();
    let routes = values(&agent, &["routes"]);
    let rules: Vec<_> = routes["routes"].as_array().unwrap().iter().map(|row| &row["rule"]).collect();
    assert_eq!(rules, ["HTTPRoute infra/home rule 0", "HTTPRoute shop/cart rule 0"]);
    assert_eq!(routes["routes"][0]["namespaces"], json!(["infra"]));
    let explained = values(&agent, &["explain", "http://home.example:8080/"]);
    assert_eq!(explained["outcome"], "answered");
    assert_eq!(explained["lines"][0]["subject"], "gateway");
    assert_eq!(values(&agent, &["explain", "http://home.example:9/"])["outcome"], "unanswered");
    let dump = values(&agent, &["dump"]);
    assert!(dump["frontends"].as_object().is_some_and(|frontends| frontends.len() == 2), "{dump}");
}

#[test]
fn routes_are_those_of_a_namespace_and_of_its_parents() {
    let agent = agent();
    let of = |arguments: &[&str]| {
        let text = agent.command(&[&["routes"], arguments].concat());
        ["infra/home", "shop/cart"].map(|name| text.contains(name))
    };
    assert_eq!(of(&[]), [true, true]);
    assert_eq!(of(&["-A"]), [true, true]);
    assert_eq!(of(&["-n", "shop"]), [false, true]);
    assert_eq!(of(&["-n", "none"]), [false, false]);
}

/// Names and messages of manifests are shown, and not obeyed by a terminal.
#[test]
fn control_characters_are_escaped_in_all_formats() {
    let directory = tempfile::tempdir().unwrap();
    let manifest = r#"{"apiVersion": "v1", "kind": "Sec\u001b[31mret", "metadata": {"name": "a\u009bb\u202ec\u007f"}}
{"apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute", "metadata": {"name": "x\u001b]0;t\u0007"}, "spec": {}}
"#;
    let file = directory.path().join("in.json");
    std::fs::write(&file, manifest).unwrap();
    let file = file.to_str().unwrap();
    for format in ["table", "json", "github"] {
        let output = portcullis(&["check", "-f", file, "-o", format]);
        let all = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        let obeyed: Vec<_> =
            all.chars().filter(|c| c.is_control() && *c != '\n' || *c == '\u{202e}').collect();
        assert_eq!(obeyed, [], "{format}: {all:?}");
    }
}

#[test]
fn colours_are_for_terminals_unless_they_are_asked_for() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("none.yaml");
    let coloured = |arguments: &[&str], variables: &[(&str, &str)]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_portcullis"));
        command.args(arguments).args(["check", "-f"]).arg(&file).envs(variables.iter().copied());
        String::from_utf8(command.output().unwrap().stdout).unwrap().contains("\u{1b}[31mUnreadable\u{1b}[0m")
    };
    assert!(!coloured(&[], &[]));
    assert!(!coloured(&["--color", "never"], &[("CLICOLOR_FORCE", "1")]));
    assert!(coloured(&["--color", "always"], &[("NO_COLOR", "1")]));
}

#[test]
fn top_shows_what_came_between_two_samples() {
    let agent = agent();
    let quiet = agent.command(&["top", "--once", "--interval", "1"]);
    assert!(quiet.ends_with("no traffic since the agent began\n"), "{quiet}");
    agent.http("home.example", "/").unwrap();
    let json = agent.command(&["top", "--once", "--interval", "1", "-o", "json"]);
    let rates: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(rates["listeners"][0]["requestsPerSecond"], json!(0.0), "it came before: {rates}");
    let table = agent.command(&["top", "--once", "--interval", "1"]);
    let header = table.lines().find(|line| line.starts_with("ROUTE")).unwrap_or_default();
    assert_eq!(
        header.split_whitespace().collect::<Vec<_>>(),
        ["ROUTE", "REQUESTS/S", "ERRORS/S", "P50", "P99"]
    );
    assert!(table.contains("HTTPRoute infra/home  0.0"), "{table}");
}
