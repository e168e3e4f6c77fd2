//! No text makes `inject` panic, and injecting again changes nothing.

#![no_main]

use inject::Settings;
use istio_aux::offline::inject;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let settings = Settings::new("shim:1");
    for assume_proxy in [false, true] {
        let Ok(once) = inject(text, &settings, assume_proxy) else { continue };
        let again = inject(&once.text, &settings, assume_proxy).expect("what was written can be read");
        assert_eq!(again.text, once.text);
    }
});
