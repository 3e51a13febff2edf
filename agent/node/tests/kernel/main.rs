//! Kernel programs on real hooks, in network namespaces: each module's tests are of one subject.
//! A test that changes its whole process is a program of its own, next to this directory.
#![cfg(test)]

mod addresses;
#[path = "../../../../common/tests/client_hello/corpus.rs"]
mod corpus;
mod deferral;
mod exclusive;
mod forward;
mod forward_ways;
mod forward_world;
mod full_clients;
mod guard;
mod lock;
mod names;
mod names_frames;
mod neighbours;
mod node;
mod notrack;
#[path = "../../../../common/tests/packets/mod.rs"]
mod packets;
mod refuse;
mod steer;
#[path = "../support/mod.rs"]
mod support;
mod syn_hold;
