//! Fuzzes reviews and decisions: they do not panic, and take at most 50 ms of CPU time per MiB. The patch applies to the pod, and
//! a second decision on the patched pod gives an empty patch.

#![no_main]

use inject::pod::Pod;
use inject::review::answer;
use inject::{Entry, Settings, decide};
use libfuzzer_sys::fuzz_target;
use nix::time::{ClockId, clock_gettime};
use serde_json::Value;
use std::time::Duration;

const CPU_TIME_LIMIT: Duration = Duration::from_millis(50);

/// The CPU time of this thread.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).expect("Linux has this clock");
    time.into()
}

/// Runs something, and fails where it takes too long for an input of this length.
fn within_time<T>(length: usize, run: impl FnOnce() -> T) -> T {
    let began = cpu_time();
    let result = run();
    let took = cpu_time() - began;
    let mebibytes = u32::try_from(length.div_ceil(1 << 20).max(1)).expect("inputs are small");
    assert!(took < CPU_TIME_LIMIT * mebibytes, "{length} bytes took {took:?}");
    result
}

fuzz_target!(|bytes: &[u8]| {
    let settings = Settings::new("shim:1");
    for entry in Entry::ALL {
        within_time(bytes.len(), || drop(answer(entry, bytes, &settings)));
    }
    // The API server sends no key twice.
    let Ok(mut value) = serde_json::from_slice::<Value>(bytes) else { return };
    let text = value.to_string();
    let Ok(pod) = serde_json::from_str::<Pod>(&text) else { return };
    let decision = within_time(bytes.len(), || decide(&pod, &settings));
    if json_patch::patch(&mut value, &decision.patch).is_err() {
        panic!("the patch does not fit: {:?}", decision.patch);
    }
    let after = value.to_string();
    let again = decide(&serde_json::from_str(&after).expect("a patched pod is a pod"), &settings);
    assert!(again.patch.is_empty(), "deciding again changes something: {:?}", again.patch);
});
