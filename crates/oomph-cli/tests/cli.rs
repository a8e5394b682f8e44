//! The command as a user meets it: exit code, stdout and stderr of every verb, as snapshots.
//!
//! `INSTA_UPDATE=always cargo test -p oomph-cli` writes them anew; read the difference before you commit it.

#![allow(clippy::unwrap_used, clippy::panic)] // a test fails by panicking

mod data;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

fn root() -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).canonicalize().unwrap()
}

fn oomph(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_oomph"));
    command.args(arguments).current_dir(root().join("fixtures/h200"));
    for name in ["NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "FORCE_COLOR", "COLUMNS"] {
        command.env_remove(name);
    }
    command.env("OOMPH_GPUS", "no-such-file.toml"); // not this machine's user's own
    command
}

/// Exit code and both streams in one text.
fn run(arguments: &[&str]) -> String {
    shown(oomph(arguments).output().unwrap())
}

fn shown(output: std::process::Output) -> String {
    format!(
        "exit {}\n--- stdout\n{}--- stderr\n{}",
        output.status.code().unwrap_or(-1),
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

macro_rules! snapshots {
    ($($name:ident: $arguments:expr;)*) => {
        $(#[test]
        fn $name() {
            let arguments: &[&str] = &$arguments;
            insta::with_settings!({ description => format!("oomph {}", arguments.join(" ")), omit_expression => true }, {
                insta::assert_snapshot!(stringify!($name), run(arguments));
            });
        })*
    };
}

snapshots! {
    explain_an_out_of_memory: ["explain", "leak_history8-cap4.0.pickle.xz"];
    explain_fragmentation: ["explain", "seed_fragment4-cap0.55.pickle.xz"];
    explain_nothing_wrong: ["explain", "gpt24-bf16.pickle.xz"];
    explain_a_ring_buffer: ["explain", "ring.pickle.xz"];
    explain_the_final_state_only: ["explain", "plain_segments_only.pickle.xz"];
    explain_two_devices: ["explain", "../shapes/two_devices.pickle"];
    explain_a_file_cut_off: ["explain", "../shapes/truncated_60.pickle"];
    explain_stacks: ["explain", "--stacks", "--lines", "2", "logits.pickle.xz"];
    explain_in_json: ["explain", "--format", "json", "big_temp.pickle.xz"];
    explain_in_markdown: ["explain", "--format", "markdown", "eval_grad.pickle.xz"];
    explain_in_html: ["explain", "--format", "html", "--lines", "2", "../shapes/two_devices.pickle"];
    explain_several_ranks_in_html: ["explain", "--format", "html", "--lines", "2", "../shapes/protocol4.pickle", "../shapes/two_devices.pickle"];
    explain_the_final_state_in_html: ["explain", "--format", "html", "--lines", "2", "plain_segments_only.pickle.xz"];
    explain_in_colour: ["explain", "--color", "always", "eval_grad.pickle.xz"];
    explain_several_ranks: ["explain", "plain.pickle.xz", "real_oom.pickle.xz", "logits.pickle.xz"];
    explain_several_ranks_in_markdown: ["explain", "--format", "markdown", "--lines", "2", "plain.pickle.xz", "real_oom.pickle.xz"];
    explain_one_good_file_and_two_bad: ["explain", "mlp64.pickle.xz", "no-such-file.pickle", "truth.jsonl"];
    explain_refuses_code: ["explain", "../../attacks/code_global_reduce.pickle"];
    explain_a_folder: ["explain", "."];
    explain_an_empty_file: ["explain", "../../attacks/empty.pickle"];
    diff_two_optimizers: ["diff", "foreach.pickle.xz", "fused.pickle.xz"];
    diff_in_json: ["diff", "--format", "json", "foreach.pickle.xz", "fused.pickle.xz"];
    diff_in_markdown: ["diff", "--format", "markdown", "foreach.pickle.xz", "fused.pickle.xz"];
    diff_with_a_run_that_died: ["diff", "leak_history8-cap4.0.pickle.xz", "leak_history8.pickle.xz"];
    diff_of_the_same: ["diff", "plain.pickle.xz", "plain_protocol5.pickle.xz"];
    check_below: ["check", "mlp64.pickle.xz", "--max-peak", "150MB"];
    check_above: ["check", "mlp64.pickle.xz", "--max-peak", "100MiB"];
    check_exactly: ["check", "mlp64.pickle.xz", "--max-peak", "146800640"];
    check_one_byte_above: ["check", "mlp64.pickle.xz", "--max-peak", "146800639"];
    check_against_a_baseline: ["check", "foreach.pickle.xz", "--baseline", "fused.pickle.xz", "--tolerance", "2%"];
    check_against_a_baseline_in_json: ["check", "fused.pickle.xz", "--baseline", "foreach.pickle.xz", "--format", "json"];
    check_allocated: ["check", "mlp64.pickle.xz", "--max-peak", "133488128", "--peak", "allocated"];
    check_an_incomplete_recording: ["check", "ring.pickle.xz", "--max-peak", "1GiB"];
    check_several_ranks: ["check", "plain.pickle.xz", "mlp64.pickle.xz", "real_oom.pickle.xz", "--max-peak", "120MiB"];
    check_several_ranks_in_markdown: ["check", "plain.pickle.xz", "mlp64.pickle.xz", "--max-peak", "120MiB", "--format", "markdown"];
    check_a_run_that_died: ["check", "real_oom.pickle.xz", "--max-peak", "2GiB"];
    check_without_a_limit: ["check", "mlp64.pickle.xz"];
    check_with_a_bad_size: ["check", "mlp64.pickle.xz", "--max-peak", "lots"];
    replay_as_recorded: ["replay", "bert_var16.pickle.xz"];
    replay_with_expandable_segments: ["replay", "bert_var16.pickle.xz", "--conf", "expandable_segments:True"];
    replay_in_less_memory: ["replay", "gpt24-bf16.pickle.xz", "--memory", "4.6GiB"];
    replay_on_a_card: ["replay", "leak_history8-cap4.0.pickle.xz", "--gpu", "1050 ti"];
    replay_an_out_of_memory: ["replay", "bert_var16-cap3.0.pickle.xz"];
    replay_past_an_out_of_memory: ["replay", "bert_var16-cap3.0.pickle.xz", "--memory", "8GiB"];
    replay_within_a_limit: ["replay", "seed_fragment4-cap0.55.pickle.xz", "--conf", "expandable_segments:True", "--limit", "0.55GiB"];
    replay_when_the_limit_is_not_known: ["replay", "seed_fragment4-cap0.55.pickle.xz", "--conf", "expandable_segments:True"];
    replay_when_addresses_decide: ["replay", "resnet5016.pickle.xz", "--conf", "roundup_power2_divisions:4", "--torch", "2.11"];
    replay_a_ring_buffer: ["replay", "ring.pickle.xz", "--conf", "max_split_size_mb:64"];
    replay_under_another_version: ["replay", "mlp64.pickle.xz", "--torch", "2.13", "--conf", ""];
    replay_with_bfc: ["replay", "mlp64.pickle.xz", "--allocator", "bfc"];
    replay_in_json: ["replay", "big_temp.pickle.xz", "--conf", "expandable_segments:True", "--format", "json"];
    replay_in_markdown: ["replay", "gpt24-bf16.pickle.xz", "--memory", "4.6GiB", "--format", "markdown"];
    replay_with_a_bad_setting: ["replay", "mlp64.pickle.xz", "--conf", "max_split_size_mb:5"];
    replay_with_an_unknown_setting: ["replay", "mlp64.pickle.xz", "--conf", "expandable_segment:True", "--torch", "2.4"];
    replay_with_the_drivers_allocator: ["replay", "mlp64.pickle.xz", "--conf", "backend:cudaMallocAsync"];
    replay_with_no_memory: ["replay", "mlp64.pickle.xz", "--memory", "0GiB"];
    replay_in_a_memory_of_0: ["replay", "mlp64.pickle.xz", "--memory", "0"];
    replay_on_an_unknown_card: ["replay", "mlp64.pickle.xz", "--gpu", "voodoo2"];
    replay_on_a_card_of_two_sizes: ["replay", "mlp64.pickle.xz", "--gpu", "a100"];
    replay_without_events: ["replay", "plain_segments_only.pickle.xz"];
    replay_a_state_only: ["replay", "plain_state.pickle.xz"];
    replay_a_device_that_is_not_there: ["replay", "mlp64.pickle.xz", "--device", "3"];
    replay_two_devices: ["replay", "../shapes/two_devices.pickle"];
    replay_settings_for_another_allocator: ["replay", "mlp64.pickle.xz", "--allocator", "bfc", "--conf", "expandable_segments:True"];
    replay_an_old_version: ["replay", "mlp64.pickle.xz", "--torch", "1.13"];
    tune_fragmentation: ["tune", "bert_var16.pickle.xz"];
    tune_for_a_size: ["tune", "bert_var16.pickle.xz", "--memory", "6GiB"];
    tune_for_a_card_that_is_large_enough: ["tune", "resnet5016.pickle.xz", "--gpu", "gtx-1050-ti"];
    tune_for_too_little: ["tune", "gpt24-bf16.pickle.xz", "--memory", "4GiB"];
    tune_a_run_that_died: ["tune", "seed_fragment4-cap0.55.pickle.xz"];
    tune_past_a_death: ["tune", "seed_fragment4-cap0.55.pickle.xz", "--limit", "0.55GiB"];
    tune_with_a_setting_of_ones_own: ["tune", "mlp64.pickle.xz", "--try", "max_split_size_mb:21"];
    tune_in_json: ["tune", "big_temp.pickle.xz", "--format", "json"];
    tune_in_markdown: ["tune", "seed_fragment4.pickle.xz", "--format", "markdown"];
    tune_without_events: ["tune", "plain_segments_only.pickle.xz"];
    tune_with_a_bad_setting: ["tune", "mlp64.pickle.xz", "--try", "max_split_size_mb"];
    data_profile: ["data", "profile", "../../examples/orders.csv"];
    data_profile_in_json: ["data", "profile", "../../examples/orders.csv", "--columns", "price,country,rating", "--format", "json"];
    data_profile_in_markdown: ["data", "profile", "../../examples/orders.csv", "--format", "markdown", "--within", "rel:1e-3"];
    data_profile_without_a_header: ["data", "profile", "../../examples/orders.csv", "--no-header", "--null", "DE", "--columns", "c0,c4"];
    data_profile_a_file_that_is_not_there: ["data", "profile", "no-such-file.csv", "../../examples/orders.csv", "--columns", "order"];
    data_profile_a_column_that_is_not_there: ["data", "profile", "../../examples/orders.csv", "--columns", "prize"];
    data_profile_within_nothing: ["data", "profile", "../../examples/orders.csv", "--within", "exact"];
    data_profile_what_is_no_table: ["data", "profile", "mlp64.pickle.xz"];
    data_shrink_over_its_input: ["data", "shrink", "../../examples/orders.csv", "../h200/../../examples/orders.csv", "--force"];
    data_shrink_to_what: ["data", "shrink", "../../examples/orders.csv", "orders.feather"];
    data_shrink_with_a_bad_policy: ["data", "shrink", "../../examples/orders.csv", "orders.parquet", "--policy", "rel:2"];
    help_data: ["data", "--help"];
    help_data_profile: ["data", "profile", "--help"];
    help_data_shrink: ["data", "shrink", "--help"];
    gpus_one: ["gpus", "4090"];
    gpus_in_json: ["gpus", "t4", "--format", "json"];
    rule_list: ["rule"];
    rule_one: ["rule", "om201"];
    rule_unknown: ["rule", "OM999"];
    convert_to_what: ["convert", "mlp64.pickle.xz", "-o", "somewhere"];
    help: ["--help"];
    help_explain: ["explain", "--help"];
    help_fit: ["fit", "--help"];
    fit_without_a_card: ["fit", "mlp64.pickle.xz"];
    help_plan: ["plan", "--help"];
    plan_of_a_notebook: ["plan", "--gpus", "t4", "../../tests/programs/notebook.ipynb"];
    plan_with_the_cards_behind_the_script: ["plan", "mlp64.pickle.xz", "--gpus", "t4"];
    fit_a_file_that_is_not_there: ["fit", "--gpu", "t4", "no-such-script.py"];
    fit_with_an_unknown_permission: ["fit", "--gpu", "t4", "--allow", "fp4", "train.py"];
    help_check: ["check", "--help"];
    help_convert: ["convert", "--help"];
    help_report: ["report", "--help"];
    report_of_nothing_that_can_be_read: ["report", "truth.jsonl", "-o", "-"];
    report_compares_two: ["report", "--as", "diff", "mlp64.pickle.xz", "-o", "-"];
    report_opens_a_file_only: ["report", "mlp64.pickle.xz", "-o", "-", "--open"];
    report_from_stdin_has_no_name: ["report", "-"];
    help_replay: ["replay", "--help"];
    help_tune: ["tune", "--help"];
    help_gpus: ["gpus", "--help"];
    no_verb: [];
}

/// What came after the death is not in the recording.
#[test]
fn a_recording_that_died_is_never_said_to_fit() {
    let json_of = |arguments: &[&str]| -> serde_json::Value {
        let output = oomph(&[arguments, &["--format", "json"]].concat()).output().unwrap();
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let file = "seed_fragment4-cap0.55.pickle.xz";
    let past = json_of(&["replay", file, "--conf", "expandable_segments:True", "--limit", "600MiB"]);
    assert_eq!((&past["fits"], &past["past_death"]), (&serde_json::Value::Null, &true.into()));
    assert_eq!(past["margin"], (600 << 20) - past["least_memory"].as_i64().unwrap());
    let not = json_of(&["replay", file, "--limit", "600MiB"]);
    assert_eq!((&not["fits"], &not["past_death"]), (&"no".into(), &false.into()));
    assert_eq!(not["margin"], (600 << 20) - (824 << 20));
    let unknown = json_of(&["replay", file, "--conf", "expandable_segments:True"]);
    assert_eq!(unknown["fits"], serde_json::Value::Null);
    assert_eq!(
        (&unknown["past_death"], &unknown["margin"]),
        (&serde_json::Value::Null, &serde_json::Value::Null)
    );
    let tuned = json_of(&["tune", file, "--limit", "600MiB"]);
    assert!(tuned["advice"].as_str().unwrap().contains("gets past the recorded death with 128 MiB to spare"));
    let lived = json_of(&["replay", "bert_var16.pickle.xz", "--memory", "9GiB"]);
    assert_eq!((&lived["fits"], &lived["past_death"]), (&"yes".into(), &serde_json::Value::Null));
    let compared = json_of(&["diff", "leak_history8-cap4.0.pickle.xz", "leak_history8.pickle.xz"]);
    assert_eq!(compared["died"]["before"]["step"], 6);
    assert_eq!(compared["died"]["after"], serde_json::Value::Null);
}

#[test]
fn a_packed_replay_needs_no_more_than_the_program_holds() {
    let output = oomph(&["replay", "bert_var16.pickle.xz", "--allocator", "packed", "--format", "json"])
        .output()
        .unwrap();
    let value: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let (height, bound) =
        (value["packing"]["height"].as_u64().unwrap(), value["lower_bound"].as_u64().unwrap());
    assert_eq!(value["peak"]["reserved"], height);
    assert!(height >= bound && height < bound + bound / 1000, "{height} is within 0.1 % of {bound}");
}

#[test]
fn cards_are_completed_and_can_be_added() {
    let script = oomph(&["completions", "bash"]).output().unwrap();
    let script = String::from_utf8_lossy(&script.stdout).into_owned();
    assert!(script.contains("rtx-4090") && script.contains("a100-80gb"), "the script completes --gpu");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("gpus.toml");
    let card = "[[gpu]]\nname = \"mine\"\ntitle = \"My Card\"\nmemory = 9000000000\ncompute_capability = \"9.0\"\nsms = 99\n";
    std::fs::write(&path, card).unwrap();
    let output = oomph(&["gpus", "mine", "--format", "json"]).env("OOMPH_GPUS", &path).output().unwrap();
    let value: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(value["gpus"][0]["memory"], 9_000_000_000u64);
    let output =
        oomph(&["replay", "mlp64.pickle.xz", "--gpu", "mine"]).env("OOMPH_GPUS", &path).output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    std::fs::write(&path, "[[gpu]]\nname = 3\n").unwrap();
    let output =
        oomph(&["replay", "mlp64.pickle.xz", "--gpu", "t4"]).env("OOMPH_GPUS", &path).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("gpus.toml"), "the file is named");
}

#[test]
fn explain_reads_stdin() {
    let bytes = std::fs::read(root().join("fixtures/h200/mlp64.pickle.xz")).unwrap();
    let mut child = oomph(&["explain", "--format", "json", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(&bytes).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    let value: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(value["devices"][0]["peak"]["reserved"], 146_800_640);
}

#[test]
fn markup_in_a_recording_does_not_get_into_a_page() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("<img src=x onerror=alert(1)>.json");
    let frames =
        r#"[{"filename": "<script>alert(1)</script>.py", "line": 1, "name": "\"><svg onload=alert(1)>"}]"#;
    let event = |action: &str, size: u64| {
        format!(
            r#"{{"action": "{action}", "addr": 512, "size": {size}, "stream": 0, "time_us": 1, "frames": {frames}}}"#
        )
    };
    let events = [event("segment_alloc", 2_097_152), event("alloc", 1024), event("oom", 99_999_744)];
    let snapshot = format!(r#"{{"segments": [], "device_traces": [[{}]]}}"#, events.join(", "));
    std::fs::write(&path, snapshot).unwrap();
    let output = oomph(&["explain", "--format", "html", path.to_str().unwrap()]).output().unwrap();
    let page = String::from_utf8(output.stdout).unwrap();
    assert!(page.contains("&lt;script&gt;alert(1)&lt;/script&gt;.py"), "{page}");
    assert!(page.contains("&lt;img src=x onerror=alert(1)&gt;.json"), "{page}");
    for markup in ["<script", "<img", "<svg onload", "http", "src=\"", "url("] {
        assert!(!page.contains(markup), "{markup} in {page}");
    }
}

#[test]
fn json_has_the_keys_that_scripts_rely_on() {
    let output = oomph(&["explain", "--format", "json", "leak_history8-cap4.0.pickle.xz"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let value: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(value["schema_version"], 1);
    let device = &value["devices"][0];
    assert_eq!(device["peak"]["reserved"], 4_288_675_840u64);
    assert_eq!(device["peak"]["allocated"], 4_251_089_408u64);
    assert!(device["peak"]["requested"].is_u64());
    assert_eq!(device["events"], 1385);
    let ooms = device["ooms"].as_array().unwrap();
    assert_eq!(ooms.len(), 19);
    assert_eq!(ooms[18]["fatal"], true);
    assert_eq!(ooms[18]["size"], 33_554_432);
    assert_eq!(ooms[18]["reason"], "out_of_memory");
    for finding in value["findings"].as_array().unwrap() {
        assert!(
            finding["code"].is_string() && finding["saving_bytes"].is_u64() && finding["where"].is_array()
        );
    }
    let first = &value["findings"][0];
    assert_eq!((&first["code"], &first["severity"]), (&"OM202".into(), &"error".into()));
    assert_eq!((&first["cause"], &first["likely"]), (&"no_grad_missing".into(), &true.into()));
    assert_eq!(first["where"][0]["line"], 195);
}

#[test]
fn convert_makes_what_can_be_read_and_never_half_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let peak = |file: &str| {
        let output = oomph(&["explain", "--format", "json", file]).output().unwrap();
        let value: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        value["devices"][0]["peak"].clone()
    };
    let original = peak("logits.pickle.xz");
    for name in ["a.oomph", "a.json", "a.pickle"] {
        let output = oomph(&["convert", "logits.pickle.xz", "-o", &path(name)]).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", shown(output));
        assert_eq!(peak(&path(name)), original, "{name}");
    }
    // What exists is kept by default.
    let before = std::fs::read(path("a.oomph")).unwrap();
    let again = oomph(&["convert", "plain.pickle.xz", "-o", &path("a.oomph")]).output().unwrap();
    assert_eq!(again.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&again.stderr).contains("--force"));
    assert_eq!(std::fs::read(path("a.oomph")).unwrap(), before);
    let forced = oomph(&["convert", "plain.pickle.xz", "-o", &path("a.oomph"), "--force"]).output().unwrap();
    assert_eq!(forced.status.code(), Some(0));
    assert_ne!(std::fs::read(path("a.oomph")).unwrap(), before);
    // A conversion that fails leaves nothing behind.
    let failed = oomph(&["convert", "truth.jsonl", "-o", &path("b.oomph")]).output().unwrap();
    assert_eq!(failed.status.code(), Some(2));
    let mut names: Vec<_> = std::fs::read_dir(folder.path())
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, ["a.json", "a.oomph", "a.pickle"]);
}

/// A disk that fills while a file is written: an error, and nothing left behind.
#[cfg(target_os = "linux")]
/// The object in the page that its script reads.
fn page_data(page: &str) -> serde_json::Value {
    let (_, rest) = page.split_once("<script type=\"application/json\" id=\"oomph-page\">").unwrap();
    serde_json::from_str(rest.split_once("</script>").unwrap().0).unwrap()
}

#[test]
fn a_page_holds_the_answer_and_every_allocation() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let output =
        oomph(&["report", "leak_history8-cap4.0.pickle.xz", "-o", &path("a.html")]).output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("a.html (1,385 events, "), "{said}");
    let page = std::fs::read_to_string(folder.path().join("a.html")).unwrap();
    let data = page_data(&page);
    let explained =
        oomph(&["explain", "--format", "json", "leak_history8-cap4.0.pickle.xz"]).output().unwrap();
    let explained: serde_json::Value = serde_json::from_slice(&explained.stdout).unwrap();
    let (subject, device) = (&data["subjects"][0], &explained["devices"][0]);
    assert_eq!(data["mode"], "one");
    for what in ["allocated", "reserved", "requested"] {
        assert_eq!(subject["peak"][what]["bytes"], device["peak"][what]);
        assert_eq!(subject["peak"][what]["moment"], device["peak_at"][what]["event"]);
    }
    for (what, bytes) in device["reserved_at_peak"].as_object().unwrap() {
        assert_eq!(&subject["waste"][what], bytes, "{what}");
    }
    let codes = |findings: &serde_json::Value| -> Vec<String> {
        findings.as_array().unwrap().iter().map(|one| one["code"].to_string()).collect()
    };
    assert_eq!(codes(&subject["findings"]), codes(&explained["findings"]));
    // Every allocation: as many as there are events that allocate, and blocks from before.
    let before = device["completeness"]["blocks_from_before"].as_u64().unwrap_or(0);
    assert_eq!(
        subject["columns"]["born"]["rows"].as_u64().unwrap(),
        device["actions"]["alloc"].as_u64().unwrap() + before
    );
    assert!(subject["what_if"]["trials"].as_array().unwrap().len() > 5);
    // The words are there without any script, and the script is named by its hash.
    for finding in explained["findings"].as_array().unwrap() {
        assert!(page.contains(finding["code"].as_str().unwrap()));
    }
    assert!(page.contains("script-src 'sha256-") && !page.contains(" src=") && !page.contains(" href="));

    std::fs::write(folder.path().join("notes.html"), "mine").unwrap();
    let over = oomph(&["report", "mlp64.pickle.xz", "-o", &path("notes.html")]).output().unwrap();
    assert_eq!(over.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&over.stderr).contains("exists already (--force writes over it)"));
    assert_eq!(std::fs::read_to_string(folder.path().join("notes.html")).unwrap(), "mine");

    let failed = oomph(&["report", "truth.jsonl", "-o", &path("b.html")]).output().unwrap();
    assert_eq!(failed.status.code(), Some(2));
    assert!(!folder.path().join("b.html").exists());
    // A page can be made again, and the same recording gives the same.
    let again = oomph(&["report", "leak_history8-cap4.0.pickle.xz", "-o", &path("a.html")]).output().unwrap();
    assert_eq!(again.status.code(), Some(0));
    assert_eq!(std::fs::read_to_string(folder.path().join("a.html")).unwrap(), page);
}

#[test]
fn what_was_read_is_never_written_over() {
    let folder = tempfile::tempdir().unwrap();
    let recording = folder.path().join("in.pickle");
    std::fs::copy(root().join("fixtures/shapes/protocol4.pickle"), &recording).unwrap();
    let before = std::fs::read(&recording).unwrap();
    std::os::unix::fs::symlink("in.pickle", folder.path().join("link.pickle")).unwrap();
    let refused = |arguments: &[&str]| {
        let arguments = [&["report", "in.pickle", "--force"], arguments].concat();
        let output = oomph(&arguments).current_dir(folder.path()).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert_eq!(std::fs::read(&recording).unwrap(), before, "{arguments:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    for output in ["in.pickle", "./in.pickle", "link.pickle"] {
        assert!(refused(&["-o", output]).contains("this is what is read"), "{output}");
        assert!(refused(&["-o", "page.html", "--chrome-trace", output]).contains("this is what is read"));
    }
    assert!(refused(&["-o", "a.html", "--chrome-trace", "./a.html"]).contains("two outputs"));
    assert!(refused(&["-o", "-", "--chrome-trace", "-"]).contains("two outputs"));
    assert!(refused(&["-o", "missing/a.html"]).contains("there is no folder missing"));
    assert!(
        refused(&["-o", "a.html", "--chrome-trace", "missing/t.json"]).contains("there is no folder missing")
    );
    assert!(refused(&["-o", "a.html", "--source", "missing"]).contains("--source missing: "));
    assert!(
        refused(&["-o", "a.html", "--tensorboard", "in.pickle"]).contains("--tensorboard takes a folder")
    );
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2, "nothing else was written");
}

#[test]
fn a_page_is_as_private_as_any_file() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let recording = root().join("fixtures/shapes/protocol4.pickle");
    let command =
        format!("umask 077; {} report -q {} -o page.html", env!("CARGO_BIN_EXE_oomph"), recording.display());
    assert!(Command::new("sh").args(["-c", &command]).current_dir(folder.path()).status().unwrap().success());
    let mode = folder.path().join("page.html").metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn a_signal_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let recording = root().join("fixtures/h200/generate8.pickle.xz");
    let mut convert = oomph(&["convert", recording.to_str().unwrap(), "--to", "json", "-o"])
        .arg(folder.path().join("out.json"))
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let temporary = || {
        let entries = std::fs::read_dir(folder.path()).unwrap();
        entries
            .filter(|entry| entry.as_ref().unwrap().file_name().to_string_lossy().starts_with(".oomph-"))
            .count()
    };
    let started = std::time::Instant::now();
    while temporary() == 0 && convert.try_wait().unwrap().is_none() && started.elapsed().as_secs() < 60 {
        std::thread::yield_now();
    }
    assert!(Command::new("kill").args(["-INT", &convert.id().to_string()]).status().unwrap().success());
    let ended = convert.wait().unwrap();
    // On a machine where the signal came late, it is whole.
    assert_eq!(folder.path().join("out.json").exists(), ended.success());
    assert_eq!(temporary(), 0);
}

#[test]
fn two_recordings_are_compared_and_ranks_are_not() {
    let folder = tempfile::tempdir().unwrap();
    let ranks = [folder.path().join("rank0.pickle.xz"), folder.path().join("rank1.pickle.xz")];
    for (rank, file) in ranks.iter().zip(["foreach.pickle.xz", "fused.pickle.xz"]) {
        std::fs::copy(root().join("fixtures/h200").join(file), rank).unwrap();
    }
    let mode_of = |files: &[&str], more: &[&str]| {
        let arguments = [&["report", "-o", "-", "--what-if", "never"], files, more].concat();
        let output = oomph(&arguments).output().unwrap();
        page_data(&String::from_utf8(output.stdout).unwrap())
    };
    let ranks: Vec<&str> = ranks.iter().map(|rank| rank.to_str().unwrap()).collect();
    let files = ["foreach.pickle.xz", "fused.pickle.xz"];
    let compared = mode_of(&files, &[]);
    assert_eq!(compared["mode"], "diff");
    assert_eq!(compared["diff"][0]["before"], 0);
    assert_eq!(compared["diff"][0]["after"], 1);
    let diff = oomph(&["diff", "--format", "json", files[0], files[1]]).output().unwrap();
    let diff: serde_json::Value = serde_json::from_slice(&diff.stdout).unwrap();
    let bytes = |lines: &serde_json::Value| -> Vec<(u64, u64)> {
        let lines = lines.as_array().unwrap().iter();
        lines.map(|line| (line["before"].as_u64().unwrap(), line["after"].as_u64().unwrap())).collect()
    };
    assert_eq!(bytes(&compared["diff"][0]["lines"]), bytes(&diff["devices"][0]["by_line"]));
    assert_eq!(mode_of(&ranks, &[])["mode"], "ranks");
    assert_eq!(mode_of(&ranks, &["--as", "diff"])["mode"], "diff");
    assert_eq!(mode_of(&files, &["--as", "ranks"])["mode"], "ranks");
    assert_eq!(mode_of(&["../shapes/two_devices.pickle"], &[])["subjects"].as_array().unwrap().len(), 2);
}

#[test]
fn a_full_disk_is_an_error_and_leaves_nothing() {
    let output = oomph(&["convert", "logits.pickle.xz", "--to", "json", "-o", "/dev/full", "--force"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", shown(output));
    use std::os::unix::fs::FileTypeExt;
    assert!(
        Path::new("/dev/full").metadata().unwrap().file_type().is_char_device(),
        "a device is not replaced"
    );
    let piped = Command::new("sh")
        .args(["-c", "\"$0\" explain mlp64.pickle.xz > /dev/full", env!("CARGO_BIN_EXE_oomph")])
        .current_dir(root().join("fixtures/h200"))
        .output()
        .unwrap();
    assert_eq!(piped.status.code(), Some(2), "{}", shown(piped));
}

/// A recording of so many events that share one stack of so many frames: small, but not in JSON.
fn with_one_long_stack(path: &Path, events: usize, frames: usize) {
    let mut recording = oomph_trace::Recording::default();
    let name = recording.strings.intern("a_function_of_some_length");
    let file = recording.strings.intern("model.py");
    let frame = recording.stacks.intern_frame(oomph_trace::Frame { name, file, line: 1 });
    let stack = recording.stacks.intern(&vec![frame; frames]);
    let mut device = oomph_trace::Device { streams: vec![0], ..Default::default() };
    for row in 0..events as u64 {
        device.events.action.push(oomph_trace::Action::Alloc);
        device.events.address.push(row << 20);
        device.events.size.push(512);
        device.events.stream.push(0);
        device.events.stack.push(stack);
        device.events.time.push(row as i64);
    }
    recording.devices.push(device);
    let writer = oomph_trace::format::Writer::new(std::fs::File::create(path).unwrap()).unwrap();
    writer.finish(&recording).unwrap();
}

#[test]
fn a_conversion_that_would_grow_without_bound_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let (long, json) = (folder.path().join("long.oomph"), folder.path().join("long.json"));
    with_one_long_stack(&long, 20_000, 2_000);
    assert!(long.metadata().unwrap().len() < 100_000);
    let convert = |file: &Path, out: &Path| {
        oomph(&["convert", &file.display().to_string(), "-o", &out.display().to_string()]).output().unwrap()
    };
    let refused = convert(&long, &json);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(2), "{said}");
    // 67 bytes a frame, and a comma.
    assert!(
        said.contains("as JSON this recording takes 2.53 GiB") && said.contains("or say --force"),
        "{said}"
    );
    assert!(!json.exists());
    assert_eq!(convert(&long, &folder.path().join("long.pickle")).status.code(), Some(0));
    // What is not large is written, and is as large as was said: stacks are nearly all of it.
    let short = folder.path().join("short.oomph");
    with_one_long_stack(&short, 100, 2_000);
    assert_eq!(convert(&short, &json).status.code(), Some(0));
    let recording = oomph_trace::read_path(&short).unwrap();
    let (said, is) =
        (oomph_trace::export::stacks_in_json(&recording).unwrap(), json.metadata().unwrap().len());
    assert!(said < is && is - said < 100 * 200, "{said} of {is}");
}

#[test]
fn the_name_of_a_file_cannot_turn_an_error_around() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("gpj.\u{202e}\u{1b}[31mexe.pickle");
    std::fs::write(&file, b"nothing").unwrap();
    for verb in ["explain", "replay", "convert"] {
        let mut command = oomph(&[verb, &file.display().to_string()]);
        if verb == "convert" {
            command.args(["-o", "out.oomph"]);
        }
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains("gpj.\u{fffd}\u{fffd}[31mexe.pickle: this is not"), "{said:?}");
    }
}

/// Exit code and stderr with a reader that has gone before anything is written.
fn unread(arguments: &[&str]) -> (Option<i32>, String) {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let child = oomph(arguments).stdout(writer).stderr(Stdio::piped()).spawn().unwrap();
    let output = child.wait_with_output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn a_reader_that_goes_away_changes_neither_the_exit_code_nor_what_is_said() {
    let verbs: [(&[&str], i32); 12] = [
        (&["explain", "leak_history8-cap4.0.pickle.xz"], 1),
        (&["explain", "--format", "json", "leak_history8-cap4.0.pickle.xz"], 1),
        (&["explain", "gpt24-bf16.pickle.xz"], 0),
        (&["explain", "mlp64.pickle.xz", "no-such-file.pickle"], 2),
        (&["check", "mlp64.pickle.xz", "--max-peak", "100MiB"], 1),
        (&["check", "mlp64.pickle.xz", "--max-peak", "150MB"], 0),
        (&["replay", "gpt24-bf16.pickle.xz", "--memory", "4.6GiB"], 1),
        (&["diff", "foreach.pickle.xz", "fused.pickle.xz"], 0),
        (&["rule", "OM303"], 0),
        (&["gpus"], 0),
        (&["convert", "mlp64.pickle.xz", "--to", "json", "-o", "-"], 0),
        (&["top", "--json-lines", "--interval", "1"], 0),
    ];
    for (arguments, code) in verbs {
        // It goes on until nobody reads it.
        let end: &[&str] = if arguments[0] == "top" { &["--count", "1"] } else { &[] };
        let output = oomph(arguments).args(end).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}", shown(output));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(unread(arguments), (Some(code), said), "{arguments:?}");
    }
}

#[test]
fn completions_and_manual_pages_are_made() {
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let output = oomph(&["completions", shell]).output().unwrap();
        assert_eq!(output.status.code(), Some(0));
        assert!(String::from_utf8_lossy(&output.stdout).contains("explain"), "{shell}");
    }
    let page = oomph(&["man"]).output().unwrap();
    assert!(String::from_utf8_lossy(&page.stdout).contains(".TH oomph"));
    let folder = tempfile::tempdir().unwrap();
    let written = oomph(&["man", "--folder", &folder.path().display().to_string()]).output().unwrap();
    assert_eq!(written.status.code(), Some(0));
    assert!(folder.path().join("oomph-explain.1").exists());
}

#[test]
fn colour_is_used_only_where_it_is_wanted() {
    let escapes = |command: &mut Command| command.output().unwrap().stdout.contains(&0x1b);
    assert!(!escapes(&mut oomph(&["explain", "plain.pickle.xz"])), "not on a pipe");
    assert!(escapes(&mut oomph(&["explain", "--color", "always", "plain.pickle.xz"])));
    assert!(!escapes(oomph(&["explain", "plain.pickle.xz"]).env("NO_COLOR", "1")));
    assert!(
        !escapes(&mut oomph(&["explain", "--color", "always", "--format", "json", "plain.pickle.xz"])),
        "JSON has none"
    );
}

#[test]
fn whatever_a_file_holds_a_page_is_whole_or_not_there() {
    let folder = tempfile::tempdir().unwrap();
    for directory in ["attacks", "fixtures/shapes"] {
        for entry in std::fs::read_dir(root().join(directory)).unwrap() {
            let file = entry.unwrap().path();
            let page = folder.path().join("page.html");
            let arguments = ["report", "-q", file.to_str().unwrap(), "-o", page.to_str().unwrap()];
            let output = oomph(&arguments).output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            match output.status.code() {
                Some(0) => {
                    let page = std::fs::read_to_string(&page).unwrap();
                    assert!(
                        page.ends_with("</html>\n") && page_data(&page)["schema"] == 1,
                        "{}",
                        file.display()
                    );
                }
                Some(2) => {
                    assert!(said.starts_with("error: ") && !page.exists(), "{}: {said}", file.display())
                }
                other => panic!("{}: {other:?}: {said}", file.display()),
            }
            let _ = std::fs::remove_file(&page);
        }
    }
}

/// A recording of RAM: one block of so many bytes, and what the kernel counted, if it did.
fn ram(folder: &Path, name: &str, asked: u64, counted: Option<u64>) -> PathBuf {
    use oomph_trace::{Action, How, Recording, Resident, format::Writer};
    let mut recording = Recording::default();
    let host = recording.host.get_or_insert_default();
    host.events.action.push(Action::Alloc);
    host.events.block.push(4096);
    host.events.size.push(asked);
    host.events.how.push(How::Large);
    host.events.stack.push(0);
    host.events.time.push(1_700_000_000_000_000);
    let time = 1_700_000_000_000_001;
    host.resident.extend(counted.map(|anonymous| Resident { time, anonymous, ..Resident::default() }));
    let mut writer = Writer::new(Vec::new()).unwrap();
    writer.append(&recording).unwrap();
    let path = folder.join(name);
    std::fs::write(&path, writer.finish(&recording).unwrap()).unwrap();
    path
}

#[test]
fn ram_is_held_against_a_limit_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let counted = ram(folder.path(), "counted.oomph", 100 << 20, Some(150 << 20));
    let asked = ram(folder.path(), "asked.oomph", 100 << 20, None);
    let (counted, asked) = (counted.to_str().unwrap(), asked.to_str().unwrap());
    let gpu = "mlp64.pickle.xz";
    for (arguments, code, said) in [
        (vec![counted, "--max-ram", "150MiB"], 0, "150 MiB of RAM at the peak, 0 B below"),
        (vec![counted, "--max-ram", "120MiB"], 1, "30.0 MiB above the limit 120 MiB"),
        (vec![asked, "--max-ram", "120MiB"], 0, "100 MiB of RAM asked for"),
        (vec![gpu, "--max-ram", "120MiB"], 2, "there is no RAM in this recording"),
        (vec![counted, "--max-peak", "1GiB"], 2, "there is no device in this recording"),
        // Each is held against what it has, and a limit that nothing has is no gate.
        (vec![gpu, counted, "--max-peak", "150MB", "--max-ram", "120MiB"], 1, "above the limit 120 MiB"),
        (vec![gpu, counted, "--max-peak", "100MiB", "--max-ram", "1GiB"], 1, "above the limit 100 MiB"),
        (vec![gpu, counted, "--max-peak", "150MB", "--max-ram", "1GiB"], 0, "of RAM at the peak"),
        (vec![gpu, "--max-peak", "150MB", "--max-ram", "1GiB"], 2, "no RAM in any"),
        (vec![counted, "--max-peak", "150MB", "--max-ram", "1GiB"], 2, "no device in any"),
    ] {
        let arguments: Vec<&str> = ["check"].into_iter().chain(arguments).collect();
        let shown = run(&arguments);
        assert!(
            shown.starts_with(&format!("exit {code}\n")) && shown.contains(said),
            "{arguments:?}: {shown}"
        );
    }
    let shown = run(&["check", counted, "--max-ram", "1GiB", "--format", "json"]);
    assert!(shown.contains("\"metric\": \"ram\"") && shown.contains("\"peak\": 157286400"), "{shown}");
}

#[test]
fn ram_is_compared_with_ram_only() {
    let folder = tempfile::tempdir().unwrap();
    let before = ram(folder.path(), "before.oomph", 100 << 20, Some(150 << 20));
    let after = ram(folder.path(), "after.oomph", 300 << 20, Some(340 << 20));
    let (before, after) = (before.to_str().unwrap(), after.to_str().unwrap());
    let shown = run(&["diff", before, after]);
    assert!(shown.contains("+200 MiB") && shown.contains("+190 MiB"), "{shown}");
    assert!(run(&["diff", before, "mlp64.pickle.xz"]).contains("compare two of one kind"));
}
