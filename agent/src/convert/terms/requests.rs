//! Bodies, time-outs, retries and sessions: fields of rules and of TrafficPolicies.

use serde_json::json;

use super::Reading;

/// Attempts of ingress-nginx, the first one included.
const TRIES: u64 = 3;
/// Bytes that ingress-nginx takes where nothing is said.
const BODY: u64 = 1 << 20;
/// Seconds of the longest duration that is written, `99999h0s`: numbers of the API's durations have
/// five digits.
const LONGEST: u64 = 99_999 * 3600;

impl Reading<'_> {
    pub(super) fn requests(&mut self) {
        self.body();
        if self.terms.redirect.is_none() {
            self.timeouts();
            self.retries();
            self.session();
        }
    }

    fn body(&mut self) {
        let Some(size) = self.get("proxy-body-size") else {
            self.terms.traffic.insert("maxRequestBody".to_owned(), json!(BODY));
            return;
        };
        match bytes(size) {
            Some(0) => self.became("proxy-body-size", "no limit, which is the default"),
            Some(bytes) => {
                self.terms.traffic.insert("maxRequestBody".to_owned(), json!(bytes));
                self.became("proxy-body-size", "TrafficPolicy maxRequestBody");
            }
            None => self.close("proxy-body-size", format!("{size:?} is no size")),
        }
    }

    fn timeouts(&mut self) {
        let Some(text) = self.get("proxy-read-timeout") else { return };
        match text.trim_end_matches('s').parse::<u64>() {
            Ok(seconds) if seconds > 0 => {
                self.terms.rule.insert("timeouts".to_owned(), json!({"backendRequest": duration(seconds)}));
                self.differs("proxy-read-timeout", format!("timeouts.backendRequest{}, which is for a whole response, not between two reads; WebSockets have --tcp-idle", bound(seconds)));
            }
            _ => self.lost("proxy-read-timeout", format!("{text:?} is no number of seconds")),
        }
    }

    fn retries(&mut self) {
        let asked = self.get("proxy-next-upstream-tries").and_then(|it| it.parse::<u64>().ok());
        let conditions = self.get("proxy-next-upstream");
        if conditions.is_none() && asked.is_none() {
            return;
        }
        let words: Vec<_> = conditions.unwrap_or("error timeout").split_whitespace().collect();
        let codes = words.iter().filter_map(|word| word.strip_prefix("http_")?.parse::<u16>().ok());
        let codes: Vec<_> = codes.filter(|code| *code >= 400).collect();
        // 0 is nginx' word for no limit.
        let tries = asked.map_or(TRIES, |tries| if tries == 0 { 1001 } else { tries });
        let attempts = if words.contains(&"off") { 0 } else { (tries - 1).min(1000) };
        let mut retry = json!({"attempts": attempts});
        if !codes.is_empty() {
            retry["codes"] = json!(codes);
        }
        self.terms.rule.insert("retry".to_owned(), retry);
        let annotation =
            if conditions.is_some() { "proxy-next-upstream" } else { "proxy-next-upstream-tries" };
        let text = if codes.is_empty() { "retry" } else { "retry with codes, which are for POST, too" };
        self.differs(annotation, text);
        if conditions.is_some() && asked.is_some() {
            self.became("proxy-next-upstream-tries", "retry attempts");
        }
    }

    fn session(&mut self) {
        if self.get("affinity") != Some("cookie") {
            return;
        }
        let name = self.get("session-cookie-name").unwrap_or("INGRESSCOOKIE");
        let mut cookie = json!({"name": name});
        if let Some(path) = self.get("session-cookie-path") {
            cookie["path"] = json!(path);
        }
        let mut session = json!({"type": "Cookie"});
        let age = self.get("session-cookie-max-age").or(self.get("session-cookie-expires"));
        if let Some(seconds) = age.and_then(|it| it.parse::<u64>().ok()).filter(|it| *it > 0) {
            cookie["lifetimeType"] = json!("Permanent");
            session["absoluteTimeout"] = json!(duration(seconds));
            for annotation in ["session-cookie-max-age", "session-cookie-expires"] {
                if self.get(annotation).is_none() {
                    continue;
                }
                let text = format!("sessionPersistence absoluteTimeout{}", bound(seconds));
                match seconds {
                    ..=LONGEST => self.became(annotation, text),
                    _ => self.differs(annotation, text),
                }
            }
        }
        session["cookie"] = cookie;
        self.terms.rule.insert("sessionPersistence".to_owned(), session);
        self.differs(
            "affinity",
            "sessionPersistence of the rules; each rule has sessions of its own, and old cookies begin anew",
        );
        self.parts(&["session-cookie-name", "session-cookie-path"], "sessionPersistence cookie");
        match self.get("session-cookie-samesite") {
            None => {}
            Some("Strict") => self.became("session-cookie-samesite", "the cookie is SameSite=Strict"),
            Some(other) => {
                self.lost("session-cookie-samesite", format!("the cookie is SameSite=Strict, not {other}"))
            }
        }
    }
}

/// A size as nginx has it: `8m`, `1G`.
fn bytes(text: &str) -> Option<u64> {
    let (number, unit) = match text.to_ascii_lowercase() {
        text if text.ends_with('k') => (text.trim_end_matches('k').to_owned(), 10),
        text if text.ends_with('m') => (text.trim_end_matches('m').to_owned(), 20),
        text if text.ends_with('g') => (text.trim_end_matches('g').to_owned(), 30),
        text => (text, 0),
    };
    number.parse::<u64>().ok()?.checked_mul(1 << unit)
}

pub(super) fn duration(seconds: u64) -> String {
    match seconds.min(LONGEST) {
        seconds @ ..=99_999 => format!("{seconds}s"),
        seconds => format!("{}h{}s", seconds / 3600, seconds % 3600),
    }
}

/// Says that a duration is written shorter than it is.
fn bound(seconds: u64) -> &'static str {
    if seconds > LONGEST { " of 99999h, the longest there is" } else { "" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_those_of_nginx() {
        assert_eq!(
            ["0", "8k", "100m", "1G"].map(bytes),
            [Some(0), Some(8192), Some(104_857_600), Some(1 << 30)]
        );
        assert_eq!(["", "m", "1t", "99999999999999g"].map(bytes), [None; 4]);
        assert_eq!([3600, 172_800].map(duration), ["3600s", "48h0s"]);
        assert_eq!([LONGEST, LONGEST + 1, u64::MAX].map(duration), ["99999h0s"; 3]);
        assert_eq!([LONGEST, LONGEST + 1].map(|it| bound(it).is_empty()), [true, false]);
    }
}
