//! Memory of what was logged, so that the log has each thing once: a state that is looked at again
//! and again is logged when it changes, and of a list of problems those that are new or solved. It
//! knows neither a log nor the words of a line.

mod last_logged;
mod problems;

pub use last_logged::LastLogged;
pub use problems::{CurrentProblems, Difference};
