//! Finds unsent data in the kernel's lists of the pod's TCP connections.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

/// TCP states in which a connection may hold data, as the kernel writes them. A FIN counts as one byte: until acknowledged in `ENDING`
/// (`FIN_WAIT1`, `LAST_ACK`, `CLOSING`), until read in `ENDED` (`CLOSE_WAIT` and the last two). SYN states are left out: Envoy sends
/// some at its start to servers that most clusters do not have.
const STATES: [&str; 6] = ["01", "04", "05", "08", "09", "0B"];
const ENDING: [&str; 3] = ["04", "09", "0B"];
const ENDED: [&str; 3] = ["08", "09", "0B"];

/// Returns true if a TCP connection holds data that its process has not read yet, or its peer has not acknowledged. `directory` is
/// `/proc/self/net`, whose files `tcp` and `tcp6` list the connections of the pod.
pub(super) fn hold_data(directory: &Path) -> bool {
    ["tcp", "tcp6"].iter().any(|file| {
        // A kernel without IPv6 has no `tcp6`.
        let Ok(file) = File::open(directory.join(file)) else { return false };
        // Line by line: a payload may leave a hundred thousand connections behind.
        BufReader::new(file).lines().skip(1).map_while(Result::ok).any(|line| holds_data(&line))
    })
}

/// Reads a line: its number, both addresses, the state, and the lengths of both queues in hexadecimal.
fn holds_data(line: &str) -> bool {
    let mut fields = line.split_ascii_whitespace().skip(3);
    let (Some(state), Some(queues)) = (fields.next(), fields.next()) else { return false };
    let Some((sent, received)) = queues.split_once(':') else { return false };
    let [sent, received] = [sent, received].map(|length| u32::from_str_radix(length, 16).unwrap_or_default());
    let fin_in = |states: [&str; 3]| u32::from(states.contains(&state));
    STATES.contains(&state) && (received > fin_in(ENDED) || sent > fin_in(ENDING))
}

#[cfg(test)]
pub(super) mod tests {
    use std::fs;

    use super::*;

    const HEADER: &str =
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n";

    /// Writes the list of a pod with one connection.
    pub(in super::super) fn write(directory: &Path, state: &str, queues: &str) {
        let line =
            format!("   0: 0100007F:3A99 0100007F:9C4C {state} {queues} 00:00000000 00000000  1337        0 1 1\n");
        fs::write(directory.join("tcp"), [HEADER, &line].concat()).unwrap();
    }

    #[test]
    fn data_in_either_queue_of_a_connection_counts() {
        let directory = tempfile::tempdir().unwrap();
        assert!(!hold_data(directory.path()), "no list");
        let cases = [
            ("01", "00000000:00000000", false),
            ("01", "00000000:0000A000", true),
            ("04", "00000010:00000000", true),
            ("04", "00000001:00000000", false),
            ("01", "00000001:00000000", true),
            ("08", "00000000:00000001", false),
            ("08", "00000000:00000002", true),
            ("02", "00000001:00000000", false),
            ("0A", "00000000:00000003", false),
        ];
        for (state, queues, expected) in cases {
            write(directory.path(), state, queues);
            assert_eq!(hold_data(directory.path()), expected, "{state} {queues}");
        }
    }

    #[test]
    fn kernel_lists_data_until_it_is_read() {
        use std::io::{Read, Write};
        use std::net::{TcpListener, TcpStream};

        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let mut sender = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let mut receiver = listener.accept().unwrap().0;
        // Other connections of this machine do not count here.
        let is_listed = || {
            let listed = fs::read_to_string("/proc/self/net/tcp").unwrap();
            listed.lines().filter(|line| line.contains(&format!(":{port:04X}"))).any(holds_data)
        };
        sender.write_all(b"last words").unwrap();
        drop(sender);
        assert!(is_listed());
        receiver.read_to_end(&mut Vec::new()).unwrap();
        assert!(!is_listed());
    }
}
