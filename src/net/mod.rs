//! Connections: accept, HTTP, WebSocket, windows, mailboxes, access, static files.
