//! `text2sql`: multi-turn SQL over SQLite.
