//! `portcullis convert` as operators call it. Each case is a folder of `cases` with the Ingresses
//! of a chart or a tutorial in `in.yaml`, what they become in `out.yaml`, and the differences in
//! `differences.txt`; `PORTCULLIS_BLESS=1` writes both anew. What comes out goes through `check`,
//! and some of it is served.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should say so and stop")]

mod names;
mod outcomes;
mod protected;
mod served;
#[expect(dead_code, reason = "for the agent's other sides")]
#[path = "../support/mod.rs"]
mod support;
mod written;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

fn portcullis(arguments: &[&str], input: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_portcullis"));
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn transcript(output: &Output) -> String {
    let table: String = text(&output.stderr).lines().map(|line| format!("# {}\n", line.trim_end())).collect();
    format!("{}{table}# exit status {}\n", text(&output.stdout), output.status.code().unwrap())
}

fn cases() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/convert/cases");
    let mut cases: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    cases.sort();
    cases
}

fn input(case: &Path) -> String {
    fs::read_to_string(case.join("in.yaml")).unwrap()
}

/// An Ingress with one path. Its annotations are without their prefix.
fn ingress(
    namespace: &str,
    name: &str,
    host: &str,
    path: (&str, &str),
    annotations: &[(&str, &str)],
) -> Value {
    let annotations: serde_json::Map<_, _> = annotations
        .iter()
        .map(|(annotation, value)| (format!("nginx.ingress.kubernetes.io/{annotation}"), json!(value)))
        .collect();
    let backend = json!({"service": {"name": name, "port": {"number": 80}}});
    json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "Ingress",
        "metadata": {"name": name, "namespace": namespace, "annotations": annotations},
        "spec": {
            "ingressClassName": "nginx",
            "rules": [{"host": host, "http": {"paths": [{"path": path.0, "pathType": path.1, "backend": backend}]}}],
        },
    })
}

fn documents(objects: &[Value]) -> String {
    objects.iter().map(|object| format!("---\n{object}\n")).collect()
}

fn service(namespace: &str, name: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"ports": [{"name": "http", "port": 80}]},
    })
}
