//! `portcullis check`: what manifests would do, without an agent or a cluster.

use std::process::ExitCode;

use anyhow::Result;
use portcullis_control::offline::Validity;
use portcullis_inspect::{decided_by_age, dump_snapshot};

use crate::cli::{CheckArgs, Show};
use crate::{offline, output};

pub(crate) fn run(args: &CheckArgs) -> Result<ExitCode> {
    let translated = offline::translate(&args.input.filename, &args.input.settings);
    let mut validity = translated.validity();
    let shown = match args.show {
        Show::Status => translated.with_statuses(),
        Show::Snapshot => vec![dump_snapshot(&translated.outcome.snapshot)],
        Show::Ephemeral => translated.ephemeral(),
        Show::Infra => {
            let (objects, refused) = translated.generated(offline::settings(&args.input.settings));
            refused.iter().for_each(|line| output::error(line));
            if !refused.is_empty() {
                validity = validity.max(Validity::Faulty);
            }
            objects
        }
    };
    // Printed manifests do not carry an age.
    let parents = translated.outcome.ephemeral.keys().filter(|_| args.show == Show::Ephemeral);
    for line in decided_by_age(&translated.outcome.snapshot, parents) {
        output::comment(&line, args.output);
        output::error(&line);
    }
    output::objects(&shown, args.output)?;
    translated.problems().iter().for_each(|line| output::error(line));
    Ok(ExitCode::from(match validity {
        Validity::Valid => 0,
        Validity::Faulty => 1,
        Validity::Unreadable => 2,
    }))
}
