//! What is true of this machine, and what to do about it.
