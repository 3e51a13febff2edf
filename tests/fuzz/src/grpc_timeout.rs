//! Deadlines of gRPC calls: a backend is told no more time than there is, and reads what it is
//! told.

use portcullis_proxy::fuzzing::{grpc_timeout, grpc_timeout_told};

pub(crate) fn run(bytes: &[u8]) {
    let Some(given) = grpc_timeout(bytes) else { return };
    // Of more seconds than eight digits say, nothing is told: the client's own word goes on.
    let Some(told) = grpc_timeout_told(given) else {
        assert!(given.as_secs() > 99_999_999, "nothing is told of {given:?}");
        return;
    };
    let Some(read) = grpc_timeout(told.as_bytes()) else { unreachable!("{told:?} of {given:?}") };
    assert!(read <= given, "{told:?} of {given:?}");
    // It is as exact as eight digits are, and milliseconds at best.
    let lost = given - read;
    assert!(
        lost.as_secs() < 1 && (given.as_secs() >= 99_999 || lost.as_millis() < 1),
        "{told:?} of {given:?}"
    );
}
