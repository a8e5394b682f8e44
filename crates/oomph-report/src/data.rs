//! How a profile of a table or an array looks to scripts; to people it looks as `oomph-render` says, which the extension module uses too.

use crate::json;
pub use oomph_render::profile::{Look, NamedProfile, Written, markdown, text, written};

/// For scripts: the profile as it is, or several in a list.
pub fn json(all: &[NamedProfile]) -> String {
    json::profile::profiles(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use oomph_data::BrokenRows;
    use oomph_data::profile::{Choice, ColumnProfile, Profile, Sizes};

    #[test]
    fn json_is_the_profile_with_a_version() {
        let mut price = ColumnProfile::blank("price");
        price.within =
            Choice { type_name: "float32".to_owned(), bytes: 4_000_000, worst_relative_error: Some(5.9e-8) };
        let profile = Profile {
            location: "price.csv".to_owned(),
            format: "csv".to_owned(),
            file_bytes: Some(24_000_000),
            rows: 1_000_000,
            within_policy: "rel:1e-6".to_owned(),
            columns: vec![price],
            bytes: Sizes { now: 8_000_000, exact: 8_000_000, within: 4_000_000 },
            sparse: None,
            peaks: Vec::new(),
            broken_rows: BrokenRows::default(),
            notes: Vec::new(),
        };
        let named = NamedProfile { profile: &profile, input: "price.csv", options: &[], all: false };
        let value: serde_json::Value = serde_json::from_str(&json(&[named])).unwrap_or_default();
        assert_eq!(value["schema_version"], 1);
        assert_eq!(value["columns"][0]["within"]["type"], "float32");
        assert_eq!(value["bytes"]["exact"], 8_000_000);
    }
}
