//! Where the numbers of a run go: console, JSONL, TensorBoard, Weights & Biases.
