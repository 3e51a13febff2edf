//! Translation as data: golden cases, stories of changes, and the property that following changes
//! comes to the same as starting from scratch.

#[cfg(test)]
mod cases;
#[cfg(test)]
mod documentation;
#[cfg(test)]
mod families;
#[cfg(test)]
mod fields;
#[cfg(test)]
mod incremental;
#[cfg(test)]
mod limits;
#[cfg(test)]
mod random;
#[cfg(test)]
mod stories;
#[cfg(test)]
mod support;
