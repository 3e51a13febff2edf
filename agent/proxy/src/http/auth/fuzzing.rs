//! Answers of auth services, for `tests/fuzz` alone.

use http::{HeaderMap, Uri};

use super::{Verdict, edit_query, over_grpc};
use crate::http::answer::Answer;

/// The outcome for a request, by the service's own word.
#[derive(Debug)]
pub enum AuthOutcome {
    /// The request as it goes on, and the fields of its response.
    Allowed {
        target: Uri,
        fields: HeaderMap,
        response: HeaderMap,
    },
    Denied(Answer),
    /// Nothing that is understood; or the request cannot be made what the service wants.
    Failed,
}

pub fn by_grpc(answer: &[u8], mut target: Uri, mut fields: HeaderMap) -> AuthOutcome {
    match over_grpc::judge(answer) {
        Verdict::Allowed(consent, _) => {
            if edit_query(&mut target, &consent.query).is_err() {
                return AuthOutcome::Failed;
            }
            let mut response = HeaderMap::new();
            consent.request.iter().for_each(|change| change.apply(&mut fields));
            consent.response.iter().for_each(|change| change.apply(&mut response));
            AuthOutcome::Allowed { target, fields, response }
        }
        Verdict::DeniedWith(answer) => AuthOutcome::Denied(answer),
        Verdict::DeniedBy(_) | Verdict::Denied | Verdict::Failed(_) => AuthOutcome::Failed,
    }
}
