//! Splits manifests into documents, reads them as Kubernetes does (YAML or JSON), and writes them.

use anyhow::{Context, Result, anyhow};
use serde_json::Value;

/// Holds one document, with the separator before it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Document<'t> {
    /// Counts from 1.
    pub(super) number: usize,
    /// Is the line on which the document begins, from 1.
    pub(super) line: usize,
    /// Is the document's text, to the byte.
    pub(super) text: &'t str,
}

/// Splits a text at the separators between documents. The concatenated parts are the text.
pub(super) fn split(text: &str) -> Vec<Document<'_>> {
    let mut documents = Vec::new();
    let (mut begin, mut begin_line, mut at, mut has_ended) = (0, 1, 0, false);
    for (index, line) in text.split_inclusive('\n').enumerate() {
        // At the beginning of a line it separates documents even inside a block scalar.
        if (has_ended || is_separator(line)) && !is_only_directives(&text[begin..at]) {
            documents.push(Document { number: documents.len() + 1, line: begin_line, text: &text[begin..at] });
            (begin, begin_line) = (at, index + 1);
        }
        at += line.len();
        has_ended = is_end(line);
    }
    documents.push(Document { number: documents.len() + 1, line: begin_line, text: &text[begin..] });
    documents
}

fn is_separator(line: &str) -> bool {
    line.strip_prefix("---").is_some_and(|rest| rest.is_empty() || rest.starts_with(char::is_whitespace))
}

/// Returns true for `...`, after which another document may begin without a separator.
fn is_end(line: &str) -> bool {
    line.trim_end() == "..."
}

/// Returns true if a text has only YAML directives so far.
fn is_only_directives(text: &str) -> bool {
    text.lines().all(|line| line.trim().is_empty() || line.starts_with('%'))
}

impl Document<'_> {
    /// Parses the content; null if it is empty, or only comments.
    pub(super) fn parse(&self) -> Result<Value> {
        if self.is_empty() {
            return Ok(Value::Null);
        }
        parse(self.text).map_err(|error| {
            let reason = error.to_string();
            let reason = reason.lines().next().unwrap_or_default().replace(" at line ", " at its line ");
            anyhow!("it is neither YAML nor JSON ({reason})")
        })
    }

    /// Renders the document with another content, in its language.
    pub(super) fn render(&self, content: &Value) -> Result<String> {
        let is_json = self.body().trim_start().starts_with('{');
        let text = if is_json { Ok(serde_json::to_string_pretty(content)?) } else { yaml(content) };
        let text = text.context("it cannot be written")?;
        let newline = if text.ends_with('\n') { "" } else { "\n" };
        let end = if self.text.lines().last().is_some_and(is_end) { "...\n" } else { "" };
        Ok(format!("{}{text}{newline}{end}", self.separator()))
    }

    fn is_empty(&self) -> bool {
        self.body().lines().all(|line| line.trim().is_empty() || line.trim_start().starts_with('#'))
    }

    /// Returns the separator before the document, to be written again.
    fn separator(&self) -> &str {
        let first = self.text.split_inclusive('\n').next().unwrap_or_default();
        match first.strip_prefix("---").map(str::trim) {
            Some(rest) if is_separator(first) && (rest.is_empty() || rest.starts_with('#')) => first,
            // The document begins on the separator's line; or it needs a separator now, because others come before it.
            _ if is_separator(first) || self.number > 1 => "---\n",
            _ => "",
        }
    }

    /// Returns the text after the separator.
    fn body(&self) -> &str {
        if is_separator(self.text.split_inclusive('\n').next().unwrap_or_default()) {
            &self.text[3..]
        } else {
            self.text
        }
    }
}

/// Writes strings of several lines as literal block scalars. Where that would be read differently, they are quoted.
fn yaml(content: &Value) -> Result<String> {
    let block = serde_saphyr::ser_options! { folded_wrap_chars: usize::MAX };
    let quoted = serde_saphyr::ser_options! { prefer_block_scalars: false };
    let write = |options| serde_saphyr::to_string_with_options(content, options);
    let text = write(block)?;
    // The library indents blank lines, too.
    let trimmed: String =
        text.split_inclusive('\n').map(|line| if line.trim().is_empty() { "\n" } else { line }).collect();
    let mut candidates = [trimmed, text].into_iter();
    match candidates.find(|text| parse(text).is_ok_and(|read| read == *content)) {
        Some(text) => Ok(text),
        None => Ok(write(quoted)?),
    }
}

fn parse(text: &str) -> Result<Value> {
    // Kubernetes reads YAML 1.1, in which 0644 is octal.
    let options = serde_saphyr::options! { legacy_octal_numbers: true, with_snippet: false };
    Ok(serde_saphyr::from_str_with_options(text, options)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn texts(text: &str) -> Vec<(usize, usize, &str)> {
        split(text).into_iter().map(|document| (document.number, document.line, document.text)).collect()
    }

    #[test]
    fn documents_are_split_at_their_separators() {
        assert_eq!(texts("a: 1\n---\nb: 2\n"), [(1, 1, "a: 1\n"), (2, 2, "---\nb: 2\n")]);
        assert_eq!(
            texts("---\na: 1\n--- # two\nb: |\n  ---\n"),
            [(1, 1, "---\na: 1\n"), (2, 3, "--- # two\nb: |\n  ---\n")]
        );
        assert_eq!(texts("----\n"), [(1, 1, "----\n")]);
        assert_eq!(texts("%YAML 1.2\n---\na: 1\n"), [(1, 1, "%YAML 1.2\n---\na: 1\n")]);
        assert_eq!(texts("a: 1\n...\nb: 2\n"), [(1, 1, "a: 1\n...\n"), (2, 3, "b: 2\n")]);
        assert_eq!(texts(""), [(1, 1, "")]);
    }

    #[test]
    fn scalars_are_read_as_in_kubernetes() {
        let text = "mode: 0644\nreadOnly: yes\nversion: \"1.10\"\ntime: '12:30'\nempty:\nlong: 1e3\n";
        let [document] = &split(text)[..] else { panic!("one document") };
        let value = document.parse().unwrap();
        assert_eq!(value["mode"], 420);
        assert_eq!(value["readOnly"], true);
        assert_eq!(value["version"], "1.10");
        assert_eq!(value["empty"], json!(null));
        let rendered = document.render(&value).unwrap();
        assert_eq!(split(&rendered)[0].parse().unwrap(), value, "{rendered}");
    }

    #[test]
    fn rewritten_document_keeps_its_separator() {
        let cases = [
            ("a: 1\n---\nb: 2\n", "---\nc: 3\n"),
            ("a: 1\n--- # two\nb: 2\n", "--- # two\nc: 3\n"),
            ("a: 1\n--- {b: 2}\n", "---\n{\n  \"c\": 3\n}\n"),
            ("a: 1\n...\nb: 2\n...\n", "---\nc: 3\n...\n"),
        ];
        for (text, rendered) in cases {
            assert_eq!(split(text)[1].render(&json!({"c": 3})).unwrap(), rendered, "{text:?}");
        }
    }

    #[test]
    fn block_scalars_and_long_lines_stay() {
        let long = "a word ".repeat(40);
        let text = format!(
            "script: |\n  set -e\n  echo \"a: b\"\nkeep: |+\n  x\n\nstrip: |-\n  y\n  # z\nlong: {}\n",
            long.trim()
        );
        let [document] = &split(&text)[..] else { panic!("one document") };
        assert_eq!(document.render(&document.parse().unwrap()).unwrap(), text);
    }

    proptest! {
        #[test]
        fn the_parts_are_the_text(text in "(---|-|a: b|#|\n| ){0,40}") {
            let together: String = split(&text).into_iter().map(|document| document.text).collect();
            prop_assert_eq!(together, text);
        }

        #[test]
        fn written_text_is_read_back(texts in prop::collection::vec("(.|\n|  ){0,40}", 0..6)) {
            let value = json!({"list": texts, "map": {"key": texts.first()}});
            let document = Document { number: 1, line: 1, text: "a: b\n" };
            let rendered = document.render(&value).unwrap();
            let read = Document { number: 1, line: 1, text: &rendered };
            prop_assert_eq!(read.parse().unwrap(), value, "{}", rendered);
        }
    }
}
