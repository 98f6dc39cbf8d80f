#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| outboard_node::store_fuzz::block(data));
