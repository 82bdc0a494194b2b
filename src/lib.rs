//! Siskin: an LLM agent server for constrained devices. See ARCHITECTURE.md.

pub mod agent;
pub mod budget;
pub mod check;
pub mod chunk;
pub mod cli;
pub mod config;
pub mod control;
pub mod event;
pub mod host;
pub mod logger;
pub mod net;
pub mod serve;
pub mod store;
pub mod sys;
#[cfg(test)]
mod testing;
