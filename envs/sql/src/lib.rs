//! SQL over SQLite as models write it: read-only, bounded; and the comparison of results.
