//! Translation as data: golden cases, stories of changes, and the property that following changes comes to the same as
//! starting from scratch.

mod cases;
mod families;
mod incremental;
mod support;
