//! Sizes and durations as people write them: `4KiB`, `1028KiB`, `1MiB`, `500ms`, `10s`.

use std::time::Duration;

use crate::error::{Error, Result};

/// Parses a size in bytes. Binary suffixes (`KiB`, `MiB`, `GiB`, `TiB`, and `k`, `m`, `g`, `t` as
/// fio writes them) are powers of 1024; a bare number is bytes.
pub fn parse_size(text: &str) -> Result<u64> {
    let bad = || {
        Error::usage(format!("\"{text}\" is not a size"))
            .remedy("write it like 4KiB, 1028KiB, 1MiB or 4096")
    };
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, suffix) = text.split_at(digits);
    let shift = match suffix.to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        "t" | "tib" => 40,
        _ => return Err(bad()),
    };
    let number: u64 = number.parse().map_err(|_| bad())?;
    number.checked_mul(1 << shift).ok_or_else(bad)
}

/// Parses a duration: `10s`, `500ms`, `2m`, or a bare number of seconds.
pub fn parse_duration(text: &str) -> Result<Duration> {
    let bad = || {
        Error::usage(format!("\"{text}\" is not a duration")).remedy("write it like 10s or 500ms")
    };
    let split = text.bytes().take_while(|b| b.is_ascii_digit() || *b == b'.').count();
    let (number, suffix) = text.split_at(split);
    let number: f64 = number.parse().map_err(|_| bad())?;
    let seconds = match suffix {
        "" | "s" => number,
        "ms" => number / 1e3,
        "us" => number / 1e6,
        "m" | "min" => number * 60.0,
        "h" => number * 3600.0,
        _ => return Err(bad()),
    };
    Duration::try_from_secs_f64(seconds).map_err(|_| bad())
}

/// Formats bytes exactly where a binary unit divides them, else with two decimals: `1028KiB`,
/// `1MiB`, `1.50GiB`.
pub fn format_size(bytes: u64) -> String {
    const UNITS: [(&str, u32); 4] = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
    for (unit, shift) in UNITS {
        if bytes >= 1 << shift && bytes.is_multiple_of(1 << shift) {
            return format!("{}{unit}", bytes >> shift);
        }
        if bytes >= 10 << shift && shift > 10 {
            return format!("{:.2}{unit}", bytes as f64 / f64::from(shift).exp2());
        }
    }
    if bytes.is_multiple_of(1024) && bytes > 0 {
        return format!("{}KiB", bytes / 1024);
    }
    format!("{bytes}B")
}

/// Formats nanoseconds with three significant digits: `850ns`, `13.2us`, `1.04ms`.
pub fn format_nanos(nanos: u64) -> String {
    let value = nanos as f64;
    let (scaled, unit) = match nanos {
        0..1_000 => return format!("{nanos}ns"),
        1_000..1_000_000 => (value / 1e3, "us"),
        1_000_000..1_000_000_000 => (value / 1e6, "ms"),
        _ => (value / 1e9, "s"),
    };
    let decimals = if scaled < 10.0 { 2 } else { usize::from(scaled < 100.0) };
    format!("{scaled:.decimals$}{unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_parse_and_print() {
        for (text, bytes) in [
            ("4KiB", 4096),
            ("1028KiB", 1_052_672),
            ("1m", 1 << 20),
            ("512", 512),
            ("2GiB", 2 << 30),
        ] {
            assert_eq!(parse_size(text).unwrap(), bytes, "{text}");
        }
        for text in ["", "KiB", "4XB", "-1", "99999999999999999999", "18446744073709551615k"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
        assert_eq!(format_size(1_052_672), "1028KiB");
        assert_eq!(format_size(1 << 20), "1MiB");
        assert_eq!(format_size(513), "513B");
    }

    #[test]
    fn durations_parse_and_print() {
        assert_eq!(parse_duration("500ms").unwrap(), Duration::from_millis(500));
        assert_eq!(parse_duration("2").unwrap(), Duration::from_secs(2));
        assert!(parse_duration("-1s").is_err());
        assert!(parse_duration("soon").is_err());
        assert_eq!(format_nanos(850), "850ns");
        assert_eq!(format_nanos(13_240), "13.2us");
        assert_eq!(format_nanos(1_040_000), "1.04ms");
    }
}
