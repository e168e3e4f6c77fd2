//! Text and maps of a document, borrowed from it and left as they lie: most are never asked for.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::{Deserializer, Error, MapAccess, Unexpected, Visitor};
use serde_json::value::RawValue;

/// Text that is borrowed from the document where it holds no escapes.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

/// Text that is left as it lies in the document, escapes and all, until somebody asks for it: few do.
#[derive(Debug, Clone, Copy)]
pub struct RawText<'a>(&'a RawValue);

/// A map of the document, in its order: most are small, and few of their keys are asked for.
#[derive(Debug, Clone)]
pub struct Map<'a, V>(Vec<(Text<'a>, V)>);

impl Text<'_> {
    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl<'a> RawText<'a> {
    /// The text.
    #[must_use]
    pub fn to_str(self) -> Cow<'a, str> {
        let raw = self.0.get();
        if raw.contains('\\') {
            // What is no text after all is empty.
            Cow::Owned(serde_json::from_str(raw).unwrap_or_default())
        } else {
            Cow::Borrowed(&raw[1..raw.len() - 1])
        }
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for RawText<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = <&RawValue>::deserialize(deserializer)?;
        if raw.get().starts_with('"') {
            Ok(Self(raw))
        } else {
            let kind = match raw.get().as_bytes().first() {
                Some(b'{') => "map",
                Some(b'[') => "sequence",
                Some(b't' | b'f') => "boolean",
                Some(b'n') => "null",
                _ => "number",
            };
            Err(D::Error::invalid_type(Unexpected::Other(kind), &"a string"))
        }
    }
}

impl<V> Map<'_, V> {
    /// The value of a key; of the last, where a document has it more than once.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&V> {
        self.0.iter().rev().find(|(each, _)| each.as_str() == key).map(|(_, value)| value)
    }
}

impl<'de: 'a, 'a, V: Deserialize<'de>> Deserialize<'de> for Map<'a, V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries<'a, V>(PhantomData<Map<'a, V>>);

        impl<'de: 'a, 'a, V: Deserialize<'de>> Visitor<'de> for Entries<'a, V> {
            type Value = Map<'a, V>;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a map")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut entries = Vec::with_capacity(8);
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(Map(entries))
            }
        }

        deserializer.deserialize_map(Entries(PhantomData))
    }
}
