//! The shim's log on standard error, a line for each change: time, level, message, key=value.

use std::fmt::{Display, Write};
use std::io;
use std::time::SystemTime;

pub(crate) fn info(message: &str, fields: &[(&str, &dyn Display)]) {
    write(SystemTime::now(), "INFO", message, fields);
}

pub(crate) fn warn(message: &str, fields: &[(&str, &dyn Display)]) {
    write(SystemTime::now(), "WARN", message, fields);
}

fn write(now: SystemTime, level: &str, message: &str, fields: &[(&str, &dyn Display)]) {
    // If standard error is closed, there is nowhere to report it.
    let _ = io::Write::write_all(&mut io::stderr(), line(now, level, message, fields).as_bytes());
}

fn line(now: SystemTime, level: &str, message: &str, fields: &[(&str, &dyn Display)]) -> String {
    let mut line = format!("{} {level} {message}", humantime::format_rfc3339_millis(now));
    for (key, value) in fields {
        let value = value.to_string();
        let quoted = value.is_empty() || value.contains(|c: char| c.is_control() || " \"=".contains(c));
        // Writing to a String cannot fail.
        let _ = if quoted { write!(line, " {key}={value:?}") } else { write!(line, " {key}={value}") };
    }
    line.push('\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn line_has_time_level_message_and_fields() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_millis(1_795_245_043_790);
        assert_eq!(
            line(now, "INFO", "container exited", &[("container", &"main"), ("code", &0)]),
            "2026-11-21T07:10:43.790Z INFO container exited container=main code=0\n"
        );
        assert_eq!(
            line(now, "WARN", "no answer", &[("error", &"timed out = \"late\""), ("empty", &"")]),
            "2026-11-21T07:10:43.790Z WARN no answer error=\"timed out = \\\"late\\\"\" empty=\"\"\n"
        );
        assert_eq!(
            line(now, "WARN", "no answer", &[("answer", &"\u{1b}[2J\rWARN")]),
            "2026-11-21T07:10:43.790Z WARN no answer answer=\"\\u{1b}[2J\\rWARN\"\n"
        );
    }
}
