#![no_main]

#[path = "../src/rls_messages.rs"]
mod rls_messages;

libfuzzer_sys::fuzz_target!(|data: &[u8]| rls_messages::rls_messages(data));
