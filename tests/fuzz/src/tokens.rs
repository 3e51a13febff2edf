//! JSON Web Tokens. Bytes as they are have no signature that is good; as the payload of a token
//! that is signed, they are claims, of which a backend is told what they are or nothing.

use std::sync::LazyLock;

use aws_lc_rs::hmac;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use portcullis_model::{ClaimPath, KeyKinds, KeySet};
use portcullis_proxy::fuzzing::{Refused, claim, names_issuer};

const SECRET: &[u8] = b"a secret of at least 32 bytes, for HMAC";

static KEYS: LazyLock<Option<KeySet>> = LazyLock::new(|| {
    let secret = URL_SAFE_NO_PAD.encode(SECRET);
    let document = format!(r#"{{"keys":[{{"kty":"oct","alg":"HS256","k":"{secret}"}}]}}"#);
    KeySet::parse(document.as_bytes(), KeyKinds::PublicAndSecret).ok()
});

pub(crate) fn run(bytes: &[u8]) {
    let Some(keys) = &*KEYS else { unreachable!("the keys are refused") };
    let subject = ClaimPath("sub".into());
    names_issuer("https://issuer.example", bytes);
    assert_eq!(claim(keys, bytes, &subject), Err(Refused), "a forged token");
    let signed = signed(bytes);
    let is_object = serde_json::from_slice::<serde_json::Value>(bytes).is_ok_and(|value| value.is_object());
    let told = claim(keys, &signed, &subject);
    assert_eq!(told.is_ok(), is_object, "claims of a signed token");
    if let Ok(Some(value)) = told {
        let bytes = value.as_bytes();
        assert!(!bytes.is_empty() && bytes.trim_ascii() == bytes, "{value:?}");
        assert!(!bytes.iter().any(u8::is_ascii_control), "{value:?}");
    }
}

fn signed(payload: &[u8]) -> Vec<u8> {
    let [header, payload] = [br#"{"alg":"HS256"}"#, payload].map(|part| URL_SAFE_NO_PAD.encode(part));
    let message = format!("{header}.{payload}");
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, SECRET), message.as_bytes());
    format!("{message}.{}", URL_SAFE_NO_PAD.encode(tag)).into_bytes()
}
