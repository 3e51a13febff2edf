//! The reasons why the gateway answers a request itself. One table: the status, the text for the
//! client, and the name for logs, metrics and `docs/proxy.md`.

use http::StatusCode;

macro_rules! reasons {
    ($($(#[doc = $doc:literal])* $reason:ident = $status:ident $name:literal $text:literal,)*) => {
        /// Ordered as a request meets them: edge policy, listener, rule, backend.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Reason {
            $($(#[doc = $doc])* $reason,)*
        }

        impl Reason {
            pub const ALL: &'static [Self] = &[$(Self::$reason),*];

            /// The label of the metric and of the log line.
            pub fn name(self) -> &'static str {
                match self { $(Self::$reason => $name,)* }
            }

            /// A rule that cannot serve has a status of its own.
            pub fn status(self) -> StatusCode {
                match self { $(Self::$reason => StatusCode::$status,)* }
            }

            /// The text for the client: what is wrong, nothing of what is configured.
            pub fn text(self) -> &'static str {
                match self { $(Self::$reason => concat!($text, "\n"),)* }
            }
        }
    };
}

// === impl Reason ===

impl Reason {
    /// Returns `true` for requests that no listener or route took, or that were refused at the
    /// edge.
    pub(crate) fn is_unrouted(self) -> bool {
        match self {
            Self::Malformed
            | Self::Method
            | Self::TargetTooLong
            | Self::FieldsTooLarge
            | Self::NoHost
            | Self::SeveralHosts
            | Self::BadHost
            | Self::HostMismatch
            | Self::SeveralLengths
            | Self::TransferCoding
            | Self::ConnectionOption
            | Self::PathNotAbsolute
            | Self::PathCharacter
            | Self::PathBackslash
            | Self::PathEscape
            | Self::PathNul
            | Self::PathEncodedSlash
            | Self::PathDotParameter
            | Self::Loop
            | Self::NoListener
            | Self::Misdirected
            | Self::NoRoute
            | Self::SlowExpressions => true,
            Self::Options
            | Self::ClientAddress
            | Self::NewConnections
            | Self::PolicyInvalid
            | Self::RateLimited
            | Self::Rule
            | Self::CredentialsMissing
            | Self::CredentialsInvalid
            | Self::TokenExpired
            | Self::ClaimMismatch
            | Self::AuthBusy
            | Self::NoKeys
            | Self::AuthBodies
            | Self::AuthDenied
            | Self::AuthFailed
            | Self::MadePath
            | Self::NoEndpoint
            | Self::BackendFull
            | Self::RetryBudget
            | Self::ConnectFailed
            | Self::ConnectTimeout
            | Self::BackendTls
            | Self::BackendBroken
            | Self::NoWebSocket
            | Self::ResponseTooLarge
            | Self::ResponseCoding
            | Self::Timeout
            | Self::ClientBody
            | Self::BodyTooLarge
            | Self::BodyTooSlow => false,
        }
    }

    /// Returns `true` if the request's own body is what is wrong: a backend that was asked has no
    /// part in it.
    pub(crate) fn is_of_body(self) -> bool {
        matches!(self, Self::ClientBody | Self::BodyTooLarge | Self::BodyTooSlow)
    }

    /// The code that a gRPC client gets instead of the HTTP status: that of gRPC's own mapping from
    /// HTTP (`http-grpc-status-mapping.md`), but for a time-out of the rule, which is no reason to
    /// try again elsewhere. `None` where the request is not fit to be taken for gRPC, or is for
    /// another connection: then the HTTP status is the answer.
    pub(crate) fn grpc_code(self) -> Option<GrpcCode> {
        match self {
            Self::NoListener | Self::NoRoute => Some(GrpcCode::Unimplemented),
            Self::Timeout => Some(GrpcCode::DeadlineExceeded),
            Self::Loop | Self::MadePath => Some(GrpcCode::Unknown),
            Self::CredentialsMissing | Self::CredentialsInvalid | Self::TokenExpired => {
                Some(GrpcCode::Unauthenticated)
            }
            Self::ClaimMismatch | Self::AuthDenied => Some(GrpcCode::PermissionDenied),
            Self::Rule
            | Self::PolicyInvalid
            | Self::RateLimited
            | Self::AuthBusy
            | Self::NoKeys
            | Self::AuthBodies
            | Self::AuthFailed
            | Self::NoEndpoint
            | Self::BackendFull
            | Self::RetryBudget
            | Self::ConnectFailed
            | Self::ConnectTimeout
            | Self::BackendTls
            | Self::BackendBroken
            | Self::NoWebSocket
            | Self::ResponseTooLarge
            | Self::ResponseCoding
            | Self::SlowExpressions
            | Self::NewConnections => Some(GrpcCode::Unavailable),
            Self::Malformed
            | Self::Method
            | Self::TargetTooLong
            | Self::FieldsTooLarge
            | Self::NoHost
            | Self::SeveralHosts
            | Self::BadHost
            | Self::HostMismatch
            | Self::SeveralLengths
            | Self::Options
            | Self::TransferCoding
            | Self::ConnectionOption
            | Self::PathNotAbsolute
            | Self::PathCharacter
            | Self::PathBackslash
            | Self::PathEscape
            | Self::PathNul
            | Self::PathEncodedSlash
            | Self::PathDotParameter
            | Self::Misdirected
            | Self::ClientBody
            | Self::BodyTooLarge
            | Self::BodyTooSlow
            | Self::ClientAddress => None,
        }
    }
}

/// The numbers are gRPC's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GrpcCode {
    /// No reason to try again, other than `Unavailable`.
    Unknown = 2,
    DeadlineExceeded = 4,
    PermissionDenied = 7,
    Unimplemented = 12,
    Internal = 13,
    Unavailable = 14,
    Unauthenticated = 16,
}

// === impl GrpcCode ===

impl GrpcCode {
    /// gRPC's own mapping (`http-grpc-status-mapping.md`).
    pub(crate) fn of_http(status: StatusCode) -> Self {
        match status.as_u16() {
            400 => Self::Internal,
            401 => Self::Unauthenticated,
            403 => Self::PermissionDenied,
            404 => Self::Unimplemented,
            429 | 502 | 503 | 504 => Self::Unavailable,
            _ => Self::Unknown,
        }
    }
}

reasons! {
    /// The HTTP library cannot read it, or the check of its framing keeps the library from it.
    Malformed = BAD_REQUEST "malformed" "the request is malformed",
    /// `TRACE`, and `CONNECT` that asks for no WebSocket.
    Method = METHOD_NOT_ALLOWED "method" "this method is not allowed here",
    TargetTooLong = URI_TOO_LONG "target_too_long" "the request target is too long",
    FieldsTooLarge = REQUEST_HEADER_FIELDS_TOO_LARGE "fields_too_large" "too many or too long header fields",
    NoHost = BAD_REQUEST "no_host" "the request names no host",
    SeveralHosts = BAD_REQUEST "several_hosts" "more than one Host",
    BadHost = BAD_REQUEST "bad_host" "Host is not a host name",
    /// HTTP/2 only: HTTP/1's absolute form overrides `Host` by definition.
    HostMismatch = BAD_REQUEST "host_mismatch" "Host differs from the authority",
    SeveralLengths = BAD_REQUEST "several_lengths" "more than one Content-Length",
    TransferCoding = NOT_IMPLEMENTED "transfer_coding" "only the chunked transfer coding is supported",
    ConnectionOption = BAD_REQUEST "connection_option" "Connection names a field that is not for one connection only",
    /// `OPTIONS *`, which is no failure.
    Options = OK "options" "this gateway is here",
    PathNotAbsolute = BAD_REQUEST "path_not_absolute" "the request target is not a path",
    PathCharacter = BAD_REQUEST "path_character" "a character in the path must be percent-encoded",
    PathBackslash = BAD_REQUEST "path_backslash" "backslash in the path",
    PathEscape = BAD_REQUEST "path_escape" "malformed percent escape in the path",
    PathNul = BAD_REQUEST "path_nul" "NUL in the path",
    PathEncodedSlash = BAD_REQUEST "path_encoded_slash" "encoded slash in the path",
    PathDotParameter = BAD_REQUEST "path_dot_parameter" "path parameter on a dot segment",
    /// No listener of the port serves the host.
    NoListener = NOT_FOUND "no_listener" "no route matches this request",
    /// The host belongs to another listener than the one this connection was opened for.
    Misdirected = MISDIRECTED_REQUEST "misdirected" "this host is served on another connection",
    /// The listener lets in no clients of this address, or a policy permits none.
    ClientAddress = FORBIDDEN "client_address" "clients of this address are not let in",
    /// A budget of new connections of the listener is used up, and this is the first request to it
    /// on its connection.
    NewConnections = SERVICE_UNAVAILABLE "new_connections" "too many new connections",
    /// The request has passed this Gateway before, or too many of ours.
    Loop = LOOP_DETECTED "loop" "this request came here before",
    NoRoute = NOT_FOUND "no_route" "no route matches this request",
    /// Regular expressions of the host's routes took too long, or would have.
    SlowExpressions = SERVICE_UNAVAILABLE "slow_expressions" "the route of this request takes too long to find",
    /// A TrafficPolicy of the listener or the rule cannot be followed; see the policy's status.
    PolicyInvalid = INTERNAL_SERVER_ERROR "policy_invalid" "this request cannot be judged",
    /// A rate limit of a TrafficPolicy leaves no request to the client for now.
    RateLimited = TOO_MANY_REQUESTS "rate_limited" "too many requests",
    /// The rule or the chosen backend reference is invalid; see the route's status.
    Rule = INTERNAL_SERVER_ERROR "rule" "the route cannot serve this request",
    /// The request has none of the credentials that are wanted.
    CredentialsMissing = UNAUTHORIZED "credentials_missing" "credentials are wanted",
    /// Malformed, unknown, of another issuer or audience, or more than one.
    CredentialsInvalid = UNAUTHORIZED "credentials_invalid" "the credentials are not valid",
    TokenExpired = UNAUTHORIZED "token_expired" "the token has expired",
    /// The token is good, and lacks a claim that is required.
    ClaimMismatch = FORBIDDEN "claim_mismatch" "the token does not permit this",
    /// Too many passwords are waiting to be checked.
    AuthBusy = SERVICE_UNAVAILABLE "auth_busy" "too many sign in at once",
    /// The keys of the token's issuer could not be fetched.
    NoKeys = SERVICE_UNAVAILABLE "no_keys" "tokens cannot be checked now",
    /// No memory is left for one more body that an auth service is to see.
    AuthBodies = SERVICE_UNAVAILABLE "auth_bodies" "too many request bodies at once",
    /// An external auth service does not let the request pass. Its own answer, if it can be passed
    /// on, has another status.
    AuthDenied = FORBIDDEN "auth_denied" "this request is not authorised",
    /// An external auth service did not answer, or not in a way that says anything.
    AuthFailed = SERVICE_UNAVAILABLE "auth_failed" "this request could not be authorised",
    /// A PathRewrite of the rule made no path of the request's.
    MadePath = INTERNAL_SERVER_ERROR "made_path" "the route makes no path of this one",
    NoEndpoint = SERVICE_UNAVAILABLE "no_endpoint" "no healthy backend",
    /// It has as many requests as its policy permits, and as many wait.
    BackendFull = SERVICE_UNAVAILABLE "backend_full" "the backend has too many requests",
    /// The backend failed, and as many requests are sent again as its budget permits.
    RetryBudget = SERVICE_UNAVAILABLE "retry_budget" "the backend failed",
    ConnectFailed = SERVICE_UNAVAILABLE "connect_failed" "no healthy backend",
    ConnectTimeout = GATEWAY_TIMEOUT "connect_timeout" "the backend took too long",
    /// The endpoint is not who its BackendTLSPolicy wants, or speaks no TLS.
    BackendTls = BAD_GATEWAY "backend_tls" "the backend failed",
    /// The backend closed, or sent what is no response.
    BackendBroken = BAD_GATEWAY "backend_broken" "the backend failed",
    /// It speaks HTTP/2, and not RFC 8441.
    NoWebSocket = BAD_GATEWAY "no_websocket" "the backend takes no WebSocket",
    /// Its head, by bytes or fields.
    ResponseTooLarge = BAD_GATEWAY "response_too_large" "the backend failed",
    /// A transfer coding other than chunked.
    ResponseCoding = BAD_GATEWAY "response_coding" "the backend failed",
    /// A time-out of the rule, or the backend took nothing of the body for too long.
    Timeout = GATEWAY_TIMEOUT "timeout" "the backend took too long",
    /// Found while the request was being forwarded.
    ClientBody = BAD_REQUEST "client_body" "the request body is malformed or broke off",
    /// Of more bytes than the Gateway allows; if the length is not declared, found while the
    /// request was being forwarded.
    BodyTooLarge = PAYLOAD_TOO_LARGE "body_too_large" "the request body is too large",
    /// Of HTTP/2, where a slow body does not end its connection.
    BodyTooSlow = REQUEST_TIMEOUT "body_too_slow" "the request body comes too slowly",
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_a_name_of_its_own_and_its_place() {
        for (index, reason) in Reason::ALL.iter().enumerate() {
            assert_eq!(*reason as usize, index);
            assert!(Reason::ALL.iter().filter(|other| other.name() == reason.name()).count() == 1);
        }
    }
}
