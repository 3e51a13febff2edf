//! The parts of an agent (SBOM), as CycloneDX 1.6: the crates that the program itself lists, and
//! those of the kernel programs in it.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use auditable_info::audit_info_from_file;
use portcullis_testbed::{command, workspace};
use serde_json::{Value, json};

/// The workspaces that crates of the agent are from.
const WORKSPACES: [&str; 2] = ["Cargo.toml", "ebpf/Cargo.toml"];
const KERNEL_PROGRAMS: &str = WORKSPACES[1];

/// By name and version.
type Licences = BTreeMap<(String, String), String>;

/// Neither time nor random number: the same program has the same list.
pub(super) fn of(program: &Path) -> Result<Vec<u8>> {
    let listed = audit_info_from_file(program, Default::default());
    let listed = listed.with_context(|| format!("{} does not list its crates", program.display()))?.packages;
    let mut licences = Licences::new();
    for workspace in WORKSPACES {
        licences.extend(crates_of(workspace)?);
    }
    let agent =
        listed.iter().find(|package| package.root).context("the program lists no crate as its own")?;
    let version = env!("CARGO_PKG_VERSION");
    ensure!(
        agent.version.to_string() == version,
        "{} is {}, and {version} is what is published",
        program.display(),
        agent.version
    );
    let mut components = BTreeMap::new();
    for package in listed.iter().filter(|package| !package.root) {
        let mut component = component(&licences, &package.name, &package.version.to_string());
        if serde_json::to_value(package.kind)? == "build" {
            component["scope"] = json!("excluded");
        }
        components.insert(reference(&package.name, &package.version.to_string()), component);
    }
    for (name, version) in crates_of(KERNEL_PROGRAMS)?.into_keys() {
        let component = component(&licences, &name, &version);
        components.entry(reference(&name, &version)).or_insert(component);
    }
    ensure!(components.len() > 1, "{} lists no crates", program.display());
    let dependencies: Vec<_> = listed
        .iter()
        .map(|package| {
            let on = package.dependencies.iter().map(|index| &listed[*index]);
            let on: Vec<_> = on.map(|on| reference(&on.name, &on.version.to_string())).collect();
            json!({ "ref": reference(&package.name, &package.version.to_string()), "dependsOn": on })
        })
        .collect();
    let mut subject = component(&licences, &agent.name, &agent.version.to_string());
    subject["type"] = json!("application");
    let bom = json!({
        "bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1,
        "metadata": { "component": subject },
        "components": components.into_values().collect::<Vec<_>>(),
        "dependencies": dependencies,
    });
    Ok(serde_json::to_vec_pretty(&bom)?)
}

fn component(licences: &Licences, name: &str, version: &str) -> Value {
    let reference = reference(name, version);
    let mut component = json!({ "type": "library", "bom-ref": reference, "purl": reference,
        "name": name, "version": version });
    if let Some(licence) = licences.get(&(name.to_owned(), version.to_owned())) {
        // A slash is how crates said "or" once.
        component["licenses"] = json!([{ "expression": licence.replace('/', " OR ") }]);
    }
    component
}

fn reference(name: &str, version: &str) -> String {
    format!("pkg:cargo/{name}@{version}")
}

/// With their licences; those without one have none.
fn crates_of(manifest: &str) -> Result<Licences> {
    let mut cargo = Command::new("cargo");
    cargo.args(["metadata", "--format-version", "1", "--locked", "--manifest-path"]);
    let metadata = command::output(cargo.arg(workspace::root().join(manifest)))?;
    let metadata: Value = serde_json::from_str(&metadata).context("cargo metadata")?;
    let packages = metadata["packages"].as_array().context("cargo metadata without packages")?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let named =
        |package: &Value| ((text(&package["name"]), text(&package["version"])), text(&package["license"]));
    Ok(packages.iter().map(named).collect())
}
