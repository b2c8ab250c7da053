//! Signs and verifies Jupyter messages. The signature covers the four dictionaries of a message (jupyter_client,
//! "Messaging in Jupyter", "The wire protocol").

use ring::{hmac, rand};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Separator between the routing identities and the signature.
const DELIMITER: &[u8] = b"<IDS|MSG>";
/// Protocol version in the headers of gpumem's messages. Version 5.3 has all features that gpumem uses.
const VERSION: &str = "5.3";

#[derive(Serialize)]
struct Header<'a> {
    msg_id: &'a str,
    session: &'a str,
    username: &'a str,
    date: String,
    msg_type: &'a str,
    version: &'a str,
}

#[derive(Deserialize)]
struct AnswerHeader {
    msg_type: String,
}

/// The fields of a `parent_header` that gpumem uses. The header is empty if the message is not an answer.
#[derive(Deserialize)]
struct ParentHeader {
    #[serde(default)]
    msg_id: String,
}

/// Received message whose signature is valid.
pub(super) struct Answer {
    pub(super) parent_id: String,
    pub(super) msg_type: String,
    pub(super) content: Value,
}

/// Returns 16 random bytes in hexadecimal, or `None` if the system provides no random bytes.
pub(super) fn unique_id() -> Option<String> {
    let bytes: rand::Random<[u8; 16]> = rand::generate(&rand::SystemRandom::new()).ok()?;
    Some(hex(&bytes.expose()))
}

pub(super) fn sign(
    key: &hmac::Key,
    (session, msg_id): (&str, &str),
    msg_type: &str,
    content: &Value,
) -> serde_json::Result<Vec<Vec<u8>>> {
    let date = jiff::Timestamp::now().to_string();
    let header = Header { msg_id, session, username: "gpumem", date, msg_type, version: VERSION };
    let signed = [
        serde_json::to_vec(&header)?,
        b"{}".to_vec(),
        b"{}".to_vec(),
        serde_json::to_vec(content)?,
    ];
    let signature = hex(hmac::sign(key, &signed.concat()).as_ref());
    let mut parts = vec![DELIMITER.to_vec(), signature.into_bytes()];
    parts.extend(signed);
    Ok(parts)
}

pub(super) fn verify(key: &hmac::Key, parts: &[Vec<u8>]) -> Result<Answer, &'static str> {
    const NOT_JUPYTER: &str = "not a Jupyter message";
    const FIELDS: &str = "unexpected fields";
    let at = parts.iter().position(|part| part == DELIMITER).ok_or(NOT_JUPYTER)?;
    let [signature, header, parent, metadata, content, ..] = &parts[at + 1..] else {
        return Err(NOT_JUPYTER);
    };
    let signed = [header, parent, metadata, content].map(Vec::as_slice).concat();
    unhex(signature)
        .filter(|tag| hmac::verify(key, &signed, tag).is_ok())
        .ok_or("it is not signed with the key in the connection file")?;
    let header: AnswerHeader = serde_json::from_slice(header).map_err(|_| FIELDS)?;
    let parent: ParentHeader = serde_json::from_slice(parent).map_err(|_| FIELDS)?;
    let content = serde_json::from_slice(content).map_err(|_| FIELDS)?;
    Ok(Answer { parent_id: parent.msg_id, msg_type: header.msg_type, content })
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(digits: &[u8]) -> Option<Vec<u8>> {
    let pair = |pair: &[u8]| {
        let text = std::str::from_utf8(pair).ok()?;
        u8::from_str_radix(text, 16).ok()
    };
    digits.chunks(2).map(pair).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_messages_with_a_valid_signature_are_accepted() {
        let key = hmac::Key::new(hmac::HMAC_SHA256, b"key");
        let other_key = hmac::Key::new(hmac::HMAC_SHA256, b"yek");
        let parts = sign(&key, ("s", "m"), "kernel_info_request", &json!({"a": 1})).unwrap();
        let answer = verify(&key, &parts).ok().unwrap();
        assert_eq!(
            (answer.msg_type.as_str(), &answer.content),
            ("kernel_info_request", &json!({"a": 1}))
        );
        assert!(verify(&other_key, &parts).is_err());
        for at in 1..parts.len() {
            for change in [&b""[..], b"x", b"{\"b\":1}", "\u{e9}\u{e9}".as_bytes()] {
                let mut changed = parts.clone();
                changed[at] = change.to_vec();
                assert!(verify(&key, &changed).is_err(), "{at}");
            }
            assert!(verify(&key, &parts[..at]).is_err());
        }
    }
}
