//! The startup hold: `holdApplicationUntilProxyStarts` in the annotation `proxy.istio.io/config`, which is YAML. One key is
//! added, and the user's keys, comments and order stay as they are.

use contract::names::HOLD_FIELD;
use serde_json::{Map, Value};

/// The field's protobuf name, which Istio's parser accepts unless the JSON name is present (`jsonpb`).
const HOLD_FIELD_IN_PROTOBUF: &str = "hold_application_until_proxy_starts";
/// Longer annotations are not parsed, which bounds the time of a decision: a `ProxyConfig` has some hundred bytes.
const ANNOTATION_LENGTH_LIMIT: usize = 16 << 10;

/// The edit of the annotation.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum HoldEdit {
    /// The field is there, and keeps the user's value: true if it asks for the hold.
    AlreadySet(bool),
    /// The annotation's new value.
    Set(String),
}

/// An annotation to which a key cannot be added.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum UnsupportedAnnotation {
    #[error("it is longer than 16 KiB")]
    TooLong,
    /// With the parser's first line.
    #[error("it is not a YAML mapping ({0})")]
    NotAMapping(String),
    #[error("its layout leaves no safe place for one more key")]
    Layout,
}

/// Adds the field to the annotation's value, unless it is there.
pub(super) fn edit(annotation: Option<&str>) -> Result<HoldEdit, UnsupportedAnnotation> {
    let text = annotation.unwrap_or_default();
    if text.trim().is_empty() {
        return Ok(HoldEdit::Set(format!("{{\"{HOLD_FIELD}\": true}}")));
    }
    if text.len() > ANNOTATION_LENGTH_LIMIT {
        return Err(UnsupportedAnnotation::TooLong);
    }
    let config = parse(text)?;
    if let Some(value) = config.get(HOLD_FIELD).or_else(|| config.get(HOLD_FIELD_IN_PROTOBUF)) {
        return Ok(HoldEdit::AlreadySet(value == true));
    }
    let mut wanted = config.clone();
    wanted.insert(HOLD_FIELD.to_owned(), Value::Bool(true));
    let edited = if text.trim_start().starts_with('{') { in_flow(text, config.is_empty()) } else { in_block(text) };
    // The text is edited, so the result is checked: it has to have the old keys and the new one.
    if parse(&edited).is_ok_and(|config| config == wanted) {
        Ok(HoldEdit::Set(edited))
    } else {
        Err(UnsupportedAnnotation::Layout)
    }
}

fn parse(text: &str) -> Result<Map<String, Value>, UnsupportedAnnotation> {
    // The value that istio-aux writes is JSON, which is parsed faster than YAML.
    if let Ok(config) = serde_json::from_str(text) {
        return Ok(config);
    }
    // Its aliases may repeat what they refer to.
    let options = serde_saphyr::options! { budget: serde_saphyr::budget! { max_total_scalar_bytes: 2 * ANNOTATION_LENGTH_LIMIT } };
    serde_saphyr::from_str_with_options(text, options).map_err(|error| {
        let reason = error.to_string();
        UnsupportedAnnotation::NotAMapping(reason.lines().next().unwrap_or_default().to_owned())
    })
}

/// Adds the field to a flow mapping, after the opening brace.
fn in_flow(text: &str, is_empty: bool) -> String {
    let comma = if is_empty { "" } else { ", " };
    text.replacen('{', &format!("{{\"{HOLD_FIELD}\": true{comma}"), 1)
}

/// Adds the field to a block mapping, as a last line that is indented as the first key is.
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
    fn key_is_added_and_the_rest_is_kept() {
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
            (
                "indented after a comment",
                "# ours\n  a: 1\n",
                "# ours\n  a: 1\n  holdApplicationUntilProxyStarts: true\n",
            ),
            ("document mark", "---\na: 1\n", "---\na: 1\nholdApplicationUntilProxyStarts: true\n"),
        ];
        for (name, before, after) in cases {
            assert_eq!(edit(Some(before)), Ok(HoldEdit::Set(after.to_owned())), "{name}");
            assert_eq!(edit(Some(after)), Ok(HoldEdit::AlreadySet(true)), "{name}, again");
        }
    }

    #[test]
    fn value_that_is_set_is_kept() {
        for (text, value) in [
            ("holdApplicationUntilProxyStarts: false", false),
            ("{\"holdApplicationUntilProxyStarts\": false}", false),
            ("hold_application_until_proxy_starts: false", false),
            ("{hold_application_until_proxy_starts: true, holdApplicationUntilProxyStarts: false}", false),
            ("a: 1\nholdApplicationUntilProxyStarts: true", true),
        ] {
            assert_eq!(edit(Some(text)), Ok(HoldEdit::AlreadySet(value)), "{text}");
        }
    }

    #[test]
    fn long_annotation_is_unsupported() {
        let of = |length: usize| format!("a: {}", "b".repeat(length - 3));
        assert_eq!(edit(Some(&of(ANNOTATION_LENGTH_LIMIT + 1))), Err(UnsupportedAnnotation::TooLong));
        assert!(edit(Some(&of(ANNOTATION_LENGTH_LIMIT))).is_ok());
        let aliases = format!("a: &a {}\nb: [{}]", "x".repeat(8_000), "*a, ".repeat(1_000));
        assert!(matches!(edit(Some(&aliases)), Err(UnsupportedAnnotation::NotAMapping(_))));
    }

    #[test]
    fn unparsable_annotation_is_unsupported() {
        for text in ["- a\n- b", "just text", "a: [1", "a: 1\n...\n"] {
            assert!(edit(Some(text)).is_err(), "{text}: {:?}", edit(Some(text)));
        }
    }
}
