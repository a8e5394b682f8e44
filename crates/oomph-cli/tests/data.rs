//! `oomph data` as a user meets it: what is written, what is refused, what is left behind. What it prints is in `cli.rs`.

#![allow(clippy::unwrap_used, clippy::panic)] // a test fails by panicking

use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output, Stdio};

fn oomph(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_oomph"));
    command.arg("data").args(arguments).current_dir(folder).env_remove("COLUMNS");
    command
}

fn run(folder: &Path, arguments: &[&str]) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = oomph(folder, arguments).output().unwrap();
    (status.code(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}

fn json(folder: &Path, arguments: &[&str]) -> Value {
    let (code, out, err) = run(folder, &[&["profile", "--format", "json"], arguments].concat());
    assert_eq!(code, Some(0), "{err}");
    serde_json::from_str(&out).unwrap()
}

fn types(profile: &Value) -> Vec<(&str, &str)> {
    let columns = profile["columns"].as_array().unwrap().iter();
    columns
        .map(|column| (column["name"].as_str().unwrap(), column["exact"]["type"].as_str().unwrap()))
        .collect()
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

const TABLE: &str = "id,age,price,country\n1,30,0.1,DE\n2,,16777217.5,FR\n300,41,2.5,DE\n";

#[test]
fn a_shrunk_table_has_the_profiled_types_and_the_same_rows() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    std::fs::write(folder.join("a.csv"), TABLE).unwrap();
    let before = json(folder, &["a.csv"]);
    let (code, out, err) = run(folder, &["shrink", "a.csv", "a.parquet"]);
    assert_eq!((code, out.as_str()), (Some(0), ""), "{err}");
    assert!(err.starts_with("wrote a.parquet: 3 rows, ") && err.contains("with every value kept"), "{err}");
    let after = json(folder, &["a.parquet"]);
    assert_eq!(after["rows"], 3);
    assert_eq!(after["format"], "parquet");
    assert_eq!(types(&after), types(&before));
    assert_eq!(after["columns"][1]["nulls"], 1);
    assert_eq!(after["columns"][2]["range"], before["columns"][2]["range"], "floats are those of the text");
}

#[test]
fn a_column_that_changes_is_named_with_its_worst_error() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    std::fs::write(folder.join("a.csv"), TABLE).unwrap();
    let (code, _, err) = run(folder, &["shrink", "a.csv", "a.parquet", "--policy", "rel:1e-3"]);
    assert_eq!(code, Some(0));
    assert!(
        err.contains("within rel:1e-3")
            && err.contains("  price: float32 instead of float64, no value is off by more than "),
        "{err}"
    );
    assert!(!err.contains("  id: ") && !err.contains("  age: "), "{err}");
}

#[test]
fn what_is_there_is_not_written_over_and_what_is_read_never() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    std::fs::write(folder.join("a.csv"), TABLE).unwrap();
    assert_eq!(run(folder, &["shrink", "a.csv", "a.parquet"]).0, Some(0));
    let written = std::fs::read(folder.join("a.parquet")).unwrap();
    let (code, _, err) = run(folder, &["shrink", "a.csv", "a.parquet", "--columns", "id"]);
    assert!(code == Some(2) && err.contains("--force"), "{err}");
    assert_eq!(std::fs::read(folder.join("a.parquet")).unwrap(), written);
    for output in ["a.parquet", "./a.parquet"] {
        let (code, _, err) = run(folder, &["shrink", "a.parquet", output, "--force"]);
        assert!(code == Some(2) && err.contains("this is what is read"), "{err}");
    }
    assert_eq!(run(folder, &["shrink", "a.csv", "a.parquet", "--columns", "id", "--force"]).0, Some(0));
    assert_eq!(types(&json(folder, &["a.parquet"])), [("id", "int16")]);
    assert_eq!(names(folder), ["a.csv", "a.parquet"]);
}

#[test]
fn a_broken_row_is_named_by_its_line_or_left_out_and_counted() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    std::fs::write(folder.join("a.csv"), "a,b\n1,2\n3,4,5\n\"6\n7\",8\n9,10,11\n12,13\n").unwrap();
    for verb in [&["profile", "a.csv"][..], &["shrink", "a.csv", "a.parquet"]] {
        let (code, out, err) = run(folder, verb);
        assert_eq!((code, out.as_str()), (Some(2), ""));
        assert!(err.contains("a.csv: line 3: "), "{err}");
    }
    assert_eq!(names(folder), ["a.csv"], "nothing is left of what failed");
    let profile = json(folder, &["a.csv", "--on-error", "skip"]);
    assert_eq!((&profile["rows"], &profile["broken_rows"]["count"]), (&3.into(), &2.into()));
    // The cell with a newline takes two lines.
    assert_eq!(
        (&profile["broken_rows"]["first"][0]["line"], &profile["broken_rows"]["first"][1]["line"]),
        (&3.into(), &6.into())
    );
    let (code, out, _) = run(folder, &["profile", "a.csv", "--on-error", "skip"]);
    assert_eq!(code, Some(0));
    assert!(out.contains("warning: 2 broken rows left out\n  line 3: "), "{out}");
    assert!(out.ends_with("Next: oomph data shrink a.csv --on-error skip a.parquet\n"), "{out}");
    let (code, _, err) = run(folder, &["shrink", "a.csv", "a.parquet", "--on-error", "skip"]);
    assert!(code == Some(0) && err.contains("2 broken rows left out"), "{err}");
    assert_eq!(json(folder, &["a.parquet"])["rows"], 3);
}

#[test]
fn several_files_are_profiled_one_after_the_other() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    std::fs::write(folder.join("a.csv"), TABLE).unwrap();
    std::fs::write(folder.join("b.tsv"), "x\ty\n1\t2\n").unwrap();
    let value = json(folder, &["*.?sv"]);
    let profiled: Vec<_> =
        value["profiles"].as_array().unwrap().iter().map(|p| (&p["location"], &p["format"])).collect();
    assert_eq!(profiled, [(&"a.csv".into(), &"csv".into()), (&"b.tsv".into(), &"tsv".into())]);
    let (_, out, _) = run(folder, &["profile", "a.csv", "b.tsv"]);
    assert!(out.contains("\nAll 2 together: 4 rows take "), "{out}");
    // One that cannot be read does not take the others with it, and is not forgotten.
    let (code, out, err) = run(folder, &["profile", "a.csv", "missing.csv"]);
    assert!(code == Some(2) && out.starts_with("a.csv: 3 rows") && err.contains("missing.csv"), "{out}{err}");
}

#[test]
fn names_out_of_a_file_do_nothing_to_a_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    std::fs::write(folder.join("a.csv"), "\u{1b}[31mred,\u{202e}back,ok\n1,2,3\n4,5\n").unwrap();
    for verb in [
        &["profile", "a.csv"][..],
        &["profile", "a.csv", "--on-error", "skip"],
        &["profile", "a.csv", "--columns", "x"],
    ] {
        let (_, out, err) = run(folder, verb);
        let bad = |c: char| (c.is_control() && c != '\n') || c == '\u{202e}';
        assert!(!out.contains(bad) && !err.contains(bad), "{out}{err}");
    }
}

#[test]
fn an_array_becomes_a_smaller_array() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let header = "{'descr': '<f8', 'fortran_order': False, 'shape': (2, 3), }";
    let mut npy = b"\x93NUMPY\x01\x00".to_vec();
    npy.extend(u16::try_from(117 + 1).unwrap().to_le_bytes());
    npy.extend(format!("{header:<117}\n").bytes());
    npy.extend([0.0_f64, 1.0, 2.0, 3.0, 4.0, 250.0].iter().flat_map(|value| value.to_le_bytes()));
    std::fs::write(folder.join("a.npy"), npy).unwrap();
    let profile = json(folder, &["a.npy"]);
    assert_eq!(profile["columns"][0]["now"]["type"], "float64");
    let (code, _, err) = run(folder, &["shrink", "a.npy", "b.npy"]);
    assert_eq!(code, Some(0), "{err}");
    let written = std::fs::read(folder.join("b.npy")).unwrap();
    assert!(written.starts_with(b"\x93NUMPY") && written.ends_with(&[0, 1, 2, 3, 4, 250]), "uint8");
    let (code, _, err) = run(folder, &["shrink", "a.npy", "b.parquet"]);
    assert!(code == Some(2) && err.contains("an array is written as .npy"), "{err}");
}

#[cfg(unix)]
#[test]
fn a_signal_while_it_is_written_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let row =
        |index: u32| format!("{index},{},{}\n", f64::from(index) / 7.0, index.wrapping_mul(2_654_435_761));
    let rows: String = (0..600_000).map(row).collect();
    std::fs::write(folder.join("a.csv"), format!("a,b,c\n{rows}")).unwrap();
    let mut shrink = oomph(folder, &["shrink", "a.csv", "a.parquet"]).stderr(Stdio::null()).spawn().unwrap();
    let started = std::time::Instant::now();
    let temporary = || names(folder).iter().any(|name| name.starts_with(".oomph-"));
    while !temporary() && shrink.try_wait().unwrap().is_none() && started.elapsed().as_secs() < 60 {
        std::thread::yield_now();
    }
    assert!(Command::new("kill").args(["-INT", &shrink.id().to_string()]).status().unwrap().success());
    let ended = shrink.wait().unwrap();
    // On a machine where the signal came late, it is whole.
    assert!(ended.success() || ended.code() == Some(130), "{ended}");
    assert_eq!(names(folder).len(), if ended.success() { 2 } else { 1 }, "{:?}", names(folder));
}
