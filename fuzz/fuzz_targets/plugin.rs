#![no_main]

use outboard_dds::dpu::offload::plugin::exchange::fuzz;

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz::plugin(data));
