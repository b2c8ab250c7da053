//! Masks secrets in command lines and environments, so that snapshots, reports and recordings do not contain them.
//!
//! Other users can read command lines in the process list anyway, but recordings are attached to tickets and kept for
//! years. The value of a secret is therefore replaced by `***` as soon as it has been read. Its name remains.
//!
//! The value of an option or variable is masked unless its name is known to be harmless or the value has a harmless
//! form. A short number, a path and an address have harmless forms. Elsewhere, a secret is recognised by its name, its
//! form, or its position, such as in a URL, after `Bearer` or in a call of `login`. Other secrets are not masked.
//! `secrets.toml` contains the known names and forms. The time that masking takes is linear in the length of the text,
//! which can have any length.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::LazyLock;

use serde::Deserialize;

const HIDDEN: &str = "***";

/// Maximum distance in bytes between the start of a name and the `=` or `:` after it.
const LONGEST_NAME: usize = 128;

/// Maximum number of bytes searched in a value whose name does not indicate a secret. Without a limit, the time for a
/// text of many `=` or `:` would be quadratic.
const LONGEST_OPAQUE: usize = 512;

const SHORTEST_OPAQUE: usize = 20;

const SHORTEST_SEGMENT: usize = 16;

const SHORTEST_HASH: usize = 32;

/// Minimum length of a password after `name:`. A shorter word is a tag, as in `mixtral:8x7b`.
const SHORTEST_PASSWORD: usize = 6;

/// Maximum length of a harmless number. The longest harmless numbers are sizes in bytes.
const LONGEST_NUMBER: usize = 12;

const QUOTES: [char; 4] = ['"', '\'', '`', '\\'];

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    words: HashSet<String>,
    word_ends: Vec<String>,
    last_words: HashSet<String>,
    harmless_words: HashSet<String>,
    harmless_names: HashSet<String>,
    secret_letters: String,
    file_endings: HashSet<String>,
    calls: HashSet<String>,
    before_secret_segment: HashSet<String>,
    before_run: HashSet<String>,
    before_many: HashSet<String>,
    about: HashSet<String>,
    switches: HashSet<String>,
    recorded_variables: Vec<String>,
    variables: HashSet<String>,
    variable_families: Vec<String>,
    harmless: Vec<String>,
    units: Vec<String>,
    not_before_password: HashSet<String>,
    before_secret: HashSet<String>,
    addresses: Vec<String>,
    programs: HashMap<String, String>,
    tokens: HashMap<String, usize>,
}

fn parse() -> Result<Table, toml::de::Error> {
    toml::from_str(include_str!("secrets/secrets.toml"))
}

/// Parsing cannot fail, because a test parses the same table.
static TABLE: LazyLock<Table> = LazyLock::new(|| parse().unwrap_or_default());

/// Secrecy of a value according to its name. A later variant takes precedence over an earlier one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Secrecy {
    Plain,
    /// The value is secret if it looks random. This applies to options that locate or configure a secret, and to keys
    /// of unknown purpose.
    IfOpaque,
    /// The value contains a user name and a secret if it contains a colon or a `%`, as in `ann:s3cret`.
    IfPair,
    /// The option or variable is unknown. Its value is secret unless the form of the value is harmless.
    Unknown,
    /// The value is secret unless it is a short number or a token of a tokenizer, as in `--max-token 77` and
    /// `--pad-token <p>`.
    Token,
    Secret,
    /// The value is secret up to the end of the line, as in an HTTP header.
    Line,
}

pub(super) fn hide(arguments: &mut [Cow<'_, str>]) {
    let mut scan = SecretScan::default();
    for argument in arguments {
        if let Some(hidden) = scan.hide_argument(argument) {
            *argument = Cow::Owned(hidden);
        }
    }
}

pub(super) fn hide_in_value(value: &mut Cow<'_, str>) {
    if let Some(hidden) = hide_in_text(value) {
        *value = Cow::Owned(hidden);
    }
}

/// Returns the variables whose values snapshots contain.
pub(super) fn recorded_variables() -> impl Iterator<Item = &'static str> {
    TABLE.recorded_variables.iter().map(String::as_str)
}

pub(super) fn is_harmless_variable(name: &str) -> bool {
    let families = &TABLE.variable_families;
    TABLE.variables.contains(name) || families.iter().any(|family| name.starts_with(&**family))
}

/// Masks the whole value of a variable. If `is_harmless` is set, masks only secrets in the value.
pub(super) fn hide_variable(is_harmless: bool, value: &mut Cow<'_, str>) {
    match is_harmless {
        true => hide_in_value(value),
        false if value.is_empty() => {}
        false => *value = Cow::Borrowed(HIDDEN),
    }
}

#[derive(Default)]
struct SecretScan {
    /// Secrecy of the next word, if this or an earlier word decides it.
    follows: Option<Secrecy>,
    option: Option<&'static str>,
    /// Whether `-p` of the running program is followed by a name or a port rather than a password.
    has_no_password: bool,
    /// Whether a word was `login`, as in `wandb login`. A key can follow without an option, so all later words that
    /// look like keys are masked.
    is_login: bool,
    /// Whether the last argument was a short option that ends with `c`. A script may follow such an option.
    is_script: bool,
}

impl SecretScan {
    fn hide_argument(&mut self, argument: &str) -> Option<String> {
        let is_short = argument.starts_with('-') && !argument.starts_with("--");
        let is_script = std::mem::replace(&mut self.is_script, is_short && argument.ends_with('c'));
        if let Some(hidden) = self.step(argument) {
            return hidden;
        }
        if !is_script && let Some(hidden) = hide_assigned(argument) {
            return Some(hidden);
        }
        self.follows = effect_on_next(argument);
        match argument.contains(char::is_whitespace) {
            true => hide_in_text(argument),
            false => hide_in_word(argument),
        }
    }

    /// Masks secrets in a word as [`Self::hide_argument`] does in an argument. Returns `None` if nothing needs to be
    /// masked. The word is part of a text that may already be partly masked.
    fn hide_word(&mut self, word: &str) -> Option<String> {
        if word.contains(HIDDEN) {
            self.follows = None;
            return None;
        }
        let bare = word.trim_start_matches(['"', '\'', '`', '(', '{']);
        let (before, bare) = word.split_at(word.len() - bare.len());
        let bare = bare.trim_end_matches([';', ')', ',']);
        let hidden = match self.step(bare) {
            Some(hidden) => hidden,
            None => {
                self.follows = effect_on_next(bare);
                let is_variable =
                    |name: &str| name.chars().all(|c| c.is_ascii_uppercase() || c == '_');
                let name = bare.split('=').next().unwrap_or_default();
                (is_variable(name) || name.starts_with("--")).then(|| hide_assigned(bare)).flatten()
            }
        };
        hidden.map(|hidden| format!("{before}{hidden}{}", &word[before.len() + bare.len()..]))
    }

    /// Returns the masked form of a word, according to the word itself and the words before it. Returns `Some(None)`
    /// if the word is to be shown as it is, and `None` if neither it nor the words before it decide this.
    fn step(&mut self, word: &str) -> Option<Option<String>> {
        let follows = std::mem::take(&mut self.follows);
        // Matches the `=` of `api_key = 'x'` in a script.
        if word == "=" {
            self.follows = follows;
            return Some(None);
        }
        match follows {
            // Matches `HF_TOKEN` in `-genv HF_TOKEN X`.
            Some(Secrecy::Unknown) if is_name_of_secret(word) => {}
            // A word that starts with `-` is another option, so the preceding option has no value.
            Some(verdict) if !word.starts_with('-') => {
                if let hidden @ Some(_) = hide_as(verdict, word) {
                    return Some(hidden);
                }
            }
            _ => {}
        }
        if self.is_login
            && let hidden @ Some(_) = hide_as(Secrecy::IfOpaque, word)
        {
            return Some(hidden);
        }
        let program = word.rsplit('/').next().unwrap_or(word);
        if let Some(option) = TABLE.programs.get(program) {
            self.option = Some(option);
        }
        self.has_no_password |= TABLE.not_before_password.contains(program);
        if TABLE.before_secret.contains(word) || is_name_of_secret(word) {
            self.follows = Some(Secrecy::Secret);
            return Some(None);
        }
        self.is_login |= word == "login";
        if let Some(option) = self.option
            && let Some(value) = word.strip_prefix(option)
        {
            if value.is_empty() {
                self.follows = Some(Secrecy::Secret);
                return Some(None);
            }
            // A port, a number of rows or a mapped folder is not a secret.
            let is_secret = !value.contains(['=', ':', '/']) && value.parse::<u32>().is_err();
            return Some(is_secret.then(|| format!("{option}{HIDDEN}")));
        }
        if word.starts_with('-') && !word.contains(['=', ':', '%', ' ']) {
            if word != "-p" || !self.has_no_password {
                self.follows = Some(judge_option(word));
            }
            return Some(mask(word, &find_tokens(word)));
        }
        if let Some(pair) = word.strip_prefix("-u").or_else(|| word.strip_prefix("-U")) {
            return hide_as(Secrecy::IfPair, pair)
                .map(|pair| Some(format!("{}{pair}", &word[..2])));
        }
        let is_named = matches!(follows, Some(verdict) if verdict < Secrecy::Unknown);
        hide_argument_by_form(word).filter(|_| !is_named).map(Some)
    }
}

/// Masks a word that has the form `user:password`, or that is a key of 64 or 128 hexadecimal digits. A hash after the
/// name of its algorithm is not masked.
fn hide_argument_by_form(word: &str) -> Option<String> {
    let key = word.trim_matches(QUOTES).trim_start_matches("0x");
    if matches!(key.len(), 64 | 128) && key.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Some(word.replace(key, HIDDEN));
    }
    let (user, password_and_host) = word.split_once(':')?;
    let (password, host) =
        password_and_host.split_at(password_and_host.rfind('@').unwrap_or(password_and_host.len()));
    let is_of_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '@');
    let is_of_password = |c: char| c.is_ascii_alphanumeric() || "!#$%&*+?@^_~".contains(c);
    let is_pair = !user.is_empty()
        && user.chars().all(is_of_name)
        && password.chars().all(is_of_password)
        && (SHORTEST_PASSWORD..SHORTEST_HASH).contains(&password.len())
        && may_be_password(password);
    is_pair.then(|| format!("{user}:{HIDDEN}{host}"))
}

/// Returns whether a word is more likely to be a password than a port, a path or the name of a parameter. A password
/// contains letters, and digits or special characters.
fn may_be_password(word: &str) -> bool {
    let is_sign = |c: char| !c.is_ascii_alphabetic() && !matches!(c, '_' | '-');
    word.len() > 3
        && !word.starts_with('-')
        && !word.contains(['=', ':', '/', '.', ',', ' '])
        && word.contains(|c: char| c.is_ascii_alphabetic())
        && word.contains(is_sign)
}

/// Returns whether a word is not an option, but names the secret that follows it, as in `aws configure set
/// aws_session_token X`. Such a name consists of several words, of which the last indicates a secret.
fn is_name_of_secret(word: &str) -> bool {
    let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    let words = if word.starts_with('-') { Vec::new() } else { words(word) };
    words.len() > 1
        && word.chars().all(is_name)
        && judge(word) >= Secrecy::Token
        && judge_word(&words, words.len() - 1) >= Secrecy::Token
}

/// Returns how the end of a word affects the next word, as in `Bearer` or `"Authorization: Bearer`.
fn effect_on_next(word: &str) -> Option<Secrecy> {
    let last = word.rsplit([' ', ':', '"', '\'', '=']).next().unwrap_or(word);
    if last.starts_with("--") {
        Some(judge_option(last))
    } else if last.eq_ignore_ascii_case("bearer") {
        Some(Secrecy::Secret)
    } else if last.eq_ignore_ascii_case("basic") {
        Some(Secrecy::IfOpaque)
    } else {
        None
    }
}

fn hide_assigned(argument: &str) -> Option<String> {
    let (name, value) = assignment(argument)?;
    let within = || match (assignment(value), value.contains(char::is_whitespace)) {
        (_, true) => hide_in_text(value),
        (Some((inner, value)), false) => Some(format!("{inner}={}", hide_named(inner, value)?)),
        (None, false) => None,
    };
    Some(format!("{name}={}", hide_named(name, value).or_else(within)?))
}

fn hide_named(name: &str, value: &str) -> Option<String> {
    match judge_option(name) {
        // Only some parts of a URL are secret.
        verdict if verdict < Secrecy::Token && value.contains("://") => None,
        verdict => hide_as(verdict, value),
    }
}

/// Splits an assignment into name and value. Text whose only `=` signs are at the end, such as
/// padded Base64, is not an assignment.
fn assignment(argument: &str) -> Option<(&str, &str)> {
    let (name, value) = argument.split_once('=')?;
    let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '+');
    let is_one = name.chars().all(is_name) && value.contains(|c| c != '=');
    (is_one && !name.is_empty()).then_some((name, value))
}

/// Masks secrets in a text of several words, such as a script after `-c`.
fn hide_in_text(text: &str) -> Option<String> {
    let by_place = hide_in_word(text);
    let mut text_left = by_place.as_deref().unwrap_or(text);
    let mut masked = String::new();
    let mut scan = SecretScan::default();
    let mut is_changed = false;
    while !text_left.is_empty() {
        let word = text_left.trim_start();
        masked.push_str(&text_left[..text_left.len() - word.len()]);
        let (word, after) = word.split_at(word_end(word));
        text_left = after;
        let hidden = scan.hide_word(word);
        is_changed |= hidden.is_some();
        masked.push_str(hidden.as_deref().unwrap_or(word));
    }
    if is_changed { Some(masked) } else { by_place }
}

/// Returns the end of the first word. White space in a quoted value does not end the word.
fn word_end(text: &str) -> usize {
    let mut quote = None;
    let mut before = ' ';
    for (at, c) in text.char_indices() {
        match quote {
            Some((open, _)) if c == open => quote = None,
            None if c.is_whitespace() => return at,
            // An apostrophe inside a word is not a quote. Only a quote after `=` starts a quoted value.
            None if matches!(c, '\'' | '"') && before == '=' => quote = Some((c, at)),
            _ => {}
        }
        before = c;
    }
    // If a quote is not closed, the word ends at the first white space after the quote.
    let end = quote.and_then(|(_, at)| Some(at + text[at..].find(char::is_whitespace)?));
    end.unwrap_or(text.len())
}

fn hide_in_word(text: &str) -> Option<String> {
    let values = mask(text, &find_values(text));
    let text = values.as_deref().unwrap_or(text);
    mask(text, &find_tokens(text)).or(values)
}

fn mask(text: &str, secrets: &[Range<usize>]) -> Option<String> {
    let mut masked = String::new();
    let mut done = 0;
    for secret in secrets {
        masked.push_str(&text[done..secret.start]);
        masked.push_str(HIDDEN);
        done = secret.end;
    }
    (!secrets.is_empty()).then(|| masked + &text[done..])
}

fn hide_as(verdict: Secrecy, value: &str) -> Option<String> {
    secret_part(verdict, value)
        .map(|part| format!("{}{HIDDEN}{}", &value[..part.start], &value[part.end..]))
}

fn secret_part(verdict: Secrecy, value: &str) -> Option<Range<usize>> {
    let begin = value.len() - value.trim_start_matches(QUOTES).len();
    let inner = value.trim_matches(QUOTES);
    let end = begin + inner.len();
    let is_secret = match verdict {
        Secrecy::Plain | Secrecy::IfPair => is_opaque(inner),
        Secrecy::IfOpaque => {
            let hash = inner.strip_prefix("local-").unwrap_or(inner);
            let is_hash =
                hash.len() >= SHORTEST_HASH && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
            is_hash || is_opaque(inner)
        }
        Secrecy::Unknown => !has_harmless_form(inner) || is_opaque(inner),
        Secrecy::Token if inner.starts_with(['<', '[']) || is_number(inner) => false,
        Secrecy::Token | Secrecy::Secret | Secrecy::Line => !contains_word(&TABLE.harmless, inner),
    };
    if is_secret {
        return Some(begin..end);
    }
    let (name, secret) = inner.split_once([':', '%']).filter(|_| verdict == Secrecy::IfPair)?;
    let is_address = secret.starts_with("//") || name.contains('/');
    let is_pair = !name.is_empty() && !secret.is_empty() && secret.parse::<u32>().is_err();
    (is_pair && !is_address).then(|| end - secret.len()..end)
}

/// Returns whether a value has a harmless form, such as a number, a size, a duration, `host:port`, a file name, or a
/// text in which names are judged separately.
fn has_harmless_form(value: &str) -> bool {
    let ends_in = |sign, is: fn(&str) -> bool| {
        value.rsplit_once(sign).is_some_and(|(begin, end)| !begin.is_empty() && is(end))
    };
    contains_word(&TABLE.harmless, value)
        || is_number(value)
        || ends_in(':', |port| port.parse::<u16>().is_ok())
        || ends_in('.', |ending| TABLE.file_endings.contains(ending))
        || value.starts_with(['/', '.', '~', '{', '[', '<'])
        || value.contains("://")
        || assignment(value).is_some()
}

/// Returns whether a value consists of short numbers with optional units, such as `1e-4`, `0.9,0.999`, `8GiB` or
/// `1h30m`.
fn is_number(value: &str) -> bool {
    let is_sign = |c: char| c.is_ascii_digit() || ".,-+%x()_".contains(c);
    value.len() <= 2 * LONGEST_NUMBER
        && value.starts_with(|c: char| c.is_ascii_digit() || "+-.(".contains(c))
        && value.split(|c: char| !c.is_ascii_digit()).all(|digits| digits.len() <= LONGEST_NUMBER)
        && value.split(is_sign).all(|unit| contains_word(&TABLE.units, unit))
}

fn contains_word(words: &[String], word: &str) -> bool {
    words.iter().any(|entry| word.eq_ignore_ascii_case(entry))
}

/// Returns the positions of tokens of known forms and of private keys (RFC 7468), in order.
fn find_tokens(text: &str) -> Vec<Range<usize>> {
    let mut ranges = Vec::new();
    let is_apart = |c: char| !c.is_ascii_alphanumeric() && !matches!(c, '_' | '-' | '.');
    let mut at = 0;
    for piece in text.split_inclusive(is_apart) {
        let word = piece.trim_end_matches(is_apart);
        if is_token(word) {
            ranges.push(at..at + word.len());
        }
        at += piece.len();
    }
    if let Some(begin) = text.find("-----BEGIN")
        && text[begin..].contains("PRIVATE KEY")
    {
        let end = text.rfind("-----END").filter(|&end| end > begin).map(|end| end + 8);
        let end = end.and_then(|end| Some(end + text[end..].find("-----")? + 5));
        let key = begin..end.unwrap_or(text.len());
        ranges.retain(|token| token.end <= key.start || token.start >= key.end);
        ranges.push(key);
        ranges.sort_by_key(|range| range.start);
    }
    ranges
}

/// Returns whether a word is a token of a known service or a JSON web token (RFC 7519).
fn is_token(word: &str) -> bool {
    word.len() >= 15
        && TABLE.tokens.iter().any(|(begin, least)| {
            let suffix = word.strip_prefix(begin.as_str());
            suffix.is_some_and(|suffix| suffix.len() >= *least && has_random_part(suffix))
        })
}

/// Returns whether a part of the text is not an ordinary word. `sk-learn-contrib-project` and `hf_hub_download`
/// consist of ordinary words.
fn has_random_part(text: &str) -> bool {
    text.split(|c: char| !c.is_ascii_alphanumeric()).any(|part| {
        let count = |is: fn(&u8) -> bool| part.bytes().filter(is).count();
        let (digits, upper) = (count(u8::is_ascii_digit), count(u8::is_ascii_uppercase));
        let lower = part.len() - digits - upper;
        part.len() >= 10 && (digits >= 2 || lower == 0 || (upper >= 3 && lower >= 3))
    })
}

/// Returns whether a value is almost certainly a secret, that is, a single long random word. Hashes, GPU UUIDs, paths
/// and model names are not secret.
pub(super) fn is_opaque(value: &str) -> bool {
    let value = value.trim_matches(['"', '\'']);
    if value.len() < SHORTEST_OPAQUE || value.starts_with(['/', '.', '~']) || value.contains("://")
    {
        return false;
    }
    let is_base64 = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'=');
    if value.ends_with('=') && value.len().is_multiple_of(4) && value.bytes().all(is_base64) {
        return has_random_part(value);
    }
    is_token(value) || has_random_word(value, SHORTEST_OPAQUE)
}

fn has_random_word(text: &str, least: usize) -> bool {
    text.split(|c: char| !c.is_ascii_alphanumeric())
        .any(|word| word.len() >= least && is_random(word))
}

/// Returns whether letter case and digits change frequently in a word. Returns `false` for hexadecimal digits, which
/// may be a hash.
fn is_random(word: &str) -> bool {
    if word.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return false;
    }
    let class = |byte: u8| (byte.is_ascii_digit(), byte.is_ascii_uppercase());
    let classes: Vec<_> = word.bytes().map(class).collect();
    let changes = classes.windows(2).filter(|two| two[0] != two[1]).count();
    let has = |digit, upper| classes.contains(&(digit, upper));
    let least_percent = match (has(true, false), has(false, true) && has(false, false)) {
        (true, true) => 48,
        (true, false) => 36,
        (false, true) => 42,
        (false, false) => return false,
    };
    100 * changes / (word.len() - 1) >= least_percent
}

/// Returns the positions of the parts of a text that are secret because of a name or URL, in order. Examples are
/// `KEY=…`, `"key": "…"`, `Key: …`, `?key=…&`, `login(…)`, and the part of a URL before the `@`.
fn find_values(text: &str) -> Vec<Range<usize>> {
    let mut secrets: Vec<Range<usize>> = Vec::new();
    let mut done = 0;
    for (sign, _) in text.match_indices(['=', ':', '(']) {
        if sign < done {
            continue;
        }
        let secret = match text[sign..].starts_with("://") {
            true => find_in_address(text, sign),
            false => find_after_name(text, done, sign),
        };
        if let Some(secret) = secret {
            done = secret.end;
            secrets.push(secret);
        }
    }
    secrets
}

fn find_in_address(text: &str, sign: usize) -> Option<Range<usize>> {
    let url = &text[sign..];
    let ends = |c: char| c.is_whitespace() || matches!(c, '"' | '\'' | '`' | '>' | '<');
    let host = url[3..].find(|c: char| ends(c) || matches!(c, '/' | '?' | '#'));
    let host = &url[..host.map_or(url.len(), |end| end + 3)];
    for address in &TABLE.addresses {
        let is_match = match address.starts_with("://") {
            true => url.starts_with(address.as_str()),
            false => host.ends_with(address.trim_end_matches('/')),
        };
        if is_match {
            let begin = if address.starts_with("://") { address.len() } else { host.len() + 1 };
            let end = url.find(ends).unwrap_or(url.len());
            return (end > begin).then(|| sign + begin..sign + end);
        }
    }
    let is_web = text[..sign].ends_with("http") || text[..sign].ends_with("https");
    let Some((user, _)) = host[3..].rsplit_once('@') else {
        let path = &url[host.len()..char_boundary(url, host.len() + LONGEST_OPAQUE)];
        let end = path.find(|c: char| ends(c) || matches!(c, '?' | '#')).unwrap_or(path.len());
        let secret = if is_web { find_in_path(&path[..end])? } else { return None };
        let begin = sign + host.len();
        return Some(begin + secret.start..begin + secret.end);
    };
    let begin = sign + 3;
    let end = begin + user.len();
    let secret = match user.split_once(':') {
        Some((name, _)) => begin + name.len() + 1..end,
        // In a web URL, a user name without a password is a token.
        None if is_web => begin..end,
        None => return None,
    };
    (!secret.is_empty()).then_some(secret)
}

fn find_in_path(path: &str) -> Option<Range<usize>> {
    let (mut begin, mut previous) = (0, "");
    for segment in path.split('/') {
        let is_secret = is_token(segment)
            || has_random_word(segment, SHORTEST_SEGMENT)
            || (TABLE.before_secret_segment.contains(previous) && may_be_password(segment));
        if is_secret {
            return Some(begin..begin + segment.len());
        }
        begin += segment.len() + 1;
        previous = segment;
    }
    None
}

/// Returns the position of the secret after the `=`, `:` or `(` at `sign` if the name before it indicates one.
/// Ignores text before `floor`.
fn find_after_name(text: &str, floor: usize, sign: usize) -> Option<Range<usize>> {
    let is_colon = text[sign..].starts_with(':');
    let is_call = text[sign..].starts_with('(');
    let floor = floor.max(sign.saturating_sub(LONGEST_NAME));
    let before = text[char_boundary(text, floor)..sign].trim_end_matches(' ');
    let unquoted = before.trim_end_matches(['"', '\'', '\\', ']']);
    let is_quoted = unquoted.len() < before.len();
    let is_of_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    let name = &unquoted[unquoted.trim_end_matches(is_of_name).len()..];
    let previous = unquoted[..unquoted.len() - name.len()].chars().next_back();
    let verdict = match words(name).last() {
        Some(last) if is_call && TABLE.calls.contains(last) => Secrecy::Secret,
        Some(last) if matches!(previous, Some('?' | '&')) && last == "key" => Secrecy::Secret,
        _ => judge(name),
    };
    // In prose, a colon is punctuation. A name before a colon is relevant only if it is quoted, at the start of a
    // text or of an entry in a table, or the name of a header.
    let begins = matches!(previous, None | Some('{' | ',' | '"' | '\'' | '\n' | '('));
    if name.is_empty()
        || (is_call && verdict < Secrecy::Token)
        || (is_colon && !is_quoted && !begins && verdict != Secrecy::Line)
    {
        return None;
    }
    let value = text[sign + 1..].trim_start_matches('>');
    let value = match is_colon || is_quoted || text[..sign].ends_with(' ') {
        true => value.trim_start_matches(' '),
        false => value,
    };
    let begin = text.len() - value.len();
    let value = match verdict >= Secrecy::Token {
        true => value,
        false => &value[..char_boundary(value, LONGEST_OPAQUE)],
    };
    let bare = value.trim_start_matches('\\');
    let length = if is_call || (value.starts_with('(') && verdict >= Secrecy::Token) {
        value.find(')')
    } else if verdict == Secrecy::Line && is_colon && !is_quoted {
        // A header ends at the closing quote or at the end of the line.
        match previous {
            Some(quote @ ('"' | '\'')) => value.find(quote),
            None => None,
            _ => value.find(['"', '\'', '\n', ',']),
        }
    } else if let Some(quote) = bare.chars().next().filter(|c| QUOTES.contains(c)) {
        let close = bare[1..].find(quote).map(|at| value.len() - bare.len() + 1 + at);
        close.or_else(|| value.find(char::is_whitespace))
    } else {
        // In a series of assignments, a value ends before the next assignment unless it is a secret.
        value.find(|c: char| {
            c.is_whitespace()
                || ",;&}])\"'`#|".contains(c)
                || (c == '=' && verdict < Secrecy::Token)
                || (c == ':' && verdict < Secrecy::IfPair)
        })
    };
    let value = &value[..length.unwrap_or(value.len())];
    // Only some parts of a URL are secret.
    if verdict < Secrecy::Token && value.contains("://") {
        return None;
    }
    let secret = secret_part(verdict, value)?;
    Some(begin + secret.start..begin + secret.end)
}

fn char_boundary(text: &str, at: usize) -> usize {
    (at..text.len()).find(|&at| text.is_char_boundary(at)).unwrap_or(text.len())
}

/// Judges a name by the words in it, regardless of how they are joined, as in `--hf-token`, `ServerApp.token` and
/// `apiKey`. `--max-tokens`, `--tokenizer` and `--num-key-value-heads` do not indicate secrets.
fn judge(name: &str) -> Secrecy {
    // `-auth` is an option of X servers whose value is a file.
    if name.len() > 2 * LONGEST_NAME || name == "-auth" {
        return Secrecy::Plain;
    }
    let words = words(name);
    let verdicts = (0..words.len()).map(|at| judge_word(&words, at));
    let verdict = verdicts.max().unwrap_or(Secrecy::Plain);
    let is_about = words.last().is_some_and(|last| TABLE.about.contains(last)) || is_switch(&words);
    match verdict {
        Secrecy::Token | Secrecy::Secret if is_about => Secrecy::IfOpaque,
        _ => verdict,
    }
}

/// Judges the name of an option, parameter or variable. A name that is not known to be harmless is
/// [`Secrecy::Unknown`].
fn judge_option(name: &str) -> Secrecy {
    let verdict = judge(name);
    let words = words(name);
    // Matches a single letter, several one-letter switches, and a letter with a number, such as `-it` and `-j8`.
    let is_short = |letters: &&str| letters.trim_end_matches(char::is_numeric).len() <= 3;
    let letters =
        name.strip_prefix('-').filter(is_short).filter(|letters| !letters.starts_with('-'));
    let is_known = letters.is_some_and(|letters| !TABLE.secret_letters.contains(letters))
        || TABLE.harmless_names.contains(&words.join("-"))
        || words.last().is_none_or(|last| TABLE.harmless_words.contains(last))
        || is_harmless_variable(name)
        || is_switch(&words);
    match verdict < Secrecy::IfPair && !is_known {
        true => Secrecy::Unknown,
        false => verdict,
    }
}

fn is_switch(words: &[String]) -> bool {
    words.len() > 1 && TABLE.switches.contains(&words[0])
}

fn judge_word(words: &[String], at: usize) -> Secrecy {
    let word = words[at].as_str();
    let before = at.checked_sub(1).map_or("", |at| words[at].as_str());
    let is_last = at + 1 == words.len();
    let verdict_if = |condition: bool, verdict| if condition { verdict } else { Secrecy::Plain };
    match word {
        "authorization" => Secrecy::Line,
        "cookie" if is_last && words.len() <= 2 => Secrecy::Line,
        "token" => Secrecy::Token,
        // The table contains names of keys that are used for sorting or selecting.
        "key" if words.len() > 1 && !TABLE.harmless_names.contains(&words.join("-")) => {
            verdict_if(is_last, Secrecy::Secret)
        }
        "key" => verdict_if(is_last, Secrecy::IfOpaque),
        "tokens" | "keys" => verdict_if(TABLE.before_many.contains(before), Secrecy::Secret),
        "pass" => verdict_if(is_last && !TABLE.before_run.contains(before), Secrecy::Secret),
        "signature" if before == "amz" || before == "goog" => Secrecy::Secret,
        "signature" => verdict_if(is_last, Secrecy::IfOpaque),
        "login" | "user" | "userpwd" | "userpass" => verdict_if(is_last, Secrecy::IfPair),
        "u" => verdict_if(words.len() == 1, Secrecy::IfPair),
        word if TABLE.words.contains(word) => Secrecy::Secret,
        word if is_last && TABLE.last_words.contains(word) => Secrecy::Secret,
        word => {
            let is_secret = TABLE.word_ends.iter().any(|end| word.ends_with(end.as_str()));
            verdict_if(is_secret, Secrecy::Secret)
        }
    }
}

/// Splits a name into lower-case words without trailing digits, such as `apiKey2` into `api` and `key`.
fn words(name: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let mut before = '-';
    for (c, next) in name.chars().zip(name.chars().skip(1).chain(['-'])) {
        if c.is_ascii_alphanumeric() {
            // Split `apiKey` before the `K`, and `APIKey` before the last upper-case letter.
            let begins = c.is_ascii_uppercase()
                && (before.is_ascii_lowercase()
                    || (before.is_ascii_uppercase() && next.is_ascii_lowercase()));
            if begins || !before.is_ascii_alphanumeric() {
                words.push(String::new());
            }
            if let Some(word) = words.last_mut() {
                word.push(c.to_ascii_lowercase());
            }
        }
        before = c;
    }
    for word in &mut words {
        word.truncate(word.trim_end_matches(|c: char| c.is_ascii_digit()).len());
    }
    words.retain(|word| !word.is_empty());
    words
}

#[cfg(test)]
mod tests;
