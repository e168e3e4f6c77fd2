//! Lists of a pod that are read in bounded memory: the API server validates a pod only after its webhooks.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, IgnoredAny, SeqAccess, Visitor};

/// Reads at most `LIMIT` + 1 elements of a list. A length of `LIMIT` + 1 means that it is too long.
pub(super) fn list<'de, D: Deserializer<'de>, T: Deserialize<'de>, const LIMIT: usize>(
    deserializer: D,
) -> Result<Vec<T>, D::Error> {
    List::<T, LIMIT>::deserialize(deserializer).map(|list| list.0)
}

/// Reads such a list, or none.
pub(super) fn optional_list<'de, D: Deserializer<'de>, T: Deserialize<'de>, const LIMIT: usize>(
    deserializer: D,
) -> Result<Option<Vec<T>>, D::Error> {
    Ok(Option::<List<T, LIMIT>>::deserialize(deserializer)?.map(|list| list.0))
}

struct List<T, const LIMIT: usize>(Vec<T>);

impl<'de, T: Deserialize<'de>, const LIMIT: usize> Deserialize<'de> for List<T, LIMIT> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(Elements(PhantomData))
    }
}

struct Elements<T, const LIMIT: usize>(PhantomData<T>);

impl<'de, T: Deserialize<'de>, const LIMIT: usize> Visitor<'de> for Elements<T, LIMIT> {
    type Value = List<T, LIMIT>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Self::Value, A::Error> {
        let mut list = Vec::new();
        while list.len() <= LIMIT
            && let Some(element) = elements.next_element()?
        {
            list.push(element);
        }
        while elements.next_element::<IgnoredAny>()?.is_some() {}
        Ok(List(list))
    }
}
