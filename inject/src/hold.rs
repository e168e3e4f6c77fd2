//! Istio's hold: `holdApplicationUntilProxyStarts` in the annotation `proxy.istio.io/config`, whose YAML is the user's.
//! One key is added to it; the user's keys, comments and order stay as they are.

use contract::names::HOLD_FIELD;
use serde_json::{Map, Value};

/// What to do about the annotation.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Hold {
    /// The field is there; what it says stands.
    Said,
    /// The annotation's new value.
    Write(String),
    /// The annotation is not a mapping in YAML that could be added to; why.
    Unreadable(String),
}

/// Plans the annotation's value from its present one.
pub(super) fn plan(annotation: Option<&str>) -> Hold {
    let text = annotation.unwrap_or_default();
    if text.trim().is_empty() {
        return Hold::Write(format!("{{\"{HOLD_FIELD}\": true}}"));
    }
    let config = match parse(text) {
        Ok(config) => config,
        Err(reason) => return Hold::Unreadable(reason),
    };
    if config.contains_key(HOLD_FIELD) {
        return Hold::Said;
    }
    let mut wanted = config.clone();
    wanted.insert(HOLD_FIELD.to_owned(), Value::Bool(true));
    let edited = if text.trim_start().starts_with('{') { in_flow(text, config.is_empty()) } else { in_block(text) };
    // The edit is of text, so it is believed only where reading it again gives the old keys and the new one.
    if parse(&edited).is_ok_and(|config| config == wanted) {
        Hold::Write(edited)
    } else {
        Hold::Unreadable("its layout leaves no safe place for one more key".to_owned())
    }
}

fn parse(text: &str) -> Result<Map<String, Value>, String> {
    // Ours is JSON, which is YAML, too, and sooner read.
    if let Ok(config) = serde_json::from_str(text) {
        return Ok(config);
    }
    serde_saphyr::from_str(text).map_err(|error| {
        let reason = error.to_string();
        format!("it is no mapping in YAML ({})", reason.lines().next().unwrap_or_default())
    })
}

/// `{…}`: after the opening brace.
fn in_flow(text: &str, is_empty: bool) -> String {
    let comma = if is_empty { "" } else { ", " };
    text.replacen('{', &format!("{{\"{HOLD_FIELD}\": true{comma}"), 1)
}

/// Block style: one more line at the end, indented as the first key is.
fn in_block(text: &str) -> String {
    let is_key = |line: &&str| !line.trim().is_empty() && !line.trim_start().starts_with(['#', '-']);
    let first = text.lines().find(is_key).unwrap_or_default();
    let indent = &first[..first.len() - first.trim_start().len()];
    format!("{}\n{indent}{HOLD_FIELD}: true\n", text.trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_is_added_and_the_rest_stays() {
        let cases = [
            ("no annotation", "", "{\"holdApplicationUntilProxyStarts\": true}"),
            ("blank", " \n", "{\"holdApplicationUntilProxyStarts\": true}"),
            ("empty mapping", "{}", "{\"holdApplicationUntilProxyStarts\": true}"),
            ("JSON", "{\"concurrency\": 2}", "{\"holdApplicationUntilProxyStarts\": true, \"concurrency\": 2}"),
            (
                "flow over lines",
                "{\n  concurrency: 2, # two\n}\n",
                "{\"holdApplicationUntilProxyStarts\": true, \n  concurrency: 2, # two\n}\n",
            ),
            ("block", "concurrency: 2", "concurrency: 2\nholdApplicationUntilProxyStarts: true\n"),
            (
                "comments, nesting and order",
                "# ours\ntracing:\n  sampling: 10 # percent\nconcurrency: 2\n",
                "# ours\ntracing:\n  sampling: 10 # percent\nconcurrency: 2\nholdApplicationUntilProxyStarts: true\n",
            ),
            ("indented", "  a: 1\n  b: {c: 2}\n", "  a: 1\n  b: {c: 2}\n  holdApplicationUntilProxyStarts: true\n"),
            ("document mark", "---\na: 1\n", "---\na: 1\nholdApplicationUntilProxyStarts: true\n"),
        ];
        for (name, before, after) in cases {
            assert_eq!(plan(Some(before)), Hold::Write(after.to_owned()), "{name}");
            assert_eq!(plan(Some(after)), Hold::Said, "{name}, again");
        }
    }

    #[test]
    fn what_the_user_said_of_it_stands() {
        for text in [
            "holdApplicationUntilProxyStarts: false",
            "{\"holdApplicationUntilProxyStarts\": false}",
            "a: 1\nholdApplicationUntilProxyStarts: true",
        ] {
            assert_eq!(plan(Some(text)), Hold::Said, "{text}");
        }
    }

    #[test]
    fn what_cannot_be_read_is_left_alone() {
        for text in ["- a\n- b", "just text", "a: [1", "a: 1\n...\n"] {
            assert!(matches!(plan(Some(text)), Hold::Unreadable(_)), "{text}: {:?}", plan(Some(text)));
        }
    }
}
