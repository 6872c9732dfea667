#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| palisade_fuzz::http_bodies(data));
