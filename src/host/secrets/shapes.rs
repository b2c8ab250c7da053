//! Secrets that can be told by their looks, whatever they are called.

/// What tokens of known services begin with, and how many characters follow at least.
const BEGINNINGS: [(&str, usize); 46] = [
    ("AIza", 30),
    ("AKIA", 12),
    ("ASIA", 12),
    ("EAAC", 40),
    ("SG.", 20),
    ("api_org_", 16),
    ("dapi", 28),
    ("dckr_pat_", 16),
    ("dop_v1_", 32),
    ("figd_", 16),
    ("fw_", 20),
    ("ghp_", 16),
    ("gho_", 16),
    ("ghu_", 16),
    ("ghs_", 16),
    ("ghr_", 16),
    ("github_pat_", 16),
    ("gldt-", 16),
    ("glpat-", 12),
    ("glrt-", 12),
    ("gsk_", 20),
    ("hf_", 16),
    ("hvs.", 16),
    ("jina_", 20),
    ("lin_api_", 16),
    ("lsv2_", 20),
    ("npm_", 20),
    ("nvapi-", 16),
    ("pcsk_", 16),
    ("pk_live_", 12),
    ("pplx-", 16),
    ("pypi-", 30),
    ("r8_", 20),
    ("rk_live_", 12),
    ("rpa_", 20),
    ("shpat_", 16),
    ("sk-", 16),
    ("sk_live_", 12),
    ("sk_test_", 12),
    ("tvly-", 16),
    ("wandb_v1_", 16),
    ("whsec_", 16),
    ("xai-", 16),
    ("xapp-", 12),
    ("xox", 12),
    ("ya29.", 16),
];

/// Shorter than this is no secret that is told by its looks alone.
const SHORTEST: usize = 20;

fn is_of_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.')
}

/// The next token of a known service at or after a place in a text: where it begins and ends.
pub(super) fn find_token(text: &str, from: usize) -> Option<(usize, usize)> {
    let bytes = text.as_bytes();
    let mut at = from;
    while at < bytes.len() {
        if !is_of_token(bytes[at]) {
            at += 1;
            continue;
        }
        let length = bytes[at..].iter().take_while(|&&byte| is_of_token(byte));
        let end = at + length.count();
        if is_token(&text[at..end]) {
            return Some((at, end));
        }
        at = end;
    }
    None
}

/// Whether a word is a token of a known service, or of the form that many share (RFC 7519).
fn is_token(word: &str) -> bool {
    if word.len() < 15 {
        return false;
    }
    if word.starts_with("eyJ") {
        return word.len() >= 40 || (word.len() >= SHORTEST && word.contains('.'));
    }
    let first = word.as_bytes()[0];
    let known = BEGINNINGS
        .iter()
        .filter(|(begin, _)| begin.as_bytes()[0] == first)
        .find_map(|(begin, least)| Some((*begin, word.strip_prefix(begin)?, *least)));
    known.is_some_and(|(begin, rest, least)| {
        let rest = match begin {
            // `xoxb-`, `xoxp-` and so on.
            "xox" => rest.get(2..).filter(|_| rest.as_bytes()[1] == b'-').unwrap_or(""),
            _ => rest,
        };
        let is_id = || {
            matches!(begin, "AKIA" | "ASIA")
                && rest.bytes().all(|it| it.is_ascii_uppercase() || it.is_ascii_digit())
        };
        rest.len() >= least && (is_id() || has_chance(rest))
    })
}

/// Whether some part of it is not a word: `sk-learn-contrib-project` has none, nor `hf_hub_download`.
fn has_chance(text: &str) -> bool {
    text.split(|c: char| !c.is_ascii_alphanumeric()).any(|part| {
        let count = |is: fn(&u8) -> bool| part.bytes().filter(is).count();
        let (digits, upper, lower) = (
            count(u8::is_ascii_digit),
            count(u8::is_ascii_uppercase),
            count(u8::is_ascii_lowercase),
        );
        part.len() >= 10 && (digits >= 2 || (upper >= 3 && lower >= 3))
    })
}

/// Whether a value looks like nothing but a secret: long, of one word, without order. Hashes, numbers
/// of GPUs, paths and names of models do not.
pub(in crate::host) fn is_opaque(value: &str) -> bool {
    let value = value.trim_matches(['"', '\'']);
    if value.len() < SHORTEST || value.starts_with(['/', '.', '~']) || value.contains("://") {
        return false;
    }
    if let Some((begin, end)) = find_token(value, 0)
        && end - begin == value.len()
    {
        return true;
    }
    let is_base64 = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'=');
    if value.ends_with('=') && value.len().is_multiple_of(4) && value.bytes().all(is_base64) {
        return is_random(value.trim_end_matches('='));
    }
    value.split(|c: char| !c.is_ascii_alphanumeric()).any(is_random)
}

/// By how often it changes between small letters, capital ones and digits; one of hexadecimal digits
/// is a hash.
fn is_random(word: &str) -> bool {
    if word.len() < SHORTEST || word.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return false;
    }
    let class = |byte: u8| match byte {
        b'0'..=b'9' => 0,
        b'a'..=b'z' => 1,
        b'A'..=b'Z' => 2,
        _ => 3,
    };
    let classes: Vec<u8> = word.bytes().map(class).collect();
    let changes = classes.windows(2).filter(|two| two[0] != two[1]).count();
    let has = |class| classes.contains(&class);
    let per_hundred = 100 * changes / (word.len() - 1);
    match (has(0), has(1) && has(2)) {
        (true, true) => per_hundred >= 48,
        (true, false) => per_hundred >= 36,
        (false, true) => per_hundred >= 42,
        (false, false) => false,
    }
}

/// Whether it could be part of a header `Authorization: Basic`, of which the other word is common.
pub(super) fn is_basic(word: &str) -> bool {
    let is_base64 = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'=');
    word.len() >= 8
        && word.len().is_multiple_of(4)
        && word.bytes().all(is_base64)
        && (word.ends_with('=') || has_chance(word))
}
