//! Manifests instead of a running agent: options to settings, and what is wrong with the input to
//! standard error.

use std::net::IpAddr;
use std::path::PathBuf;

use anyhow::{Result, bail};
use portcullis_control::offline::{self, DefaultAddresses, Translated};
use portcullis_control::source::built_in::default_addresses;
use portcullis_gateway::infra::{Parameters, Pods};
use portcullis_gateway::{Outcome, Settings};

use crate::cli::Offline;
use crate::output;

/// Image of pods of mode Dedicated; offline none is given.
const IMAGE: &str = concat!("portcullis.dev/portcullis:", env!("CARGO_PKG_VERSION"));

/// It is the caller who tells of problems of the input.
pub(crate) fn translate(paths: &[PathBuf], args: &Offline) -> Translated {
    let addresses = if args.own_addresses { DefaultAddresses::Own } else { DefaultAddresses::Shared };
    let translated = offline::translate(paths, args.limits.max_file_size(), settings(args), addresses);
    for kind in &translated.batch.ignored {
        output::error(&format!("{kind}: ignored, Portcullis does not use this kind"));
    }
    translated
}

/// As [`translate`], for commands that have nothing to say about a part of the input.
pub(crate) fn translate_readable(paths: &[PathBuf], args: &Offline) -> Result<Outcome> {
    let translated = translate(paths, args);
    translated.batch.problems.iter().for_each(|problem| output::error(&problem.to_string()));
    if !translated.batch.is_readable() {
        bail!("the input cannot be read");
    }
    Ok(translated.outcome)
}

pub(crate) fn settings(args: &Offline) -> Settings {
    let addresses: &[IpAddr] = if args.own_addresses { &[] } else { &args.address };
    Settings {
        controller_name: args.controller_name.clone(),
        default_addresses: default_addresses(addresses),
        generated: Parameters { pods: Some(Pods::new(IMAGE)), ..Parameters::default() },
        external: args.external.rule(),
        host_ports: args.host_ports.rights(None, None),
        ..Settings::default()
    }
}
