//! A container image of one layer, as a tar archive that is an OCI image layout and what
//! `docker save` writes at once: `ctr images import`, `docker load`, `podman load` and skopeo all
//! take it.
//!
//! No time, user name or random value of the machine gets in.

use std::fs;
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result};
use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::{Value, json};
use tar::{EntryType, Header};

use crate::architecture::Architecture;
use crate::image::blobs::{self, Blob, Blobs};

pub(crate) const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
pub(crate) const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
pub(crate) const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";
const COMPRESSED_LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";

const USERS: &str = "root:x:0:0:root:/:/none\nnobody:x:65532:65532:nobody:/:/none\n";
const EPOCH: &str = "1970-01-01T00:00:00Z";

/// As whom the program runs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum User {
    /// Kubernetes gives added capabilities to no other.
    Root,
    Nobody,
}

/// One static program and a few files.
pub(crate) struct Image<'a> {
    pub(crate) program: &'a Path,
    pub(crate) user: User,
    /// Copied to where they are here.
    pub(crate) files: &'a [&'a Path],
    /// For registries: nodes fetch a third of the bytes.
    pub(crate) compressed: bool,
}

/// An image, in parts.
pub(crate) struct Layout {
    pub(crate) blobs: Blobs,
    pub(crate) manifest: Blob,
    pub(crate) architecture: Architecture,
    config: Blob,
    layer: Blob,
}

impl Image<'_> {
    pub(crate) fn layout(&self) -> Result<Layout> {
        let architecture = Architecture::of(self.program)?;
        let mut blobs = Blobs::default();
        let layer = self.layer()?;
        let content = blobs::digest(&layer);
        let layer = match self.compressed {
            true => blobs.add(COMPRESSED_LAYER, compress(&layer)?),
            false => blobs.add(LAYER, layer),
        };
        let config = blobs.add(CONFIG, self.config(&content, architecture)?.to_string().into_bytes());
        let manifest = json!({ "schemaVersion": 2, "mediaType": MANIFEST,
            "config": config.json(), "layers": [layer.json()] });
        let manifest = blobs.add(MANIFEST, manifest.to_string().into_bytes());
        Ok(Layout { blobs, manifest, architecture, config, layer })
    }

    /// Writes the archive; returns the image's digest.
    pub(crate) fn write(&self, tags: &[String], place: &Path) -> Result<String> {
        let layout = self.layout()?;
        let mut archive = Archive::new();
        archive.file("oci-layout", 0o644, json!({ "imageLayoutVersion": "1.0.0" }).to_string().as_bytes())?;
        archive.file("index.json", 0o644, layout.index(tags).to_string().as_bytes())?;
        archive.file("manifest.json", 0o644, layout.docker(tags).to_string().as_bytes())?;
        for (digest, bytes) in &layout.blobs.bytes {
            archive.file(&blobs::path(digest), 0o644, bytes)?;
        }
        fs::create_dir_all(place.parent().unwrap_or(place))?;
        fs::write(place, archive.finish()?).with_context(|| format!("cannot write {}", place.display()))?;
        Ok(layout.manifest.digest)
    }

    fn layer(&self) -> Result<Vec<u8>> {
        let mut layer = Archive::new();
        layer.directory("tmp/", 0o1777)?;
        layer.directory("etc/", 0o755)?;
        layer.file("etc/passwd", 0o644, USERS.as_bytes())?;
        for file in self.files {
            let bytes = fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
            layer.file(relative(file), 0o644, &bytes)?;
        }
        let program = fs::read(self.program).with_context(|| format!("no {}", self.program.display()))?;
        layer.file(relative(Path::new(&self.entrypoint()?)), 0o755, &program)?;
        layer.finish()
    }

    fn config(&self, layer: &str, architecture: Architecture) -> Result<Value> {
        let user = if self.user == User::Root { "0:0" } else { "65532:65532" };
        Ok(json!({
            "created": EPOCH,
            "architecture": architecture.name(),
            "os": "linux",
            "config": { "Entrypoint": [self.entrypoint()?], "User": user, "WorkingDir": "/", "Labels": labels() },
            "rootfs": { "type": "layers", "diff_ids": [layer] },
        }))
    }

    /// The program is at the root, under its own name.
    fn entrypoint(&self) -> Result<String> {
        let name = self.program.file_name().context("the program has no name")?;
        Ok(format!("/{}", name.to_string_lossy()))
    }
}

impl Layout {
    /// The image's entry in an index.
    pub(crate) fn entry(&self) -> Value {
        let mut entry = self.manifest.json();
        entry["platform"] = json!({ "architecture": self.architecture.name(), "os": "linux" });
        entry
    }

    /// One entry for each tag. containerd reads the first annotation, podman and skopeo the second.
    fn index(&self, tags: &[String]) -> Value {
        let tagged = |tag: &String| {
            let mut entry = self.entry();
            entry["annotations"] =
                json!({ "io.containerd.image.name": tag, "org.opencontainers.image.ref.name": tag });
            entry
        };
        index(tags.iter().map(tagged))
    }

    fn docker(&self, tags: &[String]) -> Value {
        json!([{ "Config": self.config.path(), "RepoTags": tags, "Layers": [self.layer.path()] }])
    }
}

pub(crate) fn index(entries: impl Iterator<Item = Value>) -> Value {
    json!({ "schemaVersion": 2, "mediaType": INDEX, "manifests": entries.collect::<Vec<_>>() })
}

/// A tar archive in memory, of which every entry has the same owner and time.
struct Archive {
    tar: tar::Builder<Vec<u8>>,
}

impl Archive {
    fn new() -> Self {
        Self { tar: tar::Builder::new(Vec::new()) }
    }

    fn file(&mut self, name: &str, mode: u32, bytes: &[u8]) -> Result<()> {
        self.entry(name, EntryType::Regular, mode, bytes)
    }

    fn directory(&mut self, name: &str, mode: u32) -> Result<()> {
        self.entry(name, EntryType::Directory, mode, &[])
    }

    fn entry(&mut self, name: &str, kind: EntryType, mode: u32, bytes: &[u8]) -> Result<()> {
        let mut header = Header::new_ustar();
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_size(bytes.len() as u64);
        header.set_mtime(0);
        header.set_uid(0);
        header.set_gid(0);
        Ok(self.tar.append_data(&mut header, name, bytes)?)
    }

    fn finish(self) -> Result<Vec<u8>> {
        Ok(self.tar.into_inner()?)
    }
}

fn compress(layer: &[u8]) -> Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(layer)?;
    Ok(encoder.finish()?)
}

/// Those that the OCI image specification names; no revision, because a checkout without `.git`
/// gives the same image.
fn labels() -> Value {
    json!({
        "org.opencontainers.image.title": "Portcullis",
        "org.opencontainers.image.description": "A Kubernetes Gateway API gateway, one agent per node",
        "org.opencontainers.image.version": env!("CARGO_PKG_VERSION"),
        "org.opencontainers.image.licenses": "Apache-2.0",
        "org.opencontainers.image.url": "https://portcullis.dev",
    })
}

fn relative(path: &Path) -> &str {
    path.to_str().unwrap_or_default().trim_start_matches('/')
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use sha2::{Digest, Sha256};

    use super::*;

    /// A program that has nothing but a header.
    fn header(machine: object::elf::Machine) -> Vec<u8> {
        let mut header = vec![0; 64];
        header[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
        header[16..18].copy_from_slice(&object::elf::ET_EXEC.0.to_le_bytes());
        header[18..20].copy_from_slice(&machine.0.to_le_bytes());
        header[20] = 1;
        header[52] = 64;
        header
    }

    fn written(name: &str) -> (String, Vec<u8>) {
        let directory = std::env::temp_dir().join(format!("portcullis-image-{}-{name}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let program = directory.join("program");
        fs::write(&program, header(object::elf::EM_AARCH64)).unwrap();
        let tags = vec!["example.org/a:1".to_owned(), "example.org/a:2".to_owned()];
        let place = directory.join("image.tar");
        let image = Image { program: &program, user: User::Nobody, files: &[], compressed: false };
        let digest = image.write(&tags, &place).unwrap();
        let bytes = fs::read(&place).unwrap();
        fs::remove_dir_all(directory).unwrap();
        (digest, bytes)
    }

    fn entries(archive: &[u8]) -> BTreeMap<String, Vec<u8>> {
        let mut archive = tar::Archive::new(archive);
        let read = |entry: std::io::Result<tar::Entry<'_, &[u8]>>| {
            let mut entry = entry.unwrap();
            let mut bytes = Vec::new();
            std::io::copy(&mut entry, &mut bytes).unwrap();
            (entry.path().unwrap().display().to_string(), bytes)
        };
        archive.entries().unwrap().map(read).collect()
    }

    #[test]
    fn the_same_input_gives_the_same_bytes() {
        assert_eq!(written("first"), written("second"));
    }

    #[test]
    fn every_digest_names_its_blob() {
        let (_, archive) = written("digests");
        let blobs = entries(&archive);
        let blobs: Vec<_> = blobs.iter().filter(|(name, _)| name.starts_with("blobs/")).collect();
        assert_eq!(blobs.len(), 3, "layer, config, manifest");
        for (name, bytes) in blobs {
            let hex: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(*name, format!("blobs/sha256/{hex}"));
        }
    }

    #[test]
    fn each_tag_is_in_both_indexes() {
        let (digest, archive) = written("tags");
        let entries = entries(&archive);
        let index: Value = serde_json::from_slice(&entries["index.json"]).unwrap();
        let docker: Value = serde_json::from_slice(&entries["manifest.json"]).unwrap();
        for (position, tag) in ["example.org/a:1", "example.org/a:2"].into_iter().enumerate() {
            assert_eq!(index["manifests"][position]["annotations"]["io.containerd.image.name"], tag);
            assert_eq!(index["manifests"][position]["digest"], digest.as_str());
            assert_eq!(index["manifests"][position]["platform"]["architecture"], "arm64");
            assert_eq!(docker[0]["RepoTags"][position], tag);
        }
    }

    #[test]
    fn the_layer_holds_the_program() {
        let (_, archive) = written("layer");
        let blobs = entries(&archive);
        let docker: Value = serde_json::from_slice(&blobs["manifest.json"]).unwrap();
        let layer = entries(&blobs[docker[0]["Layers"][0].as_str().unwrap()]);
        assert_eq!(layer["program"], header(object::elf::EM_AARCH64));
        assert_eq!(layer["etc/passwd"], USERS.as_bytes());
    }
}
