//! `llm_judge`: a model grades the answer.
