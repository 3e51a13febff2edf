//! Gateway API durations (GEP-2257): up to four numbers with a unit, for example `1h30m` or
//! `500ms`.

use std::time::Duration;

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "{0:?} is not a duration: write numbers of up to 5 digits with h, m, s or ms, for example 1m30s (GEP-2257)"
)]
pub struct DurationError(pub String);

/// # Errors
/// When the text does not match `^([0-9]{1,5}(h|m|s|ms)){1,4}$`.
pub fn parse_duration(text: &str) -> Result<Duration, DurationError> {
    let malformed = || DurationError(text.to_owned());
    let mut rest = text;
    let mut sum = Duration::ZERO;
    for _ in 0..4 {
        let (part, behind) = first_part(rest).ok_or_else(malformed)?;
        sum += part;
        rest = behind;
        if rest.is_empty() {
            return Ok(sum);
        }
    }
    Err(malformed())
}

fn first_part(text: &str) -> Option<(Duration, &str)> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).filter(|digits| (1..=5).contains(digits))?;
    let (number, rest) = text.split_at(digits);
    let (milliseconds, rest) = [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000)]
        .into_iter()
        .find_map(|(unit, milliseconds)| Some((milliseconds, rest.strip_prefix(unit)?)))?;
    Some((Duration::from_millis(number.parse::<u64>().ok()? * milliseconds), rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_those_of_gep_2257() {
        for (text, milliseconds) in [
            ("1h", Some(3_600_000)),
            ("1h30m", Some(5_400_000)),
            ("10s500ms", Some(10_500)),
            ("0s", Some(0)),
            ("99999h", Some(359_996_400_000)),
            ("1s1s1s1s", Some(4_000)),
            ("1s1s1s1s1s", None),
            ("100000s", None),
            ("1", None),
            ("", None),
            ("-1s", None),
            ("1.5h", None),
            ("1us", None),
            ("5 s", None),
        ] {
            let parsed = parse_duration(text).ok().map(|duration| duration.as_millis());
            assert_eq!(parsed, milliseconds, "{text:?}");
        }
    }
}
