//! What `oomph data profile` prints: profiles as `oomph-data` has them, which `oomph.data.profile` gives too.

use super::document;
use crate::data::NamedProfile;
use oomph_data::profile::Profile;
use serde::Serialize;

/// One profile, or several.
pub(crate) fn profiles(all: &[NamedProfile]) -> String {
    match all {
        [one] => document(one.profile),
        several => document(Profiles { profiles: several.iter().map(|one| one.profile).collect() }),
    }
}

#[derive(Serialize)]
struct Profiles<'a> {
    /// One for each table or array.
    profiles: Vec<&'a Profile>,
}
