//! Which names have a secret for their value: of options, variables, parameters, headers, keys of JSON.
//!
//! A name is judged by its words, however they are joined (`--hf-token`, `ServerApp.token`, `apiKey`,
//! `WANDB_API_KEY`), because those of `--max-tokens`, `--tokenizer`, `--key-frames` and
//! `--num-key-value-heads` are others.

/// What a name says of its value; the later outweighs the earlier.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Secrecy {
    /// Nothing.
    Plain,
    /// It is a secret where it looks like one: an option that says where one is, or how it is treated,
    /// and a key of which it is not known what it opens.
    IfOpaque,
    /// It is a name and a secret where it has a colon: `ann:s3cret`.
    IfPair,
    /// It is a secret.
    Secret,
    /// It is a secret, to the end of the line: a header.
    Line,
}

/// Words that make any name a secret's, wherever they stand in it.
const WORDS: [&str; 27] = [
    "accesskey",
    "accesstoken",
    "accountkey",
    "apikey",
    "apitoken",
    "authkey",
    "authtoken",
    "bearer",
    "cookie",
    "credential",
    "credentials",
    "creds",
    "jwt",
    "passcode",
    "passphrase",
    "passwd",
    "password",
    "passwords",
    "privatekey",
    "pwd",
    "secret",
    "secretkey",
    "secrets",
    "sharedaccesskey",
    "sharedaccesssignature",
    "sharedkey",
    "signingkey",
];

/// Ends of words that are written as one: `PGPASSWORD`, `hftoken`.
const ENDS: [&str; 6] = ["password", "passwd", "passphrase", "secret", "token", "apikey"];

/// Words that do so as the last one.
const LAST_WORDS: [&str; 4] = ["otp", "pw", "sas", "sig"];

/// Words that make the word `key` after them a secret's name: what it opens.
const KINDS_OF_KEY: [&str; 63] = [
    "access",
    "account",
    "admin",
    "ai",
    "anthropic",
    "api",
    "app",
    "auth",
    "aws",
    "azure",
    "bot",
    "clearml",
    "client",
    "cohere",
    "comet",
    "consumer",
    "datadog",
    "dd",
    "decryption",
    "deepgram",
    "deepseek",
    "deploy",
    "elevenlabs",
    "encryption",
    "fireworks",
    "gcp",
    "gemini",
    "github",
    "gitlab",
    "google",
    "gpg",
    "groq",
    "hf",
    "hmac",
    "huggingface",
    "langchain",
    "langfuse",
    "langsmith",
    "license",
    "master",
    "mistral",
    "neptune",
    "ngc",
    "nim",
    "nvidia",
    "openai",
    "openrouter",
    "pinecone",
    "private",
    "replicate",
    "roboflow",
    "secret",
    "sendgrid",
    "sentry",
    "serpapi",
    "service",
    "session",
    "shared",
    "signing",
    "stripe",
    "subscription",
    "tavily",
    "wandb",
];

/// Before `token`, a word that makes it one of a text (`--pad-token`), or how many (`--max-token`).
const KINDS_OF_TEXT_TOKEN: [&str; 34] = [
    "additional",
    "audio",
    "begin",
    "bos",
    "by",
    "class",
    "cls",
    "end",
    "eos",
    "eot",
    "extra",
    "first",
    "forced",
    "image",
    "last",
    "mask",
    "max",
    "min",
    "multi",
    "new",
    "next",
    "num",
    "pad",
    "per",
    "prompt",
    "sep",
    "special",
    "start",
    "stop",
    "sub",
    "text",
    "think",
    "unk",
    "video",
];

/// After `token`, a word that makes it one of a text.
const OF_TEXT_TOKENS: [&str; 24] = [
    "budget",
    "chunk",
    "classification",
    "count",
    "dim",
    "dropout",
    "embedding",
    "embeddings",
    "embeds",
    "id",
    "ids",
    "len",
    "length",
    "level",
    "limit",
    "merging",
    "mixing",
    "per",
    "pooling",
    "pruning",
    "ratio",
    "shift",
    "size",
    "weight",
];

/// Before `pass`, a word that makes it a run.
const KINDS_OF_RUN: [&str; 22] = [
    "at", "backward", "band", "by", "bypass", "final", "first", "forward", "full", "high", "last",
    "low", "max", "min", "multi", "n", "num", "one", "per", "second", "single", "two",
];

/// Before `tokens` or `keys`, words that make them secrets.
const KINDS_OF_MANY: [&str; 6] = ["access", "api", "auth", "bearer", "refresh", "secret"];

/// Last words of the names of what says something of a secret, and holds none.
const ABOUT: [&str; 42] = [
    "arn",
    "backend",
    "class",
    "column",
    "count",
    "dir",
    "enabled",
    "endpoint",
    "env",
    "expires",
    "expiry",
    "field",
    "file",
    "folder",
    "format",
    "header",
    "host",
    "id",
    "length",
    "location",
    "manager",
    "max",
    "min",
    "mode",
    "name",
    "namespace",
    "path",
    "policy",
    "port",
    "prompt",
    "provider",
    "ref",
    "required",
    "rotation",
    "server",
    "source",
    "store",
    "timeout",
    "ttl",
    "type",
    "uri",
    "url",
];

/// First words of the names of switches.
const SWITCHES: [&str; 10] =
    ["allow", "disable", "enable", "has", "is", "no", "require", "skip", "use", "with"];

/// What a name says of its value.
pub(super) fn judge(name: &str) -> Secrecy {
    if name.len() > 256 || !has_part(name) {
        return match name {
            "u" | "-u" | "pat" | "--pat" | "PAT" => Secrecy::IfPair,
            _ => Secrecy::Plain,
        };
    }
    let words = words(name);
    let mut words = &words[..];
    while let [rest @ .., last] = words
        && last.is_empty()
    {
        words = rest;
    }
    let [.., last] = words else {
        return Secrecy::Plain;
    };
    let verdicts = (0..words.len()).map(|at| of_word(words, at));
    let verdict = verdicts.max().unwrap_or(Secrecy::Plain);
    let is_about = ABOUT.contains(&last.as_str())
        || (words.len() > 1 && SWITCHES.contains(&words[0].as_str()));
    match verdict {
        Secrecy::Secret if is_about => Secrecy::IfOpaque,
        verdict => verdict,
    }
}

/// What one word says, among the others.
fn of_word(words: &[String], at: usize) -> Secrecy {
    let word = words[at].as_str();
    let before = at.checked_sub(1).map_or("", |at| words[at].as_str());
    let after = words.get(at + 1).map_or("", String::as_str);
    let is_last = at + 1 == words.len();
    let when = |so: bool, verdict| if so { verdict } else { Secrecy::Plain };
    match word {
        "authorization" => Secrecy::Line,
        "cookie" if is_last && words.len() <= 2 => Secrecy::Line,
        "token" if KINDS_OF_TEXT_TOKEN.contains(&before) => Secrecy::Plain,
        "token" if OF_TEXT_TOKENS.contains(&after) => Secrecy::Plain,
        "token" => Secrecy::Secret,
        "tokens" => when(KINDS_OF_MANY.contains(&before), Secrecy::Secret),
        "key" | "keys" if KINDS_OF_KEY.contains(&before) => Secrecy::Secret,
        "key" => when(is_last, Secrecy::IfOpaque),
        "keys" => when(KINDS_OF_MANY.contains(&before), Secrecy::Secret),
        "pass" => when(is_last && !KINDS_OF_RUN.contains(&before), Secrecy::Secret),
        "signature" if before == "amz" || before == "goog" => Secrecy::Secret,
        "signature" => when(is_last, Secrecy::IfOpaque),
        "auth" if before.starts_with("redis") => Secrecy::Secret,
        "auth" | "user" | "userpwd" | "userpass" => when(is_last, Secrecy::IfPair),
        word if WORDS.contains(&word) => Secrecy::Secret,
        word if is_last && LAST_WORDS.contains(&word) => Secrecy::Secret,
        word => {
            let end = ENDS.iter().find_map(|end| word.strip_suffix(end));
            let is_secret = end.is_some_and(|kind| !KINDS_OF_TEXT_TOKEN.contains(&kind));
            when(is_secret, Secrecy::Secret)
        }
    }
}

/// Lowercase, without the digits that they end with: `apiKey2` is `api` and `key`.
fn words(name: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let bytes = name.as_bytes();
    let mut is_in_word = false;
    for (at, byte) in bytes.iter().enumerate() {
        if !byte.is_ascii_alphanumeric() {
            is_in_word = false;
            continue;
        }
        let was = |so: fn(&u8) -> bool| at > 0 && so(&bytes[at - 1]);
        let is_next_lower = bytes.get(at + 1).is_some_and(u8::is_ascii_lowercase);
        let begins = byte.is_ascii_uppercase()
            && (was(u8::is_ascii_lowercase) || (was(u8::is_ascii_uppercase) && is_next_lower));
        if !is_in_word || begins {
            words.push(String::new());
        }
        if let Some(word) = words.last_mut() {
            word.push(char::from(byte.to_ascii_lowercase()));
        }
        is_in_word = true;
    }
    for word in &mut words {
        word.truncate(word.trim_end_matches(|c: char| c.is_ascii_digit()).len());
    }
    words
}

/// Whether it is worth a closer look; nearly nothing is. One of these parts is in every name that is.
fn has_part(name: &str) -> bool {
    let bytes = name.as_bytes();
    (0..bytes.len()).any(|at| {
        let parts: &[&str] = match bytes[at] | 0x20 {
            b'a' => &["auth"],
            b'b' => &["bearer"],
            b'c' => &["cred", "cookie"],
            b'j' => &["jwt"],
            b'k' => &["key"],
            b'o' => &["otp"],
            b'p' => &["pass", "pw"],
            b's' => &["secret", "sas", "sig"],
            b't' => &["token"],
            b'u' => &["user"],
            _ => return false,
        };
        parts.iter().any(|part| {
            let here = bytes.get(at..at + part.len());
            here.is_some_and(|it| it.eq_ignore_ascii_case(part.as_bytes()))
        })
    })
}
