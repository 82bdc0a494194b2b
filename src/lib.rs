//! Siskin: an LLM agent server for constrained devices. See ARCHITECTURE.md.

pub mod agent;
pub mod budget;
pub mod chunk;
pub mod config;
pub mod event;
pub mod net;
pub mod store;
pub mod sys;
