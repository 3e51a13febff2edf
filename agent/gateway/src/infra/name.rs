//! Names of generated objects: `<NAME>-<GATEWAY CLASS>`, made to fit where the Gateway's own name
//! would not be allowed.

/// A Service's name and a label's value have at most 63 characters; a Gateway's name may have 253.
const LIMIT: usize = 63;

/// "SHOULD name all generated resources `my-gateway-example` (`<NAME>-<GATEWAY CLASS>`)". A
/// Service's name is one DNS label that starts with a letter (RFC 1035): names that are not are
/// spelt differently, with a hash that keeps them apart.
pub fn generated_name(gateway: &str, class: &str) -> String {
    let name = format!("{gateway}-{class}");
    let starts_well = name.starts_with(|first: char| first.is_ascii_lowercase());
    if starts_well && !name.contains('.') && name.len() <= LIMIT {
        return name;
    }
    let prefix = if starts_well { "" } else { "gw-" };
    shortened(&format!("{prefix}{}", name.replace('.', "-")), &name)
}

/// A Gateway's or GatewayClass' name as the value of a label.
pub(super) fn label_value(name: &str) -> String {
    if name.len() <= LIMIT { name.to_owned() } else { shortened(name, name) }
}

fn shortened(spelt: &str, original: &str) -> String {
    let hash = format!("-{:08x}", fnv1a(original));
    let start = &spelt[..spelt.len().min(LIMIT - hash.len())];
    format!("{}{hash}", start.trim_end_matches(['-', '.']))
}

/// FNV-1a, 32 bits: must be the same on every node and in every release, for names hang on it.
pub(super) fn fnv1a(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_the_specification_where_they_can() {
        assert_eq!(generated_name("my-gateway", "example"), "my-gateway-example");
    }

    #[test]
    fn other_names_fit_and_stay_apart() {
        for name in ["a.b", "1st", &"x".repeat(253), &format!("{}.y", "x".repeat(251))] {
            let generated = generated_name(name, "portcullis");
            assert!(generated.len() <= LIMIT && !generated.contains('.'), "{generated}");
            assert!(generated.starts_with(|first: char| first.is_ascii_lowercase()), "{generated}");
        }
        assert_ne!(generated_name("a.b", "c"), generated_name("a-b", "c"));
        assert_ne!(generated_name(&"x".repeat(70), "c"), generated_name(&"x".repeat(71), "c"));
        assert_eq!(generated_name("a.b", "c"), "a-b-c-e97aa8b0", "the same on every node, in every release");
        assert_eq!(label_value(&"x".repeat(63)), "x".repeat(63));
        assert_eq!(label_value(&"x".repeat(64)).len(), LIMIT);
    }
}
