//! Parent and child routes (GEP-1058) as running traffic.
#![cfg(test)]

mod edits;
mod examples;
mod family;
mod printed;
