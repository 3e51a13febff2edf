//! Prints, for each kernel program, how many instructions this kernel goes through to verify it,
//! and fails if they are too many. `cargo xtask build-ebpf` runs it on what it has built.

use std::process::ExitCode;

use portcullis_node::{MOST_VERIFIED, Unavailable, verified_instructions};

fn main() -> ExitCode {
    let counted = match verified_instructions() {
        Ok(counted) => counted,
        Err(error @ Unavailable::Refused { .. }) => {
            println!("{error}");
            return ExitCode::FAILURE;
        }
        Err(error) => {
            println!("verified instructions: not counted here: {error}");
            return ExitCode::SUCCESS;
        }
    };
    let mut code = ExitCode::SUCCESS;
    for (program, instructions) in counted {
        match instructions {
            None => println!("verified instructions of {program}: this kernel does not say"),
            Some(number) if number > MOST_VERIFIED => {
                println!("verified instructions of {program}: {number}, more than {MOST_VERIFIED}");
                code = ExitCode::FAILURE;
            }
            Some(number) => println!("verified instructions of {program}: {number}"),
        }
    }
    code
}
