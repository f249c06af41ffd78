//! Retrievers for search environments, and the server that speaks their protocol.
