//! Quantities of Kubernetes (`resource.Quantity`), compared as numbers: `0.1` is `100m`.

const ONE: i128 = 1_000_000_000;

/// Parses a quantity, in billionths; `None` if the API server rejects it, or if it is beyond 2^63.
#[must_use]
pub fn parse(text: &str) -> Option<i128> {
    let number_len = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(number_len);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') || number.len() > 18 {
        return None;
    }
    let digits: i128 = format!("0{whole}{fraction}").parse().ok()?;
    let scale = 10_i128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    let unit = unit(suffix)?;
    // Smaller parts are rounded up, as Kubernetes does.
    Some((digits.checked_mul(unit)? + scale - 1) / scale)
}

/// Returns a quantity as a whole number, rounded up as the kubelet does for a container's variables; `None` as [`parse`].
#[must_use]
pub fn rounded_up(text: &str) -> Option<i128> {
    in_units(text, ONE)
}

/// Returns a quantity in thousandths, rounded up as the kubelet does for CPUs; `None` as [`parse`].
#[must_use]
pub fn thousandths(text: &str) -> Option<i128> {
    in_units(text, ONE / 1_000)
}

fn in_units(text: &str, unit: i128) -> Option<i128> {
    parse(text).map(|billionths| (billionths + unit - 1) / unit)
}

/// Returns the value of a suffix, in billionths.
fn unit(suffix: &str) -> Option<i128> {
    let power = |prefixes: &str, of: char| prefixes.find(of).and_then(|place| u32::try_from(place + 1).ok());
    match suffix.as_bytes() {
        [] => Some(ONE),
        b"n" => Some(1),
        b"u" => Some(1_000),
        b"m" => Some(1_000_000),
        [prefix, b'i'] => Some(ONE << (10 * power("KMGTPE", char::from(*prefix))?)),
        [b'e' | b'E', exponent @ ..] if !exponent.is_empty() => {
            let exponent: i32 = str::from_utf8(exponent).ok()?.parse().ok()?;
            10_i128.checked_pow(u32::try_from(exponent.checked_add(9)?).ok().filter(|&exponent| exponent <= 27)?)
        }
        [prefix] => Some(ONE * 1_000_i128.pow(power("kMGTPE", char::from(*prefix))?)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_of_the_same_amount_are_equal() {
        for equal in [
            &["1", "1000m", "1.0", "1e0", "1000000u", "1000000000n"][..],
            &["0.1", "100m", ".1", "1e-1"],
            &["1Gi", "1024Mi", "1073741824", "1048576Ki"],
            &["1k", "1E3", "1e3", "1000"],
            &["2E", "2000P"],
            &["0.5n", "1n"],
        ] {
            let amounts: Vec<i128> = equal.iter().map(|text| parse(text).unwrap()).collect();
            assert!(amounts.windows(2).all(|pair| pair[0] == pair[1]), "{equal:?} {amounts:?}");
        }
        assert_ne!(parse("1M"), parse("1Mi"));
        assert_eq!(["1", "1500m", "1n", "0", "1Ki"].map(rounded_up), [1, 2, 1, 0, 1024].map(Some));
    }

    #[test]
    fn invalid_quantity_is_not_parsed() {
        for text in [
            "",
            ".",
            "1.2.3",
            "m",
            "1mm",
            "1K",
            "1 Gi",
            "-1",
            "1e",
            "1e99",
            "1e2147483647",
            "9999999999999999999",
            "1ki",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
