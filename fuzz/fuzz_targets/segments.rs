#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| outboard_drivers::dds::tcp::stack::fuzz::segments(data));
