//! The wire: from a frozen prefix and a tab's rows to the bytes of a request, as a pure function, streamed.
//!
//! A first pass over the rows counts the body's bytes and content blocks; a second gives the bytes row by row. Nothing
//! but the row at hand is held.
