//! The syntax that Kubernetes takes as the name of a label or an annotation, as a label's value and
//! as a quantity: what it would refuse in a generated object is a fault of the parameters
//! instead.

/// Of labels and annotations: letters, digits, `-`, `_` and `.`, at most 63, after a DNS name and
/// `/` if there is one.
pub(super) fn is_qualified_name(text: &str) -> bool {
    match text.split_once('/') {
        Some((prefix, name)) => is_dns_subdomain(prefix) && is_name(name),
        None => is_name(text),
    }
}

pub(super) fn is_label_value(text: &str) -> bool {
    text.is_empty() || is_name(text)
}

fn is_name(text: &str) -> bool {
    let bytes = text.as_bytes();
    bytes.len() <= 63
        && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(byte))
        && bytes.first().is_some_and(u8::is_ascii_alphanumeric)
        && bytes.last().is_some_and(u8::is_ascii_alphanumeric)
}

fn is_dns_subdomain(text: &str) -> bool {
    let is_lower = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    text.len() <= 253
        && text.split('.').all(|label| {
            let bytes = label.as_bytes();
            bytes.iter().all(|byte| is_lower(*byte) || *byte == b'-')
                && bytes.first().copied().is_some_and(is_lower)
                && bytes.last().copied().is_some_and(is_lower)
        })
}

/// The amount of a quantity in units of 10⁻⁹, which is as fine as Kubernetes keeps it, rounded up
/// as there: `0.5` and `500m` are the same. `None` if it is no quantity, negative, or beyond all
/// measure.
pub(super) fn billionths(quantity: &str) -> Option<u128> {
    let digits_end = quantity.find(|it: char| !it.is_ascii_digit() && it != '.').unwrap_or(quantity.len());
    let (number, suffix) = quantity.split_at(digits_end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let fraction = fraction.trim_end_matches('0');
    if number.is_empty() || number == "." || fraction.contains('.') {
        return None;
    }
    let digits: u128 = format!("0{whole}{fraction}").parse().ok()?;
    let (factor, exponent) = unit(suffix)?;
    let exponent = exponent + 9 - i32::try_from(fraction.len()).ok()?;
    let power = 10_u128.checked_pow(exponent.unsigned_abs())?;
    let amount = digits.checked_mul(factor)?;
    if exponent < 0 { Some(amount.div_ceil(power)) } else { amount.checked_mul(power) }
}

/// The meaning of a suffix: a factor, and a power of ten.
fn unit(suffix: &str) -> Option<(u128, i32)> {
    const BINARY: [&str; 6] = ["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    const DECIMAL: [(&str, i32); 10] = [
        ("n", -9),
        ("u", -6),
        ("m", -3),
        ("", 0),
        ("k", 3),
        ("M", 6),
        ("G", 9),
        ("T", 12),
        ("P", 15),
        ("E", 18),
    ];
    if let Some(at) = BINARY.iter().position(|known| *known == suffix) {
        return Some((1 << (10 * (at + 1)), 0));
    }
    if let Some((_, exponent)) = DECIMAL.iter().find(|(known, _)| *known == suffix) {
        return Some((1, *exponent));
    }
    let exponent = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
    (-99..=99).contains(&exponent).then_some((1, exponent))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_what_they_amount_to_however_they_are_written() {
        for same in [
            &["0.5", "500m", ".5", "0.50", "500000000n", "5e-1"][..],
            &["1024Mi", "1Gi", "1073741824", "1048576Ki"],
            &["1.5Gi", "1536Mi"],
            &["2", "2000m", "2.", "0.002k", "2e0"],
            &["1E", "1000P", "1E18", "1e18"],
            &["0.0000000001", "1n"],
            &["0", "0m", "0Gi"],
        ] {
            let amounts: Vec<_> = same.iter().map(|text| billionths(text)).collect();
            assert!(
                amounts.iter().all(|amount| amount.is_some() && *amount == amounts[0]),
                "{same:?}: {amounts:?}"
            );
        }
        assert_ne!(billionths("1Gi"), billionths("1G"));
        let long = "9".repeat(60);
        for none in ["", ".", "lots", "1 Gi", "1Gib", "1.2.3", "-1", "+1", "1K", "1e", "1e+", "1e100", &long]
        {
            assert_eq!(billionths(none), None, "{none}");
        }
    }

    #[test]
    fn names_and_values_are_those_that_kubernetes_takes() {
        for good in ["team", "a", "example.com/Team_1.x", &"x".repeat(63)] {
            assert!(is_qualified_name(good), "{good}");
        }
        for bad in
            ["", "a b", "-a", "a-", "a/b/c", "/a", "a/", "Example.com/a", "a..b/c", "ä", &"x".repeat(64)]
        {
            assert!(!is_qualified_name(bad), "{bad}");
        }
        assert!(is_label_value("") && is_label_value("a.b_C-1"));
        assert!(!is_label_value("a b") && !is_label_value("a/b") && !is_label_value(&"x".repeat(64)));
    }
}
