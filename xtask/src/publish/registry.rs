//! A registry of images, through crane.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::str::FromStr;

use anyhow::{Context, Result, bail, ensure};
use portcullis_testbed::{command, go};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::image::archive::{self, MANIFEST};
use crate::image::blobs::{self, Blob, Blobs};

/// The nested Go module, relative to the workspace.
const MODULE: &str = "xtask/registry";
const PACKAGE: &str = "github.com/google/go-containerregistry/cmd/crane";
const EMPTY: &str = "application/vnd.oci.empty.v1+json";

/// `HOST/PATH/NAME`, without a tag.
#[derive(Clone, Debug)]
pub(super) struct Repository(String);

/// A tag that registries take.
#[derive(Clone, Debug)]
pub(super) struct Tag(String);

pub(super) struct Registry {
    program: PathBuf,
    transport: Transport,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Transport {
    Tls,
    Plain,
}

/// A kind of what is attached, and the ending of the tags by which clients find it that do not ask
/// for referrers.
pub(super) type Attachment = (&'static str, &'static str);

/// Something that is pushed, but for its manifest.
pub(super) struct Artifact {
    pub(super) blobs: Blobs,
    pub(super) manifest: Value,
}

// === impl Repository ===

impl Repository {
    /// Charts are beside the image: a repository holds one kind of thing.
    pub(super) fn charts(&self) -> Self {
        let parent = self.0.rsplit_once('/').map_or("", |(parent, _)| parent);
        Self(format!("{parent}/charts"))
    }

    pub(super) fn child(&self, name: &str) -> Self {
        Self(format!("{self}/{name}"))
    }
}

impl FromStr for Repository {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let Some((host, path)) = text.split_once('/') else {
            bail!("HOST/PATH/NAME is wanted, for instance registry.example/team/portcullis");
        };
        ensure!(!host.is_empty() && !path.is_empty() && !text.ends_with('/'), "HOST/PATH/NAME is wanted");
        // Not to be repeated: it may be a password.
        ensure!(!host.contains('@'), "the host has a user or a password: log in by `crane auth login`");
        let is_of_host = |c: char| c.is_ascii_alphanumeric() || ".-:[]".contains(c);
        ensure!(host.chars().all(is_of_host) && !host.starts_with('-'), "{host:?} is no host");
        ensure!(!path.contains([':', '@']), "{path:?} has a tag or a digest: give the tag by --tag");
        let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "._-/".contains(c);
        ensure!(path.chars().all(is_name), "{path:?}: repositories are of a-z, 0-9 and . _ - /");
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Display for Repository {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

// === impl Tag ===

impl Tag {
    /// Of what has no tag of its own.
    pub(super) fn of_version() -> Self {
        Self(env!("CARGO_PKG_VERSION").to_owned())
    }
}

impl FromStr for Tag {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let is_of_tag = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        let is_tag = text.chars().all(is_of_tag) && !text.starts_with(['.', '-']);
        ensure!((1..=128).contains(&text.len()) && is_tag, "{text:?} is no tag: a-z, A-Z, 0-9 and . _ -");
        ensure!(!text.starts_with("sha256-"), "{text:?} is the form of tags of signatures");
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

// === impl Registry ===

impl Registry {
    pub(super) fn new(transport: Transport) -> Result<Self> {
        Ok(Self { program: program()?, transport })
    }

    fn crane(&self) -> Command {
        let mut crane = Command::new(&self.program);
        if self.transport == Transport::Plain {
            crane.arg("--insecure");
        }
        crane
    }

    /// The digest behind a tag, if there is one.
    ///
    /// # Errors
    /// When the registry says neither: what is there could be replaced unseen.
    pub(super) fn digest(&self, repository: &Repository, tag: &Tag) -> Result<Option<String>> {
        const NONE: &[&str] = &["MANIFEST_UNKNOWN", "NAME_UNKNOWN", "NOT_FOUND", "404 Not Found"];
        let reference = format!("{repository}:{tag}");
        match command::output(self.crane().arg("digest").arg(&reference)) {
            Ok(digest) => Ok(Some(digest.trim().to_owned())),
            Err(error) if NONE.iter().any(|none| error.to_string().contains(none)) => Ok(None),
            Err(error) => Err(error).with_context(|| {
                format!("the registry does not say if there is a {reference}; --replace does not ask")
            }),
        }
    }

    /// The manifest of a digest.
    pub(super) fn manifest(&self, repository: &Repository, digest: &str) -> Result<String> {
        let reference = format!("{repository}@{digest}");
        let manifest = command::output(self.crane().arg("manifest").arg(&reference))?;
        ensure!(
            blobs::digest(manifest.as_bytes()) == digest,
            "the registry has something else as {reference}"
        );
        Ok(manifest)
    }

    pub(super) fn blob(&self, repository: &Repository, digest: &str) -> Result<Vec<u8>> {
        let reference = format!("{repository}@{digest}");
        let output = self.crane().arg("blob").arg(&reference).output().context("cannot run crane")?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "cannot read {reference}: {}", said.trim());
        ensure!(blobs::digest(&output.stdout) == digest, "the registry has something else as {reference}");
        Ok(output.stdout)
    }

    /// A node that has an image by this tag would never take another one for it.
    pub(super) fn refuse_other(&self, repository: &Repository, tag: &Tag, digest: &str) -> Result<()> {
        match self.digest(repository, tag)? {
            Some(there) if there != digest => {
                bail!(
                    "{repository}:{tag} is published already, as {there}: raise the version, or --replace it"
                )
            }
            _ => Ok(()),
        }
    }

    pub(super) fn push_image(
        &self,
        blobs: &Blobs,
        manifest: &Blob,
        repository: &Repository,
        tag: &str,
    ) -> Result<()> {
        let layout = layout(blobs, &archive::index([manifest.json()].into_iter()))?;
        self.push_layout(&["push"], layout.path(), &format!("{repository}:{tag}"), &manifest.digest)
    }

    pub(super) fn push_index(
        &self,
        blobs: &Blobs,
        index: &Value,
        repository: &Repository,
        tag: &str,
    ) -> Result<()> {
        let digest = blobs::digest(index.to_string().as_bytes());
        let layout = layout(blobs, index)?;
        self.push_layout(&["push", "--index"], layout.path(), &format!("{repository}:{tag}"), &digest)
    }

    /// Pushes something about what is published, which registries find by its digest.
    pub(super) fn attach(
        &self,
        repository: &Repository,
        subject: &str,
        (kind, suffix): Attachment,
        bytes: Vec<u8>,
    ) -> Result<()> {
        let size = self.manifest(repository, subject)?.len();
        let subject = Blob { kind: MANIFEST, digest: subject.to_owned(), size };
        let mut blobs = Blobs::default();
        let config = blobs.add(EMPTY, b"{}".to_vec());
        let content = blobs.add(kind, bytes);
        let manifest = json!({ "schemaVersion": 2, "mediaType": MANIFEST, "artifactType": kind,
            "config": config.json(), "layers": [content.json()], "subject": subject.json() });
        self.push(Artifact { blobs, manifest }, repository, &tag_of(&subject.digest, suffix))
    }

    pub(super) fn push(&self, artifact: Artifact, repository: &Repository, tag: &str) -> Result<()> {
        let Artifact { mut blobs, manifest } = artifact;
        let manifest = blobs.add(MANIFEST, manifest.to_string().into_bytes());
        self.push_image(&blobs, &manifest, repository, tag)
    }

    fn push_layout(&self, push: &[&str], layout: &Path, reference: &str, digest: &str) -> Result<()> {
        let pushed = command::output(self.crane().args(push).arg(layout).arg(reference));
        let pushed = pushed.with_context(|| format!("cannot push {reference}"))?;
        ensure!(pushed.trim().ends_with(digest), "{reference} is not {digest} but {}", pushed.trim());
        Ok(())
    }
}

/// crane.
pub(super) fn program() -> Result<PathBuf> {
    go::built(MODULE, PACKAGE, "crane")
}

/// The tag by which cosign finds what belongs to a digest.
pub(super) fn tag_of(digest: &str, kind: &str) -> String {
    format!("{}.{kind}", digest.replace(':', "-"))
}

fn layout(blobs: &Blobs, index: &Value) -> Result<TempDir> {
    let directory = tempfile::tempdir()?;
    let write = |name: &str, bytes: &[u8]| fs::write(directory.path().join(name), bytes);
    fs::create_dir_all(directory.path().join("blobs/sha256"))?;
    write("oci-layout", json!({ "imageLayoutVersion": "1.0.0" }).to_string().as_bytes())?;
    write("index.json", index.to_string().as_bytes())?;
    for (digest, bytes) in &blobs.bytes {
        write(&blobs::path(digest), bytes)?;
    }
    Ok(directory)
}
