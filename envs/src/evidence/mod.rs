//! `evidence_rlm` and `multipaper_evidence_rlm`: passages of papers that answer a question.
