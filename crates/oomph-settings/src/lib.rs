//! PyTorch's allocator as its user sets it: which versions there are ([`version`]), what `PYTORCH_CUDA_ALLOC_CONF` may say and what PyTorch
//! reads in it ([`conf`]), and the sizes that the allocator works in ([`rounding`]).
//!
//! Facts and a parser. What the settings do to a program is for `oomph-replay` to say.

pub mod conf;
pub mod rounding;
pub mod version;
