//! Whose code a file is: the user's own, or a library's. Python's version of the same rule is `python/oomph/live/library_code.py`; one table of cases holds both.
//!
//! `oomph-record` compiles this file too, by its path: it may depend on nothing.

/// Whether a file belongs to a library or to Python itself, by its path.
pub fn is_library_file(file: &str) -> bool {
    const PARTS: [&str; 4] = ["site-packages", "dist-packages", "/lib/python3", "/torchinductor_"];
    // PyTorch built from source: its own folders, not everything that lies under a folder called torch.
    const TORCH: [&str; 12] = [
        "nn/",
        "optim/",
        "utils/",
        "autograd/",
        "cuda/",
        "amp/",
        "distributed/",
        "_dynamo/",
        "_inductor/",
        "_tensor",
        "functional.py",
        "_ops.py",
    ];
    let unified = file.replace('\\', "/");
    let file = unified.as_str();
    let in_torch = |rest: &str| TORCH.iter().any(|folder| rest.starts_with(folder));
    // Code that was made rather than written: frozen modules, generated functions, FX graphs.
    const MADE: [&str; 6] =
        ["<frozen", "<string>", "<eval_with_key", "<decorator-gen", "<torch_package", "<__array_function__"];
    MADE.iter().any(|prefix| file.starts_with(prefix))
        || PARTS.iter().any(|part| file.contains(part))
        // Windows keeps the standard library in Lib.
        || file.contains("/Lib/")
        || file.strip_prefix("torch/").is_some_and(in_torch)
        || file.match_indices("/torch/").any(|(at, part)| in_torch(&file[at + part.len()..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table that Python's own version of the rule, `python/oomph/live/library_code.py`, is held to as well.
    const CASES: &str = include_str!("../library_code.txt");

    #[test]
    fn own_files_are_distinguished_from_libraries() {
        for case in CASES.lines() {
            let (whose, file) = case.split_once(' ').unwrap();
            assert_eq!(is_library_file(file), whose == "library", "{case}");
        }
    }
}
