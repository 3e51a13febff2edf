//! Answers of DNS servers, for `tests/fuzz` alone: the code that serves reads them, and what came
//! of it is told in plain types.

use std::collections::BTreeSet;
use std::net::IpAddr;

use bytes::Bytes;
use domain::base::{Message, Rtype};
use domain::net::client::request::ComposeRequest;

use super::dns::{Answer, question, read};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    V4,
    V6,
}

/// The outcome of a question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Addresses, and their life in seconds.
    Addresses(BTreeSet<IpAddr>, u32),
    NoName,
    /// It is the answer, and says nothing that is believed.
    Nothing,
}

/// The outcome of asking for the addresses of a name, if the message is an answer to that. Its
/// number is taken for that of the question, which no server can know otherwise.
pub fn answer(name: &str, family: Family, message: &[u8]) -> Option<Outcome> {
    let kind = match family {
        Family::V4 => Rtype::A,
        Family::V6 => Rtype::AAAA,
    };
    let mut question = question(name, kind)?;
    let message = Message::from_octets(Bytes::copy_from_slice(message)).ok()?;
    question.header_mut().set_id(message.header().id());
    if !question.is_answer(message.for_slice()) {
        return None;
    }
    Some(match read(&message) {
        Ok(Answer::Addresses(addresses, seconds)) => Outcome::Addresses(addresses, seconds),
        Ok(Answer::NoName) => Outcome::NoName,
        Err(_) => Outcome::Nothing,
    })
}
