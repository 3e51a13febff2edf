//! Claims of tokens, by their names.

/// The name of a claim; or the names that lead to one within others, with dots between them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ClaimPath(pub Box<str>);
