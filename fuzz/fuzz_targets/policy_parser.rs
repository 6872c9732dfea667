#![no_main]

#[path = "../src/policy_parser.rs"]
mod policy_parser;

libfuzzer_sys::fuzz_target!(|data: &[u8]| policy_parser::policy_parser(data));
