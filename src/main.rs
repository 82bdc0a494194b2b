//! Siskin.
fn main() {}
