//! No bytes make a review or a decision panic; whatever pod is decided on takes its patch, and needs none after it.

#![no_main]

use inject::pod::Pod;
use inject::{Settings, decide};
use inject::review::answer;
use libfuzzer_sys::fuzz_target;
use serde_json::Value;

fuzz_target!(|bytes: &[u8]| {
    let settings = Settings::new("shim:1");
    let _ = answer(bytes, &settings);
    // The API server sends no key twice.
    let Ok(mut value) = serde_json::from_slice::<Value>(bytes) else { return };
    let text = value.to_string();
    let Ok(pod) = serde_json::from_str::<Pod>(&text) else { return };
    let decision = decide(&pod, &settings);
    let operations: json_patch::Patch = serde_json::from_slice(decision.patch.as_json()).expect("it is a patch");
    if json_patch::patch(&mut value, &operations).is_err() {
        panic!("the patch does not fit: {:?}", decision.patch);
    }
    let after = value.to_string();
    let again = decide(&serde_json::from_str(&after).expect("a patched pod is a pod"), &settings);
    assert!(again.patch.is_empty(), "deciding again changes something: {:?}", again.patch);
});
