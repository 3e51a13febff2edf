//! Objects and lists that come out, and what `check` says of them.

use std::collections::BTreeSet;
use std::fs;

use rcgen::{CertificateParams, KeyPair};
use serde_json::{Value, json};

use crate::{cases, input, portcullis, text, transcript};

#[test]
fn outputs_are_as_expected() {
    let mut failures = Vec::new();
    for case in cases() {
        let output = portcullis(&["convert", "-"], &input(&case));
        let table: String =
            text(&output.stderr).lines().map(|line| format!("{}\n", line.trim_end())).collect();
        let table = format!("{table}exit status {}\n", output.status.code().unwrap());
        for (name, actual) in [("out.yaml", text(&output.stdout)), ("differences.txt", table)] {
            let path = case.join(name);
            if std::env::var_os("PORTCULLIS_BLESS").is_some() {
                fs::write(&path, &actual).unwrap();
            }
            if fs::read_to_string(&path).unwrap_or_default() != actual {
                failures.push(format!("{}:\n{actual}", path.display()));
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(cases().len() >= 20);
}

#[test]
fn the_list_is_written_as_values_as_well() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("report.json");
    let case = cases().into_iter().find(|case| case.ends_with("snippet")).unwrap();
    let output = portcullis(&["convert", "-", "--report", file.to_str().unwrap()], &input(&case));
    let report: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    let table = fs::read_to_string(case.join("differences.txt")).unwrap();
    // Between the heading and the sum.
    let rows: Vec<_> = table.lines().skip(1).take(report.as_array().unwrap().len()).collect();
    assert_eq!(table.lines().count(), rows.len() + 3, "{table}");
    for (row, value) in rows.into_iter().zip(report.as_array().unwrap()) {
        let cells = ["ingress", "annotation", "outcome", "now"].map(|column| value[column].as_str().unwrap());
        let written: Vec<_> = row.split_whitespace().collect();
        assert_eq!(written, cells.join(" ").split_whitespace().collect::<Vec<_>>());
    }
    assert_eq!(output.status.code(), Some(1));
    let nowhere = folder.path().join("missing/report.json");
    let output = portcullis(&["convert", "-", "--report", nowhere.to_str().unwrap()], &input(&case));
    let said = text(&output.stderr);
    assert!(said.contains("cannot write --report") && said.contains("missing/report.json"), "{said}");
    assert!(output.stdout.is_empty() && output.status.code() == Some(2), "{said}");
}

#[test]
fn a_gateway_that_no_api_server_takes_is_refused() {
    let file = cases()[0].join("in.yaml");
    for (option, value, wanted) in [
        ("--gateway", "A B/c", "NAMESPACE/NAME is wanted"),
        ("--http-port", "0", "a port from 1 to 65535 is wanted"),
        ("--https-port", "0", "a port from 1 to 65535 is wanted"),
    ] {
        let output = portcullis(&["convert", file.to_str().unwrap(), option, value], "");
        let said = text(&output.stderr);
        assert!(said.contains(option) && said.contains(wanted), "{said}");
        assert!(output.stdout.is_empty() && output.status.code() == Some(2), "{said}");
    }
}

/// With the Services of the input, and the Secrets and ConfigMaps that it takes for granted.
#[test]
fn check_finds_nothing_in_what_comes_out() {
    let (certificate, key) = certificate();
    for case in cases() {
        let input = input(&case);
        let output = portcullis(&["convert", "-", "-o", "json"], &input);
        let mut objects: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
        let mut names = BTreeSet::new();
        objects.iter().for_each(|object| referred(object, &object["metadata"]["namespace"], &mut names));
        for (kind, namespace, name) in names {
            if input.contains(&format!("name: {name},")) {
                continue;
            }
            let mut made =
                json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "namespace": namespace}});
            if kind == "ConfigMap" {
                made["data"] = json!({"ca.crt": certificate});
            } else {
                made["type"] = json!("kubernetes.io/tls");
                made["stringData"] = json!({"tls.crt": certificate, "tls.key": key, "ca.crt": certificate});
            }
            objects.push(made);
        }
        let given = input.split("---\n").filter(|document| !document.contains("kind: Ingress"));
        let written: String = objects.iter().map(|object| format!("---\n{object}\n")).collect();
        let all = given.fold(written, |all, document| format!("{all}---\n{document}"));
        let checked = portcullis(&["check", "-f", "-"], &all);
        assert_eq!(checked.status.code(), Some(0), "{}:\n{}", case.display(), transcript(&checked));
    }
}

fn certificate() -> (String, String) {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(vec!["a.example".to_owned()]).unwrap();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    (params.self_signed(&key).unwrap().pem(), key.serialize_pem())
}

/// Secrets and ConfigMaps that an object names.
fn referred(value: &Value, namespace: &Value, names: &mut BTreeSet<(String, String, String)>) {
    for (field, inner) in value.as_object().into_iter().flatten() {
        let kind = if inner[0]["kind"] == "ConfigMap" { "ConfigMap" } else { "Secret" };
        if field == "certificateRefs" || field == "caCertificateRefs" {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            names.insert((kind.to_owned(), text(namespace), text(&inner[0]["name"])));
        }
        referred(inner, namespace, names);
    }
    value.as_array().into_iter().flatten().for_each(|inner| referred(inner, namespace, names));
}

#[test]
fn check_says_that_ingresses_are_not_served() {
    let case = cases().into_iter().find(|case| case.ends_with("snippet")).unwrap();
    let complaints = text(&portcullis(&["check", "-f", "-"], &input(&case)).stderr);
    assert!(complaints.contains("`portcullis convert` writes what to serve instead"), "{complaints}");
    assert!(complaints.contains("CLOSED"), "{complaints}");
}
