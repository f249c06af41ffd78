//! `search`: questions answered with a search engine.
