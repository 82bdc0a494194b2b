//! The wire against any log.
