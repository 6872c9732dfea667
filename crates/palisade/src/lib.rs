//! stub

pub mod extract;
