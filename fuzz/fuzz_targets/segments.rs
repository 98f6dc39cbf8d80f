#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| outboard_pageserver::tcp::stack::fuzz::segments(data));
