#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| outboard_wire::fuzz::opening(data));
