//! `portcullis check` as operators call it: what it prints, what it complains about, and how it
//! exits. Each case is a folder of `tests/check` with `in.yaml` and `out.yaml`, the command's
//! arguments in `in.yaml`'s first line; `PORTCULLIS_BLESS=1` writes the expected output anew.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should say so and stop")]

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

fn portcullis(directory: &Path, arguments: &[&str], input: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_portcullis"));
    command.current_dir(directory).args(arguments);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

/// Standard output, standard error and exit status as one text.
fn transcript(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let complaints: String = text(&output.stderr).lines().map(|line| format!("# {line}\n")).collect();
    format!("{}{complaints}# exit status {}\n", text(&output.stdout), output.status.code().unwrap())
}

fn run_case(case: &Path) -> Result<(), String> {
    let input = fs::read_to_string(case.join("in.yaml")).unwrap();
    let first = input.lines().next().unwrap_or_default();
    let arguments: Vec<_> = first.trim_start_matches("# portcullis ").split(' ').collect();
    let actual = transcript(&portcullis(case, &arguments, ""));
    let expected = case.join("out.yaml");
    if std::env::var_os("PORTCULLIS_BLESS").is_some() {
        fs::write(&expected, &actual).unwrap();
    }
    let expected = fs::read_to_string(&expected).unwrap_or_default();
    if actual == expected { Ok(()) } else { Err(format!("{}:\n{actual}", case.display())) }
}

fn cases() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/check");
    let mut cases: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    cases.sort();
    cases
}

#[test]
fn outputs_are_as_expected() {
    let failures: Vec<_> = cases().iter().filter_map(|case| run_case(case).err()).collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// The format changes no exit status.
#[test]
fn all_is_well_exactly_if_the_exit_status_says_so() {
    let mut seen = 0;
    for case in cases() {
        let input = fs::read_to_string(case.join("in.yaml")).unwrap();
        let first = input.lines().next().unwrap_or_default();
        let Some(arguments) = first.strip_suffix(" -o yaml") else { continue };
        let arguments: Vec<_> = arguments.trim_start_matches("# portcullis ").split(' ').collect();
        let table = transcript(&portcullis(&case, &arguments, ""));
        let expected = fs::read_to_string(case.join("out.yaml")).unwrap();
        assert_eq!(table.lines().last(), expected.lines().last(), "{}", case.display());
        let is_well = table.lines().any(|line| line.ends_with(": all is well"));
        assert_eq!(is_well, table.ends_with("# exit status 0\n"), "{}: {table}", case.display());
        seen += 1;
    }
    assert!(seen > 10, "{seen} cases");
}

#[test]
fn tables_and_commands_are_of_statuses() {
    for format in ["table", "github"] {
        let output = portcullis(Path::new("/"), &["check", "-f", "-", "--show", "infra", "-o", format], "");
        let complaints = String::from_utf8(output.stderr).unwrap();
        assert!(complaints.contains("use -o yaml or -o json"), "{complaints}");
        assert_eq!(output.status.code(), Some(2));
    }
}

const CLASS: &str = "\
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {name: ours}
spec: {controllerName: example.com/gateway}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: web}
spec: {gatewayClassName: ours, listeners: [{name: http, port: 80, protocol: HTTP}]}
";

/// A unit's `check` is of the configuration that its `run` serves.
#[test]
fn options_of_run_have_its_variables() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("all.yaml"), CLASS).unwrap();
    let checked = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_portcullis"));
        command.args(["check", "-o", "json", "-f"]).arg(directory.path()).args(arguments);
        command.env("PORTCULLIS_CONTROLLER_NAME", "example.com/gateway");
        command.env("PORTCULLIS_ADDRESS", "192.0.2.1,192.0.2.2");
        transcript(&command.output().unwrap())
    };
    let has = |text: &str, addresses: &[&str]| {
        for address in ["192.0.2.1", "192.0.2.2", "192.0.2.3", "198.18.0.1"] {
            let line = format!("\"value\": \"{address}\"");
            assert_eq!(text.contains(&line), addresses.contains(&address), "{address}: {text}");
        }
    };
    has(&checked(&[]), &["192.0.2.1", "192.0.2.2"]);
    has(&checked(&["--address", "192.0.2.3"]), &["192.0.2.3"]);
    has(&checked(&["--own-addresses"]), &["198.18.0.1"]);
    has(&checked(&["--address", "192.0.2.3", "--own-addresses"]), &["198.18.0.1"]);
    has(&checked(&["--own-addresses", "--address", "192.0.2.3"]), &["198.18.0.1"]);
    has(&checked(&["--controller-name", "portcullis.dev/gateway"]), &[]);
}

/// A name that the operator does not allow is found before it is served.
#[test]
fn external_names_are_those_of_run() {
    let manifests = "\
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: web}
spec: {gatewayClassName: portcullis, listeners: [{name: http, port: 80, protocol: HTTP}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: app}
spec:
  parentRefs: [{name: web}]
  rules: [{backendRefs: [{group: gateway.networking.x-k8s.io, kind: XBackend, name: api}]}]
---
apiVersion: gateway.networking.x-k8s.io/v1alpha1
kind: XBackend
metadata: {name: api}
spec:
  type: ExternalHostname
  externalHostname: {hostname: api.example.com}
  port: {number: 443}
  tls: {mode: ServerOnly, validation: {hostname: api.example.com, wellKnownCACertificates: System}}
";
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("all.yaml"), manifests).unwrap();
    let checked = |names: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_portcullis"));
        command.args(["check", "-f"]).arg(directory.path()).env("PORTCULLIS_EXTERNAL_NAMES", names);
        transcript(&command.output().unwrap())
    };
    let says = "does not allow the external name api.example.com (--external-names)";
    assert!(checked("none").contains(says), "{}", checked("none"));
    assert!(!checked("*.example.com").contains(says), "{}", checked("*.example.com"));
}

const SECRET: &str = "apiVersion: v1\nkind: Secret\nmetadata: {name: s}\n";

/// One after the other, though the second could be waited for without end.
#[test]
fn what_is_no_file_is_named_and_not_waited_for() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("a.yaml"), SECRET).unwrap();
    assert!(Command::new("mkfifo").arg(directory.path().join("b.yaml")).status().unwrap().success());
    std::os::unix::fs::symlink(".", directory.path().join("loop")).unwrap();
    let output = portcullis(directory.path(), &["check", "-f", ".", "-o", "yaml"], "");
    let complaints = String::from_utf8(output.stderr).unwrap();
    let expected = "./b.yaml: is a named pipe, and only regular files are read: remove it, or replace it by a file; nothing of it is served\n";
    assert_eq!((complaints.as_str(), output.status.code()), (expected, Some(2)));
}

const INGRESSES: &str = "\
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: web, namespace: shop}
spec: {defaultBackend: {service: {name: web, port: {number: 80}}}}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: cart}
spec: {defaultBackend: {service: {name: cart, port: {number: 80}}}}
";

/// In every format: by its row or line, the summary and the exit status.
#[test]
fn an_ingress_is_never_all_is_well() {
    let says =
        "is not of the Gateway API: `portcullis convert` writes what to serve instead; it is not served";
    let summary = "2 objects (Ingress 2): 2 problems; Ingress (2) is not served\n";
    let checked = |format| {
        let output = portcullis(Path::new("/"), &["check", "-f", "-", "-o", format], INGRESSES);
        assert_eq!(output.status.code(), Some(1), "{format}");
        let [printed, complaints] = [output.stdout, output.stderr].map(|it| String::from_utf8(it).unwrap());
        assert!(!complaints.contains("ignored"), "said once: {complaints}");
        (printed, complaints)
    };
    let (table, complaints) = checked("table");
    assert!(table.contains("Ingress shop/web") && table.contains("Ingress default/cart"), "{table}");
    assert!(table.contains("NotServed") && table.contains(says) && table.ends_with(summary), "{table}");
    assert!(complaints.starts_with("Ingress (2) is not served; `portcullis convert`"), "{complaints}");
    let (commands, _) = checked("github");
    let expected = format!(
        "::warning file=(standard input),line=1,title=Ingress shop/web::NotServed: {says}\n\
         ::warning file=(standard input),line=6,title=Ingress default/cart::NotServed: {says}\n{summary}"
    );
    assert_eq!(commands, expected);
    for format in ["yaml", "json"] {
        let (objects, complaints) = checked(format);
        assert!(objects.contains("Ingress"), "{objects}");
        let line = format!("(standard input):1: Ingress shop/web: {says}\n");
        assert!(complaints.starts_with(&line), "{complaints}");
    }
}

#[test]
fn no_object_at_all_is_nothing_to_check() {
    let directory = tempfile::tempdir().unwrap();
    fs::create_dir(directory.path().join("conf")).unwrap();
    fs::write(directory.path().join("conf/README.md"), "no manifest").unwrap();
    let checked = |arguments: &[&str]| {
        transcript(&portcullis(directory.path(), &[&["check", "-f", "conf"][..], arguments].concat(), ""))
    };
    let says = "no objects: nothing was found to check\n";
    assert_eq!(checked(&[]), format!("{says}# exit status 2\n"));
    assert_eq!(checked(&["-o", "github"]), format!("{says}# exit status 2\n"));
    assert_eq!(checked(&["--allow-empty"]), format!("{says}# exit status 0\n"));
    let values = checked(&["-o", "json"]);
    assert!(values.ends_with(&format!("# {says}# exit status 2\n")), "{values}");
}

/// As if it were named itself.
#[test]
fn a_link_to_nothing_is_unreadable_in_a_directory_too() {
    let directory = tempfile::tempdir().unwrap();
    fs::create_dir(directory.path().join("conf")).unwrap();
    std::os::unix::fs::symlink("nowhere", directory.path().join("conf/a.yaml")).unwrap();
    let says = "conf/a.yaml: is a link to nothing: remove it, or put there what it leads to; nothing of it is served\n";
    for path in ["conf", "conf/a.yaml"] {
        let output = portcullis(directory.path(), &["check", "-o", "yaml", "-f", path], "");
        let complaints = String::from_utf8(output.stderr).unwrap();
        assert_eq!((complaints.as_str(), output.status.code()), (says, Some(2)), "{path}");
    }
}

#[test]
fn standard_input_and_json() {
    let directory = tempfile::tempdir().unwrap();
    let output = portcullis(directory.path(), &["check", "-f", "-", "-o", "json"], SECRET);
    let expected = r#"[
  {
    "apiVersion": "v1",
    "kind": "Secret",
    "metadata": {
      "name": "s",
      "namespace": "default"
    },
    "status": {}
  }
]
# exit status 0
"#;
    assert_eq!(transcript(&output), expected);
}

#[test]
fn directories_are_read_recursively_and_missing_files_are_unreadable_input() {
    let directory = tempfile::tempdir().unwrap();
    fs::create_dir_all(directory.path().join("conf/team")).unwrap();
    fs::write(directory.path().join("conf/team/a.yaml"), SECRET).unwrap();
    let output = portcullis(directory.path(), &["check", "-o", "yaml", "-f", "conf", "none.yaml"], "");
    let transcript = transcript(&output);
    assert!(transcript.contains("name: s"), "{transcript}");
    assert!(
        transcript
            .ends_with("# none.yaml: there is no such file; nothing of it is served\n# exit status 2\n"),
        "{transcript}"
    );
}

/// As `run --config-dir` serves them: without `spec.addresses` and `--address`, on all addresses.
#[test]
fn explanations_say_by_the_exit_status_if_anything_answers() {
    let directory = tempfile::tempdir().unwrap();
    let gateway = "apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {name: g}\nspec: {gatewayClassName: portcullis, listeners: [{name: a, port: 80, protocol: HTTP}]}\n";
    for (url, answer, status) in [
        ("http://a.example/", "answer    404: the listener has no rule that matches", 0),
        ("http://a.example:81/", "no listener on port 81", 1),
        ("https://a.example:80/", "answer    none: this port speaks HTTP", 1),
    ] {
        let output = portcullis(directory.path(), &["explain", "-f", "-", url], gateway);
        let transcript = transcript(&output);
        assert!(transcript.contains(answer), "{transcript}");
        assert!(transcript.ends_with(&format!("# exit status {status}\n")), "{transcript}");
    }
}

#[test]
fn a_huge_file_is_unreadable_input() {
    let directory = tempfile::tempdir().unwrap();
    fs::File::create(directory.path().join("big.yaml")).unwrap().set_len(20 << 20).unwrap();
    let output = portcullis(directory.path(), &["check", "-o", "yaml", "-f", "big.yaml"], "");
    let expected = "# big.yaml: is 20 MiB big, the limit is 10 MiB: split it, or raise --max-file-size; nothing of it is served\n# exit status 2\n";
    assert_eq!(transcript(&output), expected);
}
