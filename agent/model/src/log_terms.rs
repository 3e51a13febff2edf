//! The access log of a listener, where policies say something else than the parameters of its
//! Gateway.

use http::StatusCode;

use crate::{AccessLog, LogFormat, OmittedFields};

/// The say of the policies of all levels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogTerms {
    /// Of the Gateway's owner. It comes in the place of the parameters.
    pub of_gateway: Option<LogPatch>,
    /// Of another owner of the listener, who may have more logged, and never less.
    pub of_listener: Option<LogPatch>,
}

/// Fields of an access log. What is not said is as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogPatch {
    pub lines: LogLines,
    pub format: Option<LogFormat>,
    pub minimum_status: Option<StatusCode>,
    pub omit: Option<OmittedFields>,
}

/// The requests and flows that have lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogLines {
    None,
    /// Those with the minimum status.
    Some,
}

// === impl LogTerms ===

impl LogTerms {
    /// The log of a listener whose Gateway has this one by its parameters.
    pub fn log(&self, parameters: Option<AccessLog>) -> Option<AccessLog> {
        let of_gateway = self.of_gateway.map_or(parameters, |patch| patch.over(parameters));
        self.of_listener.map_or(of_gateway, |patch| patch.beside(of_gateway))
    }
}

// === impl LogPatch ===

impl LogPatch {
    /// With the fields of a wider level, where this one does not say.
    #[must_use]
    pub fn within(self, wider: Self) -> Self {
        let Self { lines, format, minimum_status, omit } = self;
        let minimum_status = minimum_status.or(wider.minimum_status);
        Self { lines, format: format.or(wider.format), minimum_status, omit: omit.or(wider.omit) }
    }

    fn over(self, log: Option<AccessLog>) -> Option<AccessLog> {
        match self.lines {
            LogLines::None => None,
            LogLines::Some => {
                let AccessLog { format, minimum_status, omit } = log.unwrap_or_default();
                let minimum_status = self.minimum_status.unwrap_or(minimum_status);
                let omit = self.omit.unwrap_or(omit);
                Some(AccessLog { format: self.format.unwrap_or(format), minimum_status, omit })
            }
        }
    }

    fn beside(self, log: Option<AccessLog>) -> Option<AccessLog> {
        let own = self.over(None);
        let Some((own, log)) = own.zip(log) else { return own.or(log) };
        Some(AccessLog { minimum_status: own.minimum_status.min(log.minimum_status), ..log })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LogField;

    fn patch(lines: LogLines, format: Option<LogFormat>, minimum: Option<u16>) -> Option<LogPatch> {
        let minimum_status = minimum.map(|status| StatusCode::from_u16(status).unwrap());
        Some(LogPatch { lines, format, minimum_status, omit: None })
    }

    fn log(format: LogFormat, minimum: u16) -> Option<AccessLog> {
        let minimum_status = StatusCode::from_u16(minimum).unwrap();
        Some(AccessLog { format, minimum_status, ..AccessLog::default() })
    }

    #[test]
    fn the_gateways_owner_changes_the_log_and_others_add_to_it() {
        let (none, text) = (LogLines::None, Some(LogFormat::Text));
        let some = LogLines::Some;
        for (of_gateway, of_listener, parameters, expected) in [
            (None, None, log(LogFormat::Text, 400), log(LogFormat::Text, 400)),
            (patch(none, None, None), None, log(LogFormat::Text, 400), None),
            (patch(some, text, None), None, None, log(LogFormat::Text, 100)),
            (patch(some, text, None), None, log(LogFormat::Json, 400), log(LogFormat::Text, 400)),
            (patch(some, None, Some(500)), None, log(LogFormat::Text, 400), log(LogFormat::Text, 500)),
            // Another owner has more logged, never less, and in the form that the log has.
            (None, patch(none, None, None), log(LogFormat::Text, 400), log(LogFormat::Text, 400)),
            (None, patch(some, None, Some(500)), log(LogFormat::Text, 400), log(LogFormat::Text, 400)),
            (None, patch(some, text, None), log(LogFormat::Json, 400), log(LogFormat::Json, 100)),
            (None, patch(some, text, Some(500)), None, log(LogFormat::Text, 500)),
            (
                patch(none, None, None),
                patch(some, None, None),
                log(LogFormat::Text, 400),
                log(LogFormat::Json, 100),
            ),
        ] {
            let terms = LogTerms { of_gateway, of_listener };
            assert_eq!(terms.log(parameters), expected, "{terms:?} {parameters:?}");
        }
        let wider = patch(some, text, Some(400)).unwrap();
        let narrower = patch(some, None, Some(500)).unwrap().within(wider);
        assert_eq!(Some(narrower), patch(some, text, Some(500)));
    }

    #[test]
    fn no_other_owner_has_fields_left_out_of_the_gateways_log() {
        let query: OmittedFields = [LogField::Query].into_iter().collect();
        let own = LogPatch { omit: Some(query), ..patch(LogLines::Some, None, None).unwrap() };
        let omits = |of_gateway, of_listener, parameters| {
            LogTerms { of_gateway, of_listener }.log(parameters).unwrap().omit.has(LogField::Query)
        };
        assert!(omits(Some(own), None, log(LogFormat::Json, 100)));
        assert!(!omits(None, Some(own), log(LogFormat::Json, 100)));
        assert!(omits(None, Some(own), None));
        let all = Some(LogPatch { omit: Some(OmittedFields::default()), ..own });
        assert!(!omits(all, None, None) && omits(Some(own), all, None));
    }
}
