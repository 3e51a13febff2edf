//! `examples/quickstart` as a configuration directory: certificates made, addresses as wanted.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::Authority;

/// As the listeners refer to them: namespace, Secret, host name.
const SECRETS: &[(&str, &str, &str)] =
    &[("shop", "shop-tls", "shop.example.com"), ("blog", "blog-tls", "blog.example.com")];

/// Addresses in the manifests: of the Gateway and of the two backends.
pub const VIP: &str = "127.0.0.80";
pub const SHOP: &str = "127.0.0.81";
pub const BLOG: &str = "127.0.0.82";

/// Writes the example to `directory`, with addresses replaced from first to second.
pub fn write(directory: &Path, authority: &Authority, replace: &[(&str, &str)]) -> Result<()> {
    fs::create_dir_all(directory)?;
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/quickstart");
    for entry in fs::read_dir(&example).with_context(|| format!("no {}", example.display()))? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "yaml") {
            let text = fs::read_to_string(&path)?;
            let text = replace.iter().fold(text, |text, (from, to)| text.replace(from, to));
            fs::write(directory.join(path.file_name().unwrap_or_default()), text)?;
        }
    }
    write_secrets(directory, authority)
}

/// New certificates for the example's Secrets.
pub fn write_secrets(directory: &Path, authority: &Authority) -> Result<()> {
    let secret =
        |(namespace, name, host): &(&str, &str, &str)| Ok(authority.issue(&[host])?.secret(namespace, name));
    let secrets = SECRETS.iter().map(secret).collect::<Result<String>>()?;
    // Renamed into place: a reader sees the old file or the new one.
    let partial = directory.join(".secrets.partial");
    fs::write(&partial, secrets)?;
    fs::rename(&partial, directory.join("secrets.yaml")).context("cannot write the Secrets")
}
