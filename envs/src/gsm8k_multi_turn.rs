//! `gsm8k_multi_turn`: GSM8K with several tries.
