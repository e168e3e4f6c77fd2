//! The plugin's program as a logger, with the descriptors that containerd's shim gives it.

use std::process::Command;

const SCRIPT: &str = r#"
set -e
mkfifo output
"$1" log log 3<output 4</dev/null 5>ready &
exec 3>output
until [ -s ready ]; do kill -0 $!; sleep 0.01; done
kill $!
sleep 0.1
echo "the last line" >&3
exec 3>&-
wait $!
cat log
"#;

#[test]
fn last_line_is_written_after_the_shims_sigterm() {
    let directory = tempfile::tempdir().unwrap();
    let program = env!("CARGO_BIN_EXE_istio-aux-cni");
    let output = Command::new("sh").args(["-c", SCRIPT, "sh", program]).current_dir(directory.path()).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "the last line\n", "{output:?}");
}
