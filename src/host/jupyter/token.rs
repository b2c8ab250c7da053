//! Keeps a server's token, which can only be sent in a request header.

use std::fmt;

use ureq::http::HeaderValue;

/// Token that the API of a server requires. It must not be displayed or written to a file.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(Box<str>);

impl Token {
    /// Returns `None` if the text is empty.
    pub fn new(text: &str) -> Option<Self> {
        (!text.is_empty()).then(|| Self(text.into()))
    }

    /// Returns the value of the `Authorization` header, or `None` if the token contains characters that are invalid
    /// in a header.
    pub(super) fn header(&self) -> Option<HeaderValue> {
        let mut value = HeaderValue::from_str(&format!("token {}", self.0)).ok()?;
        value.set_sensitive(true);
        Some(value)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_output_does_not_contain_the_token() {
        let token = Token::new("s3cret").unwrap();
        assert_eq!(format!("{token:?} {:?}", token.header()), "Token(…) Some(Sensitive)");
        assert_eq!(token.header().unwrap().as_bytes(), b"token s3cret");
    }

    #[test]
    fn a_token_with_control_characters_has_no_header() {
        assert_eq!(Token::new(""), None);
        assert_eq!(Token::new("a\r\nHost: elsewhere").unwrap().header(), None);
    }
}
