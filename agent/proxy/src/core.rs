//! The things that every part of a core may use: the clock, the counters, the settings, the
//! snapshot that is served, the sockets, and the reasons of answers that the gateway gives itself.
//! Nothing here depends on connections or requests.

pub(crate) mod clock;
pub(crate) mod counter;
pub(crate) mod crypto;
pub(crate) mod derived_key;
pub(crate) mod durations;
pub(crate) mod ending;
pub(crate) mod head;
pub(crate) mod histogram;
pub(crate) mod log_budget;
pub(crate) mod log_limit;
pub(crate) mod memory;
pub(crate) mod moment;
pub(crate) mod ordinary_file;
pub(crate) mod otlp;
pub(crate) mod pipe;
pub(crate) mod pseudonym;
pub(crate) mod reason;
pub(crate) mod room;
pub(crate) mod series;
pub(crate) mod settings;
pub(crate) mod shares;
pub(crate) mod snapshot;
pub(crate) mod socket;
pub(crate) mod stats;
pub(crate) mod stream_writer;
pub(crate) mod task;
pub(crate) mod trailers;
pub(crate) mod untaken;
pub(crate) mod upload_progress;
pub(crate) mod waiting_room;
pub(crate) mod window;

pub(crate) use portcullis_model::origin;
