//! What a program is given to give memory back by itself when it is asked: a signal's handler in Python, to paste.
//!
//! A process that has announced a signal (`GPUMEM_RELEASE_SIGNAL`) and handles it is sent that; this is the
//! other end. It is code for people to read and change: short, of the standard library, and without gpumem.

/// What a framework's allocator takes to give memory back, as the rest of a function's body.
struct SnippetPart {
    /// Names of frameworks, as in the table of [`frameworks`](super::frameworks).
    name: &'static str,
    body: &'static str,
    /// Its memory may be in the driver's own pools.
    has_pools: bool,
}

const PARTS: [SnippetPart; 4] = [
    SnippetPart { name: "pytorch", body: include_str!("snippet/pytorch.py"), has_pools: false },
    SnippetPart {
        name: "tensorflow",
        body: include_str!("snippet/tensorflow.py"),
        has_pools: true,
    },
    SnippetPart { name: "jax", body: include_str!("snippet/jax.py"), has_pools: true },
    SnippetPart { name: "cupy", body: include_str!("snippet/cupy.py"), has_pools: false },
];

/// The frameworks for which there is one.
pub fn snippet_names() -> impl Iterator<Item = &'static str> {
    PARTS.iter().map(|part| part.name)
}

/// The handler for a framework, by its name as a snapshot has it; for all of them without one. `None` where there is
/// none for it.
pub fn snippet(framework: Option<&str>) -> Option<String> {
    let is_asked = |part: &&SnippetPart| match framework {
        None => true,
        // Both versions have the same allocators.
        Some("tensorflow1") => part.name == "tensorflow",
        // It has one of them beneath it.
        Some("keras") => part.name != "cupy",
        Some(name) => part.name == name,
    };
    let parts: Vec<&SnippetPart> = PARTS.iter().filter(is_asked).collect();
    if parts.is_empty() {
        return None;
    }
    let mut text = include_str!("snippet/head.py").to_owned();
    let trims = "    _trim_gpu_pools()\n";
    for part in &parts {
        // Once is enough for all.
        let body = part.body.strip_suffix(trims).unwrap_or(part.body);
        text.push_str(body);
    }
    if parts.iter().any(|part| part.has_pools) {
        text.push_str(trims);
        text.push_str(include_str!("snippet/pools.py"));
    }
    text.push_str(include_str!("snippet/tail.py"));
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::advice::frameworks;

    #[test]
    fn each_is_for_a_framework_of_the_table_and_trims_once() {
        for name in snippet_names() {
            assert!(frameworks().iter().any(|it| it.name == name), "{name}");
            let text = snippet(Some(name)).unwrap();
            let others = snippet_names().filter(|it| *it != name);
            for other in others {
                assert!(!text.contains(&format!("sys.modules.get(\"{other}\")")));
            }
        }
        let all = snippet(None).unwrap();
        assert_eq!(all.matches("    _trim_gpu_pools()\n").count(), 1);
        assert_eq!(all.matches("def _trim_gpu_pools").count(), 1);
        let torch = snippet(Some("pytorch")).unwrap();
        assert!(torch.contains("empty_cache()") && !torch.contains("_trim_gpu_pools"));
        assert_eq!(snippet(Some("tensorflow1")), snippet(Some("tensorflow")));
        assert_eq!(snippet(Some("ollama")), None);
        assert!(all.lines().all(|line| line.len() <= 120), "{all}");
    }
}
