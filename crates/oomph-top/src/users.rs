//! The user that is asked for, as processes name theirs.

/// Who is meant by a name or a number: as `/etc/passwd` or a directory (LDAP, SSSD) calls them first, or the number where neither has
/// a name. An error says who is not there.
pub fn user(typed: &str) -> Result<String, String> {
    let passwd = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    of(typed, &passwd, oomph_host::user_of_directory)
}

fn of(
    typed: &str,
    passwd: &str,
    directory: impl Fn(&str) -> Option<(u32, String)>,
) -> Result<String, String> {
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
        let found = directory(typed).map(|(_, name)| name);
        return found.ok_or_else(|| format!("no user is called {typed:?} here"));
    };
    if let Some((name, _)) = users().find(|(_, one)| *one == number) {
        return Ok(name.to_owned());
    }
    let found = directory(&number.to_string()).filter(|(one, _)| *one == number);
    Ok(found.map_or_else(|| number.to_string(), |(_, name)| name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_meant_by_name_or_by_number() {
        let passwd =
            "root:x:0:0:root:/root:/bin/sh\ntoor:x:0:0::/root:/bin/sh\nbroken\nalice:x:1000:1000::/:\n";
        let directory = |who: &str| ["7000", "carol"].contains(&who).then(|| (7000, "carol@lab".to_owned()));
        for (typed, meant) in [
            ("alice", "alice"),
            ("1000", "alice"),
            ("toor", "root"),
            ("4242", "4242"),
            ("carol", "carol@lab"),
            ("7000", "carol@lab"),
        ] {
            assert_eq!(of(typed, passwd, directory).as_deref(), Ok(meant));
        }
        for typed in ["", "bob", "broken", "-1", "al\u{1b}ice", "99999999999"] {
            assert!(of(typed, passwd, directory).is_err_and(|why| !why.contains('\u{1b}')), "{typed:?}");
        }
    }
}
