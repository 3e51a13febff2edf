//! The scope of default Gateways (GEP-3793), as Gateways (`defaultScope`) and routes
//! (`useDefaultGateways`) write it.

use std::fmt;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DefaultScope {
    /// "If unset (the default), set to an empty string, or set to None".
    #[default]
    None,
    All,
}

/// A scope that the API does not define.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct UnknownScope(String);

// === impl DefaultScope ===

impl DefaultScope {
    /// # Errors
    /// When the scope is none of the API's.
    pub(crate) fn parse(written: Option<&str>) -> Result<Self, UnknownScope> {
        match written {
            None | Some("" | "None") => Ok(Self::None),
            Some("All") => Ok(Self::All),
            Some(other) => Err(UnknownScope(other.to_owned())),
        }
    }
}

impl fmt::Display for UnknownScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "there is no scope {:?}: use All or None", self.0)
    }
}
