#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    outboard_servers::fuzz::resp(data);
    outboard_servers::fuzz::resp_in_pieces(data);
});
