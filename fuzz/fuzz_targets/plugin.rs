#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| outboard_dds::dpu::offload::plugin::exchange::fuzz::plugin(data));
