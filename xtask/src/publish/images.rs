//! The images that one tag stands for: one for each processor, and if there are several an index
//! of them, out of which a node takes its own.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Result, bail};
use serde_json::Value;

use crate::architecture::Architecture;
use crate::image::archive::{self, Layout};
use crate::image::blobs::{self, Blobs};
use crate::image::{self, Published};
use crate::publish::registry::{Registry, Repository, Tag};

pub(super) struct Images(BTreeMap<Architecture, Published>);

impl Images {
    pub(super) fn of(programs: &[PathBuf]) -> Result<Self> {
        let mut images = BTreeMap::new();
        for program in programs {
            let image = image::published(program)?;
            let architecture = image.layout.architecture;
            if images.insert(architecture, image).is_some() {
                bail!("{} is the second program for {}", program.display(), architecture.name());
            }
        }
        Ok(Self(images))
    }

    pub(super) fn each(&self) -> impl Iterator<Item = &Published> {
        self.0.values()
    }

    fn layouts(&self) -> impl Iterator<Item = &Layout> {
        self.each().map(|image| &image.layout)
    }

    pub(super) fn architectures(&self) -> String {
        self.0.keys().map(|architecture| architecture.name()).collect::<Vec<_>>().join(" and ")
    }

    /// All that a node may be told to run. The tag leads to the first: the index if there is one.
    pub(super) fn digests(&self) -> Vec<String> {
        let images = self.layouts().map(|image| image.manifest.digest.clone());
        let index = self.index().map(|index| blobs::digest(index.to_string().as_bytes()));
        index.into_iter().chain(images).collect()
    }

    fn index(&self) -> Option<Value> {
        (self.0.len() > 1).then(|| archive::index(self.layouts().map(Layout::entry)))
    }

    pub(super) fn push(&self, registry: &Registry, repository: &Repository, tag: &Tag) -> Result<()> {
        let tag = &tag.to_string();
        let all = self.layouts().flat_map(|image| image.blobs.bytes.clone());
        let blobs = Blobs { bytes: all.collect() };
        match self.index() {
            Some(index) => registry.push_index(&blobs, &index, repository, tag),
            None => {
                let mut images = self.layouts();
                images.try_for_each(|image| registry.push_image(&blobs, &image.manifest, repository, tag))
            }
        }
    }
}
