//! Strings and maps of a JSON document that borrow from it. Most of them are never read, so they are not decoded before.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::{Deserializer, Error, MapAccess, Unexpected, Visitor};
use serde_json::value::RawValue;

/// A string, borrowed from the document unless it holds escapes.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct BorrowedStr<'a>(#[serde(borrow)] Cow<'a, str>);

/// A string that is decoded only when it is read.
#[derive(Debug, Clone, Copy)]
pub struct RawStr<'a>(&'a RawValue);

/// A map in the document's order, searched key by key: most are small, and few keys are read.
#[derive(Debug, Clone)]
pub struct VecMap<'a, V>(Vec<(BorrowedStr<'a>, V)>);

impl BorrowedStr<'_> {
    /// The string.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl<'a> RawStr<'a> {
    /// The string.
    #[must_use]
    pub fn to_str(self) -> Cow<'a, str> {
        let raw = self.0.get();
        if raw.contains('\\') {
            // serde_json has checked the string but for unpaired surrogates: one that has them reads as empty.
            Cow::Owned(serde_json::from_str(raw).unwrap_or_default())
        } else {
            Cow::Borrowed(&raw[1..raw.len() - 1])
        }
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for RawStr<'a> {
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

impl<V> VecMap<'_, V> {
    /// The entries, in the document's order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &V)> {
        self.0.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// The value of a key. Where the document repeats a key, the last one counts, as for the API server.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&V> {
        self.0.iter().rev().find(|(each, _)| each.as_str() == key).map(|(_, value)| value)
    }
}

impl<'de: 'a, 'a, V: Deserialize<'de>> Deserialize<'de> for VecMap<'a, V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries<'a, V>(PhantomData<VecMap<'a, V>>);

        impl<'de: 'a, 'a, V: Deserialize<'de>> Visitor<'de> for Entries<'a, V> {
            type Value = VecMap<'a, V>;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a map")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut entries = Vec::with_capacity(8);
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(VecMap(entries))
            }
        }

        deserializer.deserialize_map(Entries(PhantomData))
    }
}
