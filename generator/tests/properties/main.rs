//! Properties of rows, budgets and files.

mod budgets;
mod output;
mod rows;
