//! From CRDs to Rust types: collect every struct, give equal shapes one name, say which file each
//! goes to.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, bail};
use heck::ToUpperCamelCase;
use serde_json::Value;

use super::shape::{Field, Shape};
use super::{Files, names, render};

/// One kind, its spec, and the structs found in spec and status, outermost first.
struct Kind {
    crd: render::Resource,
    /// Always a type of its own: `#[derive(CustomResource)]` makes the kind from it.
    spec: Occurrence,
    occurrences: Vec<Occurrence>,
}

/// A struct where it occurs.
struct Occurrence {
    default_name: String,
    fields: Vec<Field>,
}

pub(super) fn generate(crds: &[Value]) -> Result<Files> {
    let kinds = crds.iter().map(kind).collect::<Result<Vec<_>>>()?;
    let names = name_all(&kinds)?;
    let shared = shared(&kinds, &names)?;
    let mut files = Files::new();
    files.insert(render::path("shared"), render::shared(&shared)?);
    files.insert(render::path("mod"), render::index(kinds.iter().map(|kind| kind.crd.plural.as_str())));
    for kind in &kinds {
        files.insert(render::path(&kind.crd.plural), file(kind, &names, &shared)?);
    }
    Ok(files)
}

fn kind(crd: &Value) -> Result<Kind> {
    let resource = render::Resource::of(crd)?;
    let properties = &newest(crd)["schema"]["openAPIV3Schema"]["properties"];
    let prefix = resource.kind.to_upper_camel_case();
    let mut occurrences = Vec::new();
    for (part, inner) in [("spec", ""), ("status", "Status")] {
        if properties[part].is_object() {
            let schema = as_old_as_served(crd, part, &properties[part]);
            let shape = Shape::of(&schema).with_context(|| format!("{} {part}", resource.kind))?;
            let name = format!("{prefix}{}", part.to_upper_camel_case());
            collect(&shape, &name, &format!("{prefix}{inner}"), &mut occurrences);
        }
    }
    if occurrences.is_empty() {
        bail!("{} has no spec", resource.kind);
    }
    let spec = occurrences.remove(0);
    Ok(Kind { crd: resource, spec, occurrences })
}

/// The stored version that everything else converts to: v1, or the only one there is.
fn newest(crd: &Value) -> &Value {
    let versions = &crd["spec"]["versions"];
    let mut all = versions.as_array().into_iter().flatten();
    all.find(|version| version["name"] == "v1").unwrap_or(&versions[0])
}

/// The schema without the requirements that an older version does not have: an object of that
/// version is served as the newest one, and has not got what it did not need.
fn as_old_as_served(crd: &Value, part: &str, schema: &Value) -> Value {
    let mut schema = schema.clone();
    let versions = crd["spec"]["versions"].as_array().into_iter().flatten();
    for version in versions.filter(|version| version["served"] == true) {
        let required = &version["schema"]["openAPIV3Schema"]["properties"][part]["required"];
        let required: Vec<_> = required.as_array().into_iter().flatten().collect();
        if let Some(all) = schema["required"].as_array_mut() {
            all.retain(|field| required.contains(&field));
        }
    }
    schema
}

fn collect(shape: &Shape, name: &str, prefix: &str, occurrences: &mut Vec<Occurrence>) {
    let Some(fields) = shape.inner_struct() else { return };
    occurrences.push(Occurrence { default_name: name.to_owned(), fields: fields.to_vec() });
    for field in fields {
        let name = format!("{prefix}{}", field.key.to_upper_camel_case());
        collect(&field.shape, &name, &name, occurrences);
    }
}

/// The final name of each shape. A shape in several places must have one in [`names`], so that
/// readers need not guess which place a shared type is named after.
fn name_all(kinds: &[Kind]) -> Result<render::Names> {
    let mut occurrences: BTreeMap<&[Field], Vec<&str>> = BTreeMap::new();
    for place in kinds.iter().flat_map(|kind| &kind.occurrences) {
        occurrences.entry(&place.fields).or_default().push(&place.default_name);
    }
    let mut names = render::Names::new();
    for (fields, defaults) in occurrences {
        let better: BTreeSet<_> = defaults.iter().filter_map(|default| names::better(default)).collect();
        let name = match (better.first(), defaults.as_slice()) {
            (Some(name), _) if better.len() == 1 => (*name).to_owned(),
            (None, [default]) => (*default).to_owned(),
            _ => bail!("equal shapes need one name in codegen/names.rs: {}", defaults.join(", ")),
        };
        names.insert(fields.to_vec(), name);
    }
    Ok(names)
}

/// The types that more than one place uses, by name, in their widest form.
fn shared(kinds: &[Kind], names: &render::Names) -> Result<BTreeMap<String, Vec<String>>> {
    let mut forms: BTreeMap<&String, Vec<Vec<String>>> = BTreeMap::new();
    for place in kinds.iter().flat_map(|kind| &kind.occurrences) {
        forms.entry(&names[&place.fields]).or_default().push(render::members(&place.fields, names));
    }
    forms.retain(|_, forms| forms.len() > 1);
    forms.into_iter().map(|(name, forms)| Ok((name.clone(), widest(name, forms)?))).collect()
}

fn widest(name: &str, mut forms: Vec<Vec<String>>) -> Result<Vec<String>> {
    forms.sort_by_key(Vec::len);
    let widest = forms.pop().unwrap_or_default();
    if forms.iter().flatten().any(|member| !widest.contains(member)) {
        bail!("the occurrences called {name} in codegen/names.rs differ in more than missing fields");
    }
    Ok(widest)
}

fn file(kind: &Kind, names: &render::Names, shared: &BTreeMap<String, Vec<String>>) -> Result<String> {
    let inner = kind.occurrences.iter().map(|place| (&names[&place.fields], &place.fields));
    let own = inner.filter(|(name, _)| !shared.contains_key(*name));
    let all = [(&kind.spec.default_name, &kind.spec.fields)].into_iter().chain(own);
    let structs: Vec<_> = all.map(|(name, fields)| (name.clone(), render::members(fields, names))).collect();
    let status = kind.occurrences.iter().find(|place| place.default_name == kind.crd.status_name());
    let status = status.map(|place| names[&place.fields].as_str());
    render::resource(&kind.crd, status, &structs, shared)
}
