//! How much a value may change.

use crate::DataError;
use std::fmt;
use std::str::FromStr;

/// How much a value may change when it is stored in a smaller type.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum Policy {
    /// Not at all.
    #[default]
    Exact,
    /// Floats, each by at most this part of itself.
    Relative(f64),
}

/// The default relative error of profiles.
pub(crate) const WITHIN: f64 = 1e-6;

impl FromStr for Policy {
    type Err = DataError;

    fn from_str(text: &str) -> Result<Self, DataError> {
        if text == "exact" {
            return Ok(Self::Exact);
        }
        let error = text.strip_prefix("rel:").and_then(|number| number.parse::<f64>().ok());
        match error {
            Some(error) if error > 0.0 && error < 1.0 => Ok(Self::Relative(error)),
            _ => Err(DataError::Usage(format!(
                "policy {text:?} is neither \"exact\" nor \"rel:\" and a number between 0 and 1, such as rel:1e-6"
            ))),
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact => write!(out, "exact"),
            Self::Relative(error) => write!(out, "rel:{error:e}"),
        }
    }
}
