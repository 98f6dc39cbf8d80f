#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| outboard_codec::archive::fuzz(data));
