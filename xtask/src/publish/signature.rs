//! Signatures of images as cosign makes and verifies them: a note of the image's digest, and its
//! signature in an annotation, beside the image.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use portcullis_testbed::command;
use serde_json::json;

use crate::image::archive::{CONFIG, MANIFEST};
use crate::image::blobs::Blobs;
use crate::publish::registry::{Artifact, Registry, Repository, tag_of};

const PAYLOAD: &str = "application/vnd.dev.cosign.simplesigning.v1+json";
const SIGNATURE: &str = "dev.cosignproject.cosign/signature";

/// An ECDSA key in a file that openssl reads.
pub(super) struct Key(PathBuf);

impl Key {
    /// # Errors
    /// When it is no such key: before anything is published.
    pub(super) fn read(path: &Path) -> Result<Self> {
        let text =
            fs::read_to_string(path).with_context(|| format!("cannot read --key {}", path.display()))?;
        if text.contains("ENCRYPTED") {
            bail!(
                "--key {} is encrypted: decrypt it, or make one by `openssl ecparam -name prime256v1 -genkey -noout`",
                path.display()
            );
        }
        let kind =
            command::output(Command::new("openssl").args(["pkey", "-noout", "-text", "-in"]).arg(path));
        let kind = kind.with_context(|| format!("--key {} is no key", path.display()))?;
        ensure!(kind.contains("prime256v1"), "--key {} is no ECDSA key of P-256", path.display());
        Ok(Self(path.to_owned()))
    }

    pub(super) fn sign(&self, registry: &Registry, repository: &Repository, digest: &str) -> Result<()> {
        let payload = json!({
            "critical": {
                "identity": { "docker-reference": repository.to_string() },
                "image": { "docker-manifest-digest": digest },
                "type": "cosign container image signature",
            },
            "optional": null,
        });
        let payload = payload.to_string().into_bytes();
        let signature = STANDARD.encode(self.signature(&payload)?);
        let mut blobs = Blobs::default();
        let payload = blobs.add(PAYLOAD, payload);
        let config = json!({ "architecture": "", "os": "", "config": {},
            "rootfs": { "type": "layers", "diff_ids": [payload.digest] } });
        let config = blobs.add(CONFIG, config.to_string().into_bytes());
        let mut layer = payload.json();
        layer["annotations"] = json!({ SIGNATURE: signature });
        let manifest = json!({ "schemaVersion": 2, "mediaType": MANIFEST,
            "config": config.json(), "layers": [layer] });
        registry.push(Artifact { blobs, manifest }, repository, &tag_of(digest, "sig"))
    }

    fn signature(&self, payload: &[u8]) -> Result<Vec<u8>> {
        let directory = tempfile::tempdir()?;
        let file = directory.path().join("payload");
        fs::write(&file, payload)?;
        let mut openssl = Command::new("openssl");
        openssl.args(["dgst", "-sha256", "-sign"]).arg(&self.0).arg(file).stdin(Stdio::null());
        let output = openssl.output().context("cannot run openssl")?;
        ensure!(output.status.success(), "openssl: {}", String::from_utf8_lossy(&output.stderr).trim());
        Ok(output.stdout)
    }
}
