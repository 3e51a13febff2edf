//! Processors that the agent is built for.

use std::env::consts::ARCH;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use object::{Object, read::elf::ElfFile64};

/// The values are Go's, and so of OCI images and Debian's packages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub(crate) enum Architecture {
    Amd64,
    Arm64,
}

impl Architecture {
    /// This machine's.
    pub(crate) fn host() -> Result<Self> {
        Ok(match ARCH {
            "x86_64" => Self::Amd64,
            "aarch64" => Self::Arm64,
            other => bail!("the agent is not built for {other}"),
        })
    }

    /// The one that a program is for.
    pub(crate) fn of(program: &Path) -> Result<Self> {
        let bytes = fs::read(program).with_context(|| format!("no program at {}", program.display()))?;
        let file = ElfFile64::<object::Endianness>::parse(&*bytes)
            .with_context(|| format!("{} is no ELF program", program.display()))?;
        Ok(match file.architecture() {
            object::Architecture::X86_64 => Self::Amd64,
            object::Architecture::Aarch64 => Self::Arm64,
            other => bail!("{} is for {other:?}, which no image is for", program.display()),
        })
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Amd64 => "amd64",
            Self::Arm64 => "arm64",
        }
    }

    /// As compilers call it.
    pub(crate) fn processor(self) -> &'static str {
        match self {
            Self::Amd64 => "x86_64",
            Self::Arm64 => "aarch64",
        }
    }
}
