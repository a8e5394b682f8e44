//! The user that somebody asks for, as processes name theirs.

/// Who is meant by a name or a number: as `/etc/passwd` calls them first, or the number where it has no name. An error says who is
/// not there; names that only a directory service knows are such, since processes of those are shown by numbers.
pub fn user(typed: &str) -> Result<String, String> {
    of(typed, &std::fs::read_to_string("/etc/passwd").unwrap_or_default())
}

fn of(typed: &str, passwd: &str) -> Result<String, String> {
    let typed = typed.trim();
    let users = || {
        passwd.lines().filter_map(|line| {
            let mut fields = line.split(':');
            let name = fields.next()?;
            Some((name, fields.nth(1)?.parse::<u32>().ok()?))
        })
    };
    let named = users().find(|(name, _)| *name == typed).map(|(_, number)| number);
    let Some(number) = named.or_else(|| typed.parse().ok()) else {
        return Err(format!("no user is called {typed:?} here"));
    };
    let first = users().find(|(_, one)| *one == number);
    Ok(first.map_or_else(|| number.to_string(), |(name, _)| name.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_meant_by_name_or_by_number() {
        let passwd =
            "root:x:0:0:root:/root:/bin/sh\ntoor:x:0:0::/root:/bin/sh\nbroken\nalice:x:1000:1000::/:\n";
        for (typed, meant) in [("alice", "alice"), ("1000", "alice"), ("toor", "root"), ("4242", "4242")] {
            assert_eq!(of(typed, passwd).as_deref(), Ok(meant));
        }
        for typed in ["", "bob", "broken", "-1", "al\u{1b}ice", "99999999999"] {
            assert!(of(typed, passwd).is_err_and(|why| !why.contains('\u{1b}')), "{typed:?}");
        }
    }
}
