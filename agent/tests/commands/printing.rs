//! Standard output that cannot be written, or has no reader.

use std::fs::{self, OpenOptions};
use std::io;
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

const MANIFESTS: &str = "
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: web}
spec: {gatewayClassName: portcullis, listeners: [{name: http, protocol: HTTP, port: 8080}]}
";

const INGRESS: &str = "
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: web}
spec: {defaultBackend: {service: {name: web, port: {number: 80}}}}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {ports: [{port: 80}]}
";

const COMMANDS: [&[&str]; 9] = [
    &["check", "-f", "all.yaml"],
    &["check", "-f", "all.yaml", "-o", "yaml"],
    &["check", "-f", "all.yaml", "-o", "json"],
    &["convert", "old.yaml"],
    &["routes", "-f", "all.yaml"],
    &["explain", "http://web.example:8080/", "-f", "all.yaml"],
    &["dump", "-f", "all.yaml"],
    &["man"],
    &["completions", "bash"],
];

fn directory() -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("all.yaml"), MANIFESTS).unwrap();
    fs::write(directory.path().join("old.yaml"), INGRESS).unwrap();
    directory
}

fn printed_to(stdout: impl Into<Stdio>, directory: &TempDir, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_portcullis"));
    command.current_dir(directory.path()).args(arguments).stdin(Stdio::null());
    command.stdout(stdout).stderr(Stdio::piped()).spawn().unwrap().wait_with_output().unwrap()
}

#[test]
fn a_full_disk_is_told_of() {
    let directory = directory();
    for arguments in COMMANDS {
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let output = printed_to(full, &directory, arguments);
        let complaints = String::from_utf8(output.stderr).unwrap();
        let says = "portcullis: cannot write to standard output: No space left on device";
        assert!(complaints.contains(says), "{arguments:?}: {complaints}");
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
    }
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let directory = directory();
    for arguments in COMMANDS {
        let (reader, writer) = io::pipe().unwrap();
        drop(reader);
        let output = printed_to(writer, &directory, arguments);
        let complaints = String::from_utf8(output.stderr).unwrap();
        assert!(!complaints.contains("standard output"), "{arguments:?}: {complaints}");
        let read = printed_to(Stdio::piped(), &directory, arguments);
        assert_eq!(output.status.code(), read.status.code(), "{arguments:?}: {complaints}");
        assert!(!read.stdout.is_empty(), "{arguments:?}");
    }
}
