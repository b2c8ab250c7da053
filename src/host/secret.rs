//! Secrets in argv: their values are masked before anything else sees them.
//!
//! A command line is shown, recorded and sent about in findings, and people put the tokens of their
//! notebook servers, models and services on it. What is masked is told by the name before it, whole
//! words only: `--hf-token`, `WANDB_API_KEY=`, `?token=`; `--tokenizer` and `--max-tokens` are none. A
//! guess that hides: where a name is doubtful, its value is masked.

use std::borrow::Cow;

/// What stands for a secret.
const MASK: &str = "***";

/// Last words of names that carry a secret.
const SECRETS: [&str; 12] = [
    "token",
    "password",
    "passwd",
    "passphrase",
    "passcode",
    "secret",
    "credential",
    "credentials",
    "apikey",
    "authkey",
    "authorization",
    "cookie",
];

/// What a `key` is of, where it is a secret.
const KEYS: [&str; 7] = [
    "api",
    "access",
    "secret",
    "private",
    "auth",
    "account",
    "encryption",
];

/// Tokens of a text, not of a service: `--pad-token`.
const TEXT_TOKENS: [&str; 11] = [
    "eos", "bos", "pad", "unk", "mask", "sep", "cls", "stop", "image", "special", "per",
];

/// Flags that are followed by a name and a value (papermill's).
const NAMED: [&str; 4] = ["-p", "-r", "--parameters", "--parameters_raw"];

/// Masks the secrets among the arguments of a command.
pub(super) fn mask(arguments: &mut [Cow<'_, str>]) {
    let mut is_value = false;
    for at in 0..arguments.len() {
        if std::mem::take(&mut is_value) && !arguments[at].starts_with('-') {
            arguments[at] = MASK.into();
            continue;
        }
        let argument = &arguments[at];
        if let Some((name, _)) = argument.split_once('=').filter(|(name, _)| is_secret(name)) {
            arguments[at] = format!("{name}={MASK}").into();
            continue;
        }
        let follows_named = at > 0 && NAMED.contains(&&*arguments[at - 1]);
        is_value = (argument.starts_with('-') || follows_named) && is_secret(argument);
        if let Some(masked) = within(argument) {
            arguments[at] = masked.into();
        }
    }
}

/// Whether what is called so is a secret.
fn is_secret(name: &str) -> bool {
    // A name is short; anything else is text.
    let is_of_a_name = |c: char| c.is_alphanumeric() || "-_.+:".contains(c);
    if name.len() > 128 || !name.chars().all(is_of_a_name) {
        return false;
    }
    let words = words(name);
    match words.as_slice() {
        [.., of, last] if last == "token" => !TEXT_TOKENS.contains(&&**of),
        [.., of, last] if last == "key" => KEYS.contains(&&**of),
        [.., last] => SECRETS.contains(&&**last),
        [] => false,
    }
}

/// The words of `--IdentityProvider.token`, `WANDB_API_KEY`, `apiKey`, in lower case.
fn words(name: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let mut before = ' ';
    for c in name.chars() {
        let begins = !before.is_alphanumeric() || (c.is_uppercase() && before.is_lowercase());
        if c.is_alphanumeric() {
            if begins {
                words.push(String::new());
            }
            if let Some(word) = words.last_mut() {
                word.extend(c.to_lowercase());
            }
        }
        before = c;
    }
    words
}

/// An argument with the secrets that are a part of it masked: a URL's password and parameters, a
/// header. `None` where there are none.
fn within(argument: &str) -> Option<String> {
    let mut masked: Option<String> = None;
    if let Some((name, _)) = argument.split_once(':')
        && is_secret(name)
    {
        return Some(format!("{name}: {MASK}"));
    }
    // https://user:password@host
    if let Some((scheme, rest)) = argument.split_once("://") {
        let authority = rest.split(['/', '?', '#']).next().unwrap_or(rest);
        if let Some((user, host)) = authority.rsplit_once('@')
            && let Some((user, _)) = user.split_once(':')
        {
            let after = &rest[authority.len()..];
            masked = Some(format!("{scheme}://{user}:{MASK}@{host}{after}"));
        }
    }
    let text = masked.as_deref().unwrap_or(argument);
    let Some((path, query)) = text.split_once('?').filter(|_| text.contains('=')) else {
        return masked;
    };
    let mut is_changed = false;
    let parts: Vec<Cow<'_, str>> = query
        .split('&')
        .map(|part| match part.split_once('=') {
            Some((name, _)) if is_secret(name) => {
                is_changed = true;
                format!("{name}={MASK}").into()
            }
            _ => part.into(),
        })
        .collect();
    if is_changed {
        masked = Some(format!("{path}?{}", parts.join("&")));
    }
    masked
}

#[cfg(test)]
mod tests {
    use super::*;

    fn masked(line: &str) -> String {
        let mut arguments: Vec<Cow<'_, str>> = line.split(' ').map(Cow::from).collect();
        mask(&mut arguments);
        arguments.join(" ")
    }

    #[test]
    fn the_value_of_a_secret_is_masked() {
        for (line, expected) in [
            (
                "jupyter-lab --IdentityProvider.token=abc --port 8888",
                "jupyter-lab --IdentityProvider.token=*** --port 8888",
            ),
            (
                "vllm serve m --api-key abc --port 80",
                "vllm serve m --api-key *** --port 80",
            ),
            ("x --hf_token abc", "x --hf_token ***"),
            (
                "x --NotebookApp.password=sha1:a:b",
                "x --NotebookApp.password=***",
            ),
            (
                "env WANDB_API_KEY=abc python t.py",
                "env WANDB_API_KEY=*** python t.py",
            ),
            ("x +trainer.apiKey=abc", "x +trainer.apiKey=***"),
            (
                "x http://localhost:8888/?a=1&token=abc#frag",
                "x http://localhost:8888/?a=1&token=***",
            ),
            (
                "x https://ann:abc@host/path?q=1",
                "x https://ann:***@host/path?q=1",
            ),
            (
                "papermill a b -p hf_token abc -p n 1",
                "papermill a b -p hf_token *** -p n 1",
            ),
            ("curl -H Authorization:abc", "curl -H Authorization: ***"),
        ] {
            assert_eq!(masked(line), expected);
        }
    }

    #[test]
    fn what_only_sounds_like_a_secret_is_left() {
        for line in [
            "x --tokenizer=meta/llama --max-tokens 512 --num_tokens=3",
            "x --pad-token <pad> --eos_token=</s>",
            "x --key value --sort-key loss --monkey=3",
            "x --token-dropout 0.1",
            "x --api-key --port 80",
            "x http://host/?page=2&sort=token",
            "python train.py /data/secret/token.txt",
            "python -c print('token=3',\u{a0}key=5)",
            "x ann@host:/path user:@ = ?= -- -=",
        ] {
            assert_eq!(masked(line), line);
        }
        mask(&mut []);
    }
}
