//! Secrets in argv: what a snapshot must not carry on into screens, reports and recordings.
//!
//! People start servers with `--IdentityProvider.token=…`, `--api-key …` or `HF_TOKEN=… vllm`. Whoever
//! may list a machine's processes sees that, but a recording is attached to tickets and read for years.
//! So the value is left out where argv is read, and `***` stands for it; what it belongs to stays.
//!
//! A secret is told by its name only. One that stands for itself, or whose name says nothing of it, is
//! not found. Next: `cmdline` reads argv.

use std::borrow::Cow;

/// What stands for a secret.
const HIDDEN: &str = "***";

/// Last words of the names of secrets.
const WORDS: [&str; 13] = [
    "apikey",
    "apitoken",
    "authorization",
    "authtoken",
    "cookie",
    "credential",
    "credentials",
    "passphrase",
    "passwd",
    "password",
    "pwd",
    "secret",
    "token",
];

/// Words that make the word `key` after them a secret's name.
const KINDS_OF_KEY: [&str; 7] = [
    "access",
    "api",
    "auth",
    "encryption",
    "private",
    "secret",
    "signing",
];

/// Before `token`, a word that makes it one of a text: `--pad-token`.
const KINDS_OF_TEXT_TOKEN: [&str; 9] = [
    "bos", "cls", "eos", "image", "mask", "pad", "sep", "stop", "unk",
];

/// Options that a name and a value follow: papermill's.
const BEFORE_A_NAME: [&str; 4] = ["-p", "-r", "--parameters", "--parameters_raw"];

/// Hides the secrets of a whole argv, in place.
pub(super) fn hide(arguments: &mut [Cow<'_, str>]) {
    let mut follows = false;
    let mut is_a_name = false;
    for argument in arguments {
        if std::mem::replace(&mut is_a_name, BEFORE_A_NAME.contains(&&**argument))
            && is_a_word(argument)
        {
            follows = names_a_secret(argument);
            continue;
        }
        // What looks like another option is one, and the one before it was a switch.
        if std::mem::take(&mut follows) && !argument.starts_with('-') {
            *argument = Cow::Borrowed(HIDDEN);
            continue;
        }
        if !may_name_a_secret(argument) {
            continue;
        }
        if let Some(option) = argument.strip_prefix('-') {
            match option.split_once('=') {
                None => follows = names_a_secret(option),
                Some((name, _)) if names_a_secret(name) => {
                    let end = argument.len() - option.len() + name.len() + 1;
                    *argument = Cow::Owned(format!("{}{HIDDEN}", &argument[..end]));
                }
                Some(_) => hide_in_words(argument),
            }
        } else {
            hide_in_words(argument);
        }
    }
}

/// Whether it could be the name of a parameter.
fn is_a_word(argument: &str) -> bool {
    argument
        .chars()
        .all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// Whether it is worth a closer look; nearly nothing is.
fn may_name_a_secret(argument: &str) -> bool {
    let has = |part: &str| {
        let mut places = argument.as_bytes().windows(part.len());
        places.any(|place| place.eq_ignore_ascii_case(part.as_bytes()))
    };
    [
        "token",
        "pass",
        "pwd",
        "secret",
        "key",
        "credential",
        "authorization",
        "cookie",
        "://",
    ]
    .iter()
    .any(|part| has(part))
}

/// Whether an option, a variable or a parameter of this name has a secret for its value: by its last
/// words, however they are joined (`--hf-token`, `ServerApp.token`, `apiKey`, `WANDB_API_KEY`).
fn names_a_secret(name: &str) -> bool {
    let mut words: Vec<String> = Vec::new();
    let mut is_in_word = false;
    let mut was_lower = false;
    for c in name.chars() {
        if !c.is_ascii_alphanumeric() {
            is_in_word = false;
            continue;
        }
        let begins = !is_in_word || (was_lower && c.is_ascii_uppercase());
        if begins {
            words.push(String::new());
        }
        if let Some(word) = words.last_mut() {
            word.push(c.to_ascii_lowercase());
        }
        is_in_word = true;
        was_lower = c.is_ascii_lowercase();
    }
    match &words[..] {
        [.., kind, word] if word == "key" => KINDS_OF_KEY.contains(&&**kind),
        [.., kind, word] if word == "token" => !KINDS_OF_TEXT_TOKEN.contains(&&**kind),
        [.., word] => WORDS.contains(&&**word),
        [] => false,
    }
}

/// Hides them in text of several words, as a shell is given with `-c`, and in addresses.
fn hide_in_words(argument: &mut Cow<'_, str>) {
    // A header, as curl is given it: all that follows its name is its value.
    if let Some((name, _)) = argument.split_once(':')
        && names_a_secret(name)
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-')
    {
        *argument = Cow::Owned(format!("{name}: {HIDDEN}"));
        return;
    }
    let mut shown = String::new();
    let mut rest: &str = argument;
    let mut follows = false;
    while !rest.is_empty() {
        let start = rest
            .find(|c: char| !c.is_whitespace())
            .unwrap_or(rest.len());
        shown.push_str(&rest[..start]);
        rest = &rest[start..];
        let (word, after) = rest.split_at(word_end(rest));
        if std::mem::take(&mut follows) && !word.starts_with('-') {
            shown.push_str(HIDDEN);
        } else {
            follows = hide_in_word(word, &mut shown);
        }
        rest = after;
    }
    if shown != **argument {
        *argument = Cow::Owned(shown);
    }
}

/// Where a word ends; white space within quotes does not end it.
fn word_end(text: &str) -> usize {
    let mut quote = None;
    for (at, c) in text.char_indices() {
        match quote {
            Some(open) if c == open => quote = None,
            Some(_) => {}
            None if c.is_whitespace() => return at,
            // Within a word an apostrophe is one; a quoted value follows its `=`.
            None if matches!(c, '\'' | '"') && text[..at].ends_with('=') => quote = Some(c),
            None => {}
        }
    }
    // One that nothing closes is no quote.
    match quote {
        Some(_) => text.find(char::is_whitespace).unwrap_or(text.len()),
        None => text.len(),
    }
}

/// Writes one word without its secrets; whether the next word is one.
fn hide_in_word(word: &str, shown: &mut String) -> bool {
    if let Some((scheme, address)) = word.split_once("://") {
        if scheme
            .split_once('=')
            .is_some_and(|(name, _)| names_a_secret(name))
        {
            shown.push_str(&word[..word.find('=').map_or(0, |at| at + 1)]);
            shown.push_str(HIDDEN);
            return false;
        }
        shown.push_str(scheme);
        shown.push_str("://");
        hide_in_address(address, shown);
        return false;
    }
    match word.split_once('=') {
        Some((name, value)) if names_a_secret(name) && !value.is_empty() => {
            shown.push_str(name);
            shown.push('=');
            shown.push_str(HIDDEN);
            false
        }
        Some(_) => {
            shown.push_str(word);
            false
        }
        None => {
            shown.push_str(word);
            word.starts_with('-') && names_a_secret(word)
        }
    }
}

/// `user:password@host/path?token=…`
fn hide_in_address(address: &str, shown: &mut String) {
    let host_end = address.find(['/', '?', '#']).unwrap_or(address.len());
    let (authority, rest) = address.split_at(host_end);
    match authority.rsplit_once('@') {
        Some((user, host)) => {
            let name = user.split_once(':').map_or("", |(name, _)| name);
            shown.push_str(name);
            if !name.is_empty() {
                shown.push(':');
            }
            shown.push_str(HIDDEN);
            shown.push('@');
            shown.push_str(host);
        }
        None => shown.push_str(authority),
    }
    for part in rest.split_inclusive(['?', '&', '#', ';']) {
        match part.split_once('=') {
            Some((name, value)) if names_a_secret(name) => {
                shown.push_str(name);
                shown.push('=');
                shown.push_str(HIDDEN);
                let end = value.chars().last();
                shown.extend(end.filter(|c| ['?', '&', '#', ';'].contains(c)));
            }
            _ => shown.push_str(part),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hidden(arguments: &[&str]) -> Vec<String> {
        let mut arguments: Vec<_> = arguments.iter().map(|&it| Cow::Borrowed(it)).collect();
        hide(&mut arguments);
        arguments.into_iter().map(Cow::into_owned).collect()
    }

    #[test]
    fn values_of_secrets_are_left_out_and_their_names_stay() {
        for (arguments, expected) in [
            (
                &["jupyter_server", "--IdentityProvider.token=s3cret"][..],
                &["jupyter_server", "--IdentityProvider.token=***"][..],
            ),
            (
                &["vllm", "serve", "m", "--api-key", "s3cret", "--port", "1"],
                &["vllm", "serve", "m", "--api-key", "***", "--port", "1"],
            ),
            (
                &["x", "--NotebookApp.password=a b=c", "--hf_token", "s"],
                &["x", "--NotebookApp.password=***", "--hf_token", "***"],
            ),
            (
                &["env", "HF_TOKEN=s3cret", "wandb.api_key=s", "apiKey=s"],
                &["env", "HF_TOKEN=***", "wandb.api_key=***", "apiKey=***"],
            ),
            (
                &["sh", "-c", "HF_TOKEN='s 3' x  --token s y; PASSWORD=\"s"],
                &["sh", "-c", "HF_TOKEN=*** x  --token *** y; PASSWORD=***"],
            ),
            (
                &["x", "--url=http://ann:s3cret@host/lab?token=s&a=b#c"],
                &["x", "--url=http://ann:***@host/lab?token=***&a=b#c"],
            ),
            (
                &["x", "https://ghp_s3cret@github.com/a", "--token=https://s"],
                &["x", "https://***@github.com/a", "--token=***"],
            ),
            (
                &["papermill", "a", "b", "-p", "hf_token", "s", "-p", "n", "1"],
                &[
                    "papermill",
                    "a",
                    "b",
                    "-p",
                    "hf_token",
                    "***",
                    "-p",
                    "n",
                    "1",
                ],
            ),
            (
                &["curl", "-H", "Authorization: token s", "-H", "Cookie: a=b"],
                &["curl", "-H", "Authorization: ***", "-H", "Cookie: ***"],
            ),
        ] {
            assert_eq!(hidden(arguments), expected);
        }
    }

    #[test]
    fn what_is_no_secret_stays() {
        for arguments in [
            &[
                "python",
                "train.py",
                "--tokenizer",
                "gpt2",
                "--max-tokens=5",
            ][..],
            &["x", "--num_key_value_heads", "8", "--key=a", "--monkey=b"],
            &["x", "--use_auth_token", "--lr=1", "--pad-token=<p>"],
            &[
                "x",
                "keyring",
                "the key = a",
                "http://host:1/a?b=c@d",
                "--token",
            ],
            &[
                "x",
                "-c",
                "a token: it's\n a  b",
                "passenger=1",
                "é…://",
                "=",
            ],
            &[],
        ] {
            assert_eq!(hidden(arguments), arguments);
        }
    }
}
