//! The live view of GPUs and RAM.
