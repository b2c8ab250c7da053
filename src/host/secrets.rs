//! Secrets in argv and in the environment: what a snapshot must not carry on into screens, reports and
//! recordings.
//!
//! People start servers with `--IdentityProvider.token=…`, `--api-key …` or `HF_TOKEN=… vllm`. Whoever
//! may list a machine's processes sees that, but a recording is attached to tickets and read for years.
//! So the value is left out where argv is read, and `***` stands for it; what it belongs to stays.
//!
//! A secret is told by its name (`names`), by its looks (`shapes`), or by where it stands: in an address,
//! after `Bearer`, after an option of a program that takes one. What is none of these is not found.
//! Every step goes through the text once, for argv is of any length. Next: `cmdline` reads argv.

mod names;
mod shapes;

use std::borrow::Cow;

use names::{Secrecy, judge};
pub(super) use shapes::is_opaque;
use shapes::{find_token, is_basic};

/// What stands for a secret.
const HIDDEN: &str = "***";

/// Options that a name and a value follow: papermill's.
const BEFORE_A_NAME: [&str; 4] = ["-p", "-r", "--parameters", "--parameters_raw"];

/// Programs, and the options of theirs whose value is a secret, beside or behind them.
const PROGRAMS: [(&str, &str); 12] = [
    ("docker", "-p"),
    ("htpasswd", "-b"),
    ("ldapsearch", "-w"),
    ("mariadb", "-p"),
    ("mongosh", "-p"),
    ("mosquitto_pub", "-P"),
    ("mysql", "-p"),
    ("mysqladmin", "-p"),
    ("mysqldump", "-p"),
    ("podman", "-p"),
    ("redis-cli", "-a"),
    ("sshpass", "-p"),
];

/// Addresses of which all that follows is a secret.
const SECRET_PATHS: [&str; 5] = [
    "://hooks.slack.com/services/",
    "://discord.com/api/webhooks/",
    "://discordapp.com/api/webhooks/",
    "://api.telegram.org/bot",
    ".webhook.office.com/",
];

/// What makes a variable's name a secret's where all of an environment is shown: better one masked too
/// many.
const PARTS_OF_NAMES: [&str; 6] = ["KEY", "TOKEN", "SECRET", "PASS", "CREDENTIAL", "COOKIE"];

/// How far back from its sign a name may begin.
const LONGEST_NAME: usize = 128;

/// What is told by its looks alone is looked at up to here.
const LONGEST_OPAQUE: usize = 512;

/// How a private key begins, of whatever kind (RFC 7468).
const KEY: &str = "-----BEGIN";

/// What ends a value that no quote encloses.
fn ends_value(c: char) -> bool {
    c.is_whitespace()
        || matches!(c, ',' | ';' | '&' | '}' | ')' | ']' | '"' | '\'' | '`' | '#' | '|')
}

/// Hides the secrets of a whole argv, in place.
pub(super) fn hide(arguments: &mut [Cow<'_, str>]) {
    let mut line = SecretScan::default();
    let mut is_script = false;
    for argument in arguments {
        let form = if is_script { WordKind::Script } else { WordKind::Argument };
        let hides = line.hide(argument, form);
        // What `-c` is followed by is text of many words, not one variable of any content.
        is_script =
            !argument.starts_with("--") && argument.starts_with('-') && argument.ends_with('c');
        if let Some(hidden) = hides {
            *argument = Cow::Owned(hidden);
        }
    }
}

/// Hides the secrets that stand in the value of a variable whose own value is none.
pub(super) fn hide_in_value(value: &mut Cow<'_, str>) {
    if let Some(hidden) = hide_in_text(value) {
        *value = Cow::Owned(hidden);
    }
}

/// Hides the value of a variable where its name says that it is a secret, with or without a doubt, and
/// the secrets that stand in it where not: for a variable that is shown whatever it is.
pub(super) fn hide_variable(name: &str, value: &mut Cow<'_, str>) {
    let upper = name.to_ascii_uppercase();
    let is_secret = PARTS_OF_NAMES.iter().any(|part| upper.contains(part));
    let by_name = match is_secret {
        true if value.is_empty() => None,
        true => Some(HIDDEN.to_owned()),
        false => hidden(judge(name), value),
    };
    match by_name {
        Some(hidden) => *value = Cow::Owned(hidden),
        None => hide_in_value(value),
    }
}

/// Goes through the words of a command, in order.
#[derive(Default)]
struct SecretScan {
    /// What the last word says of the one to come.
    follows: Follows,
    /// The option of the program that is run whose value is a secret.
    option: Option<&'static str>,
    /// What the word before was.
    is_login: bool,
}

/// What a word is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum WordKind {
    /// An argument of its own: what begins with a name and `=` is a value to its end.
    Argument,
    /// An argument that is text of many words.
    Script,
    /// A word of such a text.
    Word,
}

/// What a word says of the next.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum Follows {
    #[default]
    Nothing,
    /// The name of a parameter.
    Name,
    Value(Secrecy),
    Bearer,
    Basic,
}

impl SecretScan {
    /// The word without its secrets; `None` where it has none.
    fn hide(&mut self, word: &str, form: WordKind) -> Option<String> {
        let follows = std::mem::take(&mut self.follows);
        match follows {
            Follows::Name if is_a_word(word) => {
                self.follows = Follows::Value(judge(word));
                return None;
            }
            // What looks like another option is one, and the one before it was a switch.
            Follows::Value(verdict) if !word.starts_with('-') => {
                if let Some(hidden) = hidden(verdict, word) {
                    return Some(hidden);
                }
            }
            Follows::Bearer if word.len() >= 6 => return Some(within_quotes(word)),
            Follows::Basic if is_basic(unquoted(word)) => return Some(within_quotes(word)),
            _ => {}
        }
        let is_login = self.is_login;
        self.is_login = word == "login" || (is_login && word.starts_with('-'));
        if is_login && is_key_of_login(word) {
            return Some(HIDDEN.to_owned());
        }
        if word.len() <= 64 && !word.starts_with('-') {
            self.note_program(word);
        }
        if let Some(option) = self.option
            && let Some(rest) = word.strip_prefix(option)
        {
            // A port, a number of rows, a folder that is mapped are none.
            if rest.is_empty() {
                self.follows = Follows::Value(Secrecy::Secret);
                return None;
            }
            return (!rest.contains(['=', ':', '/']) && rest.parse::<u32>().is_err())
                .then(|| format!("{option}{HIDDEN}"));
        }
        if BEFORE_A_NAME.contains(&word) {
            self.follows = Follows::Name;
            return None;
        }
        if word.starts_with('-') && !word.contains(['=', ':', ' ']) {
            self.follows = Follows::Value(judge(word));
            return hide_tokens(word);
        }
        if let Some(pair) = word.strip_prefix("-u")
            && let Some(pair) = hidden(Secrecy::IfPair, pair)
        {
            return Some(format!("-u{pair}"));
        }
        if form == WordKind::Argument
            && let Some(hidden) = hide_assigned(word)
        {
            return Some(hidden);
        }
        self.follows = after(word);
        match form == WordKind::Word || !word.contains(char::is_whitespace) {
            true => hide_in_word(word),
            false => hide_in_text(word),
        }
    }

    fn note_program(&mut self, word: &str) {
        let name = word.rsplit('/').next().unwrap_or(word);
        if let Some((_, option)) = PROGRAMS.iter().find(|(program, _)| *program == name) {
            // Of these `-p` is a port that is published, unless one logs in.
            let needs_login = matches!(name, "docker" | "podman");
            self.option = (!needs_login).then_some(*option);
        } else if word == "login" {
            self.option = self.option.or(Some("-p"));
        }
    }
}

/// What a word says of the next by itself.
fn after(word: &str) -> Follows {
    // Of `"Authorization: Bearer` as of `Bearer`.
    let last = word.rsplit([' ', ':', '"', '\'', '=']).next().unwrap_or(word);
    if last.starts_with("--") {
        Follows::Value(judge(last))
    } else if last.eq_ignore_ascii_case("bearer") {
        Follows::Bearer
    } else if last.eq_ignore_ascii_case("basic") {
        Follows::Basic
    } else {
        Follows::Nothing
    }
}

/// `wandb login` takes a key of 40 hexadecimal digits, or a newer one.
fn is_key_of_login(word: &str) -> bool {
    let word = word.strip_prefix("local-").unwrap_or(word);
    let is_hash = word.len() >= 32 && word.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_hash || is_opaque(word)
}

/// Whether it could be the name of a parameter.
fn is_a_word(argument: &str) -> bool {
    let is_of_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    argument.chars().all(is_of_word)
}

fn unquoted(word: &str) -> &str {
    word.trim_matches(['"', '\'', '`', '\\'])
}

/// `'***'` for what is in quotes, as far as it is.
fn within_quotes(word: &str) -> String {
    let inner = unquoted(word);
    match word.find(inner).filter(|_| !inner.is_empty()) {
        Some(at) => format!("{}{HIDDEN}{}", &word[..at], &word[at + inner.len()..]),
        None => HIDDEN.to_owned(),
    }
}

/// A value by what its name says of it; `None` where it is not hidden as a whole or in part.
fn hidden(verdict: Secrecy, value: &str) -> Option<String> {
    if is_hidden(verdict, value) {
        return Some(HIDDEN.to_owned());
    }
    if verdict == Secrecy::IfPair
        && let Some((name, secret)) = unquoted(value).split_once(':')
    {
        let is_number = |text: &str| text.parse::<u32>().is_ok();
        let is_address = secret.starts_with("//") || name.contains('/');
        if !name.is_empty() && !secret.is_empty() && !is_number(secret) && !is_address {
            return Some(format!("{name}:{HIDDEN}"));
        }
    }
    None
}

/// Whether the whole of a value is hidden.
fn is_hidden(verdict: Secrecy, value: &str) -> bool {
    let is_harmless = || {
        let words = ["", "true", "false", "none", "null", "auto"];
        words.iter().any(|word| value.eq_ignore_ascii_case(word))
    };
    match verdict {
        Secrecy::Plain | Secrecy::IfPair => is_opaque(value),
        Secrecy::IfOpaque => is_opaque(value) || is_key_of_login(value),
        Secrecy::Secret | Secrecy::Line => !is_harmless(),
    }
}

/// An argument that is a name and a value: `--token=a b`, `TOKEN=a b`.
fn hide_assigned(argument: &str) -> Option<String> {
    let (name, value) = argument.split_once('=')?;
    let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '+');
    if name.is_empty() || !name.chars().all(is_name) {
        return None;
    }
    let verdict = judge(name.trim_start_matches('-'));
    // An address is of parts, some of which say something.
    let is_whole = verdict >= Secrecy::Secret || !value.contains("://");
    let hidden = is_whole.then(|| hidden(verdict, value)).flatten();
    // `--args="--token x"`
    let within = || value.contains(char::is_whitespace).then(|| hide_in_text(value));
    let hidden = hidden.or_else(|| within().flatten())?;
    Some(format!("{name}={hidden}"))
}

/// Hides them in text of several words, as a shell is given with `-c`.
fn hide_in_text(text: &str) -> Option<String> {
    let by_place = hide_in_word(text);
    let text = by_place.as_deref().unwrap_or(text);
    let mut shown = String::new();
    let mut rest = text;
    let mut line = SecretScan::default();
    let mut is_changed = false;
    while !rest.is_empty() {
        let start = rest.find(|c: char| !c.is_whitespace());
        let start = start.unwrap_or(rest.len());
        shown.push_str(&rest[..start]);
        rest = &rest[start..];
        let (word, after) = rest.split_at(word_end(rest));
        rest = after;
        match line.hide_word(word) {
            Some(hidden) => {
                is_changed = true;
                shown.push_str(&hidden);
            }
            None => shown.push_str(word),
        }
    }
    if is_changed { Some(shown) } else { by_place }
}

impl SecretScan {
    /// As [`SecretScan::hide`], of a word of a text, in which what stands within a word was hidden already.
    fn hide_word(&mut self, word: &str) -> Option<String> {
        if word.is_empty() || word.contains(HIDDEN) {
            self.follows = Follows::Nothing;
            return None;
        }
        // What opens a string that holds a command, or the word itself.
        let bare = word.trim_start_matches(['"', '\'', '`', '(', '{']);
        let opened = word.len() - bare.len();
        let hides_next =
            matches!(self.follows, Follows::Value(verdict) if verdict >= Secrecy::Secret);
        if hides_next && !bare.starts_with('-') {
            let hidden = hidden(Secrecy::Secret, unquoted(word));
            self.follows = Follows::Nothing;
            return hidden.map(|_| within_quotes(word));
        }
        let hidden = self.hide(bare, WordKind::Word)?;
        Some(format!("{}{hidden}", &word[..opened]))
    }
}

/// Where a word ends; white space within the quotes of a value does not end it.
fn word_end(text: &str) -> usize {
    let mut quote = None;
    let mut before = ' ';
    for (at, c) in text.char_indices() {
        match quote {
            Some((open, _)) if c == open => quote = None,
            Some(_) => {}
            None if c.is_whitespace() => return at,
            // Within a word an apostrophe is one; a quoted value follows its `=`.
            None if matches!(c, '\'' | '"') && before == '=' => quote = Some((c, at)),
            None => {}
        }
        before = c;
    }
    // One that nothing closes is no quote.
    match quote {
        Some((_, at)) => text[at..].find(char::is_whitespace).map_or(text.len(), |end| at + end),
        None => text.len(),
    }
}

/// Hides what stands in a word or a text by itself: values behind names, addresses, tokens, keys.
fn hide_in_word(text: &str) -> Option<String> {
    let values = hide_values(text);
    let text = values.as_deref().unwrap_or(text);
    let tokens = hide_tokens(text);
    tokens.or(values)
}

/// Tokens that are told by their looks, and private keys.
fn hide_tokens(text: &str) -> Option<String> {
    if text.len() < 15 {
        return None;
    }
    let mut shown = String::new();
    let mut from = 0;
    while let Some((begin, end)) = find_token(text, from) {
        shown.push_str(&text[from..begin]);
        shown.push_str(HIDDEN);
        from = end;
    }
    let mut places = text.as_bytes()[from..].windows(KEY.len());
    let key = places.position(|place| place == KEY.as_bytes());
    if let Some(at) = key.map(|at| from + at)
        && text[at..].contains("PRIVATE KEY")
    {
        let end = text.rfind("-----END").filter(|end| *end > at);
        let end = end.and_then(|end| Some(end + 8 + text[end + 8..].find("-----")? + 5));
        shown.push_str(&text[from..at]);
        shown.push_str(HIDDEN);
        from = end.unwrap_or(text.len());
    }
    (from > 0).then(|| shown + &text[from..])
}

/// Values behind `=` and `:` whose names, or looks, make them secrets: `KEY=…`, `"key": "…"`, `Key: …`,
/// `?key=…&`, and what stands before the `@` of an address.
fn hide_values(text: &str) -> Option<String> {
    let mut shown = String::new();
    // All before is in `shown`.
    let mut done = 0;
    let mut at = 0;
    let is_sign = |byte: &u8| matches!(byte, b'=' | b':');
    while let Some(found) = text.as_bytes()[at..].iter().position(is_sign) {
        let sign = at + found;
        at = sign + 1;
        let hides = if text[sign..].starts_with("://") {
            in_address(text, sign)
        } else {
            behind_name(text, done, sign)
        };
        if let Some((begin, end, instead)) = hides {
            shown.push_str(&text[done..begin]);
            shown.push_str(&instead);
            done = end;
            at = at.max(end);
        }
    }
    (done > 0).then(|| shown + &text[done..])
}

/// What of an address that goes on at its `://` is hidden: from, to, and what is shown instead.
fn in_address(text: &str, sign: usize) -> Option<(usize, usize, String)> {
    let rest = &text[sign..];
    let scheme = |c: char| c.is_ascii_alphanumeric() || c == '+';
    let scheme = text[..sign].len() - text[..sign].trim_end_matches(scheme).len();
    let scheme = &text[sign - scheme..sign];
    let ends_address = |c: char| c.is_whitespace() || matches!(c, '"' | '\'' | '`' | '>' | '<');
    for begin in SECRET_PATHS {
        let at = match begin.starts_with("://") {
            true => rest.starts_with(begin).then_some(begin.len()),
            false => {
                let host = &rest[..rest[3..].find('/').map_or(rest.len(), |at| at + 4)];
                host.ends_with(begin).then_some(host.len())
            }
        };
        if let Some(at) = at {
            let end = rest.find(ends_address).unwrap_or(rest.len());
            return (end > at).then(|| (sign + at, sign + end, HIDDEN.to_owned()));
        }
    }
    let authority = &rest[3..];
    let ends = |c: char| ends_address(c) || matches!(c, '/' | '?' | '#');
    let authority = &authority[..authority.find(ends).unwrap_or(authority.len())];
    let (user, _) = authority.rsplit_once('@')?;
    let begin = sign + 3;
    let (name, has_secret) = match user.split_once(':') {
        Some((name, secret)) => (format!("{name}:"), !secret.is_empty()),
        // A name alone is a token where users do not log in by name.
        None => (String::new(), scheme.starts_with("http") && !user.is_empty()),
    };
    let name = if name.len() > 1 || !has_secret { name } else { String::new() };
    has_secret.then(|| (begin, begin + user.len(), format!("{name}{HIDDEN}")))
}

/// What is hidden behind a `=` or a `:`, as of [`in_address`]; nothing before `floor` is looked at.
fn behind_name(text: &str, floor: usize, sign: usize) -> Option<(usize, usize, String)> {
    let is_colon = text[sign..].starts_with(':');
    let floor = floor.max(sign.saturating_sub(LONGEST_NAME));
    let before = (floor..=sign).find(|&at| text.is_char_boundary(at))?;
    let is_apart = text[..sign].ends_with(' ');
    let before = text[before..sign].trim_end_matches(' ');
    let unquoted = before.trim_end_matches(['"', '\'', '\\']);
    let is_quoted = unquoted.len() < before.len();
    let is_of_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    let begin = unquoted.rfind(|c: char| !is_of_name(c));
    let begin = begin.map_or(0, |at| at + unquoted[at..].chars().next().map_or(1, char::len_utf8));
    let name = unquoted[begin..].trim_start_matches('-');
    if name.is_empty() {
        return None;
    }
    let previous = unquoted[..begin].chars().next_back();
    // In prose a colon is one; it belongs to a name in quotes, at the beginning, in a table.
    if is_colon
        && !is_quoted
        && !matches!(previous, None | Some('{' | ',' | '"' | '\'' | '\n' | '('))
    {
        let is_header = judge(name) == Secrecy::Line;
        if !is_header {
            return None;
        }
    }
    let verdict = judge(name);
    let after = &text[sign + 1..];
    let value = after.trim_start_matches(['>']);
    let value = match is_colon || is_apart || is_quoted {
        true => value.trim_start_matches(' '),
        false => value,
    };
    let begin = text.len() - value.len();
    // What says nothing of itself is looked at only so far, or a text of signs would be gone through
    // once for each of them.
    let text = match verdict >= Secrecy::Secret {
        true => text,
        false => {
            let far =
                (begin + LONGEST_OPAQUE + 1..text.len()).find(|&at| text.is_char_boundary(at));
            &text[..far.unwrap_or(text.len())]
        }
    };
    let value = &text[begin..];
    if verdict == Secrecy::Line && is_colon && !is_quoted {
        // To the end of what encloses the header.
        let end = match previous {
            Some(quote @ ('"' | '\'')) => value.find(quote),
            None => None,
            _ => value.find(['"', '\'', '\n', ',']),
        };
        let end = begin + end.unwrap_or(value.len());
        return (end > begin).then(|| (begin, end, HIDDEN.to_owned()));
    }
    let escapes = value.len() - value.trim_start_matches('\\').len();
    let open = value[escapes..].chars().next();
    let (inner, end) = match open.filter(|c| matches!(c, '"' | '\'' | '`')) {
        Some(quote) => {
            let inner = begin + escapes + 1;
            let close = text[inner..].find(quote);
            // The escape before the quote that closes is not of the value.
            let end = inner
                + close.map_or(text.len() - inner, |at| {
                    at.min(text[inner..inner + at].trim_end_matches('\\').len())
                });
            match close {
                Some(_) => (inner, end),
                // One that nothing closes is no quote.
                None => (begin, begin + value.find(char::is_whitespace).unwrap_or(value.len())),
            }
        }
        None => {
            // Of rows of signs each value ends before the next, unless it is a secret.
            let ends = |c| ends_value(c) || (verdict < Secrecy::Secret && matches!(c, '=' | ':'));
            let by_colon = verdict != Secrecy::IfPair;
            let ends = |c| ends(c) && (by_colon || c != ':');
            (begin, begin + value.find(ends).unwrap_or(value.len()))
        }
    };
    let value = &text[inner..end];
    // An address is of parts, some of which say something.
    if verdict < Secrecy::Secret && value.contains("://") {
        return None;
    }
    let instead = hidden(verdict, value)?;
    Some((inner, end, instead))
}

#[cfg(test)]
mod tests;
