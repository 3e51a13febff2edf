//! The kinds of objects that define listeners.

use serde::Serialize;

/// The kind of object that holds a listener's definition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub enum ParentKind {
    Gateway,
    ListenerSet,
}
