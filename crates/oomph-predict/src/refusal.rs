//! A library of NVIDIA's that does not take the virtual GPU: which one, what that means, and what to install in its place.
//!
//! That one refuses is seen in `oomph-cuda` (`calls::refused`), and comes here as its name and the number that it says for its version. How it is said otherwise is the command's.

use serde::Deserialize;
use std::fmt;

/// A library that is asked about the card. One more that may refuse it is one more line, and a call of `calls::refused`.
struct Asked {
    /// As `oomph-cuda` calls it.
    name: &'static str,
    /// As people do.
    title: &'static str,
    /// Its package, but for the CUDA that it is for.
    package: &'static str,
    /// The newest version that oomph was tried with. `make canary` reads it here, and says where PyPI has a newer one.
    tried: &'static str,
    /// What becomes of a program without it.
    then: &'static str,
}

const ASKED: &[Asked] = &[Asked {
    name: "cudnn",
    title: "cuDNN",
    package: "nvidia-cudnn",
    tried: "9.27.0.42",
    then: "convolutions fail, or go another way than on a card",
}];

/// A library that refused, as the program left it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct RefusedFact {
    /// `cudnn`.
    pub library: String,
    /// `92700`.
    pub version: u64,
}

/// Why a program cannot be predicted here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    fact: RefusedFact,
    cuda: String,
}

impl Refusal {
    /// Of the library of a PyTorch for this CUDA: `13.0`.
    pub(crate) fn new(fact: &RefusedFact, cuda: &str) -> Refusal {
        let major = cuda.split('.').next().unwrap_or_default();
        Refusal { fact: fact.clone(), cuda: format!("cu{major}") }
    }

    fn asked(&self) -> Option<&'static Asked> {
        ASKED.iter().find(|asked| asked.name == self.fact.library)
    }

    /// Major, minor and patch, as these libraries make one number of them.
    fn version(&self) -> [u64; 3] {
        let number = self.fact.version;
        [number / 10_000, number / 100 % 100, number % 100]
    }

    fn is_newer_than(&self, tried: &str) -> bool {
        self.version().into_iter().gt(tried.split('.').take(3).map(|part| part.parse().unwrap_or(0)))
    }

    /// What to do about it.
    pub fn hint(&self) -> String {
        let Some(Asked { package, tried, .. }) = self.asked() else {
            return "this is a defect of oomph: report it with the versions above".to_owned();
        };
        let install = format!("pip install \"{package}-{}=={tried}\"", self.cuda);
        if self.is_newer_than(tried) {
            format!("upgrade oomph, or pin the newest version that this one was tried with: {install}")
        } else {
            format!(
                "this is a defect of oomph: report it with the versions above; it was tried with another: {install}"
            )
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, out: &mut fmt::Formatter) -> fmt::Result {
        let [major, minor, patch] = self.version();
        match self.asked() {
            Some(Asked { title, package, tried, then, .. }) => {
                write!(out, "{title} {major}.{minor}.{patch} ({package}-{}) ", self.cuda)?;
                out.write_str(match self.is_newer_than(tried) {
                    true => "is newer than oomph knows, and refuses its virtual GPU: ",
                    false => "refuses oomph's virtual GPU: ",
                })?;
                out.write_str(then)
            }
            None => {
                let library = &self.fact.library;
                write!(out, "{library} {major}.{minor}.{patch} refuses oomph's virtual GPU")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(library: &str, version: u64) -> String {
        let refusal = Refusal::new(&RefusedFact { library: library.into(), version }, "13.2");
        format!("{refusal}\n\nhint: {}", refusal.hint())
    }

    #[test]
    fn a_newer_library_is_named_with_what_to_pin() {
        let asked = &ASKED[0];
        let expected = format!(
            "cuDNN 9.99.0 (nvidia-cudnn-cu13) is newer than oomph knows, and refuses its virtual GPU: convolutions fail, or go another way than on a card\n\n\
             hint: upgrade oomph, or pin the newest version that this one was tried with: pip install \"nvidia-cudnn-cu13=={}\"",
            asked.tried
        );
        assert_eq!(said("cudnn", 99_900), expected);
    }

    #[test]
    fn one_that_should_have_taken_it_is_a_defect() {
        let words = said("cudnn", 91_002);
        assert!(
            words.starts_with("cuDNN 9.10.2 (nvidia-cudnn-cu13) refuses oomph's virtual GPU: "),
            "{words}"
        );
        assert!(words.contains("a defect of oomph"), "{words}");
        assert!(said("nccl", 23_203).starts_with("nccl 2.32.3 refuses oomph's virtual GPU\n"));
    }
}
