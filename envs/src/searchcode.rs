//! `searchcode`: search and Python as tools.
