//! `tool_use`: a long-horizon agent with JSON tool calls and a workspace.
