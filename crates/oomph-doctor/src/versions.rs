//! Versions, to compare by.

/// The numbers of a version: `580.65.06` is [580, 65, 6].
pub(crate) fn version_numbers(text: &str) -> Vec<u64> {
    text.split(['.', '+', '-']).map_while(|part| part.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_compare_by_their_numbers() {
        assert!(version_numbers("580.65.06") > version_numbers("525.60.13"));
        assert_eq!(version_numbers("2.11.0+cu128"), [2, 11, 0]);
    }
}
