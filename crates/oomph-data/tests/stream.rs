//! Streams beside a plain read of the same files: no row lost, repeated or out of order, whatever the sizes.

#![allow(clippy::unwrap_used, clippy::panic)] // a test fails by panicking

use arrow_array::cast::AsArray;
use arrow_array::types::{Float64Type, Int64Type};
use arrow_array::{Array, ArrayRef, Float64Array, Int64Array, RecordBatch, StringArray};
use arrow_ipc::writer::{FileWriter, StreamWriter};
use oomph_data::OnError;
use oomph_data::stream::{Stream, StreamOptions};
use parquet::arrow::ArrowWriter;
use parquet::file::properties::WriterProperties;
use proptest::prelude::*;
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;

const ROWS: i64 = 20_000;

/// Text with what trips a cutter: quotes, newlines and delimiters inside of cells.
fn words(row: i64) -> String {
    match row % 5 {
        0 => format!("plain {row}"),
        1 => format!("a \"quoted\" {row}"),
        2 => format!("two\nlines, {row}"),
        3 => "x".repeat(row as usize % 300),
        _ => "\n\"\n".to_owned(),
    }
}

fn batch(from: i64, to: i64) -> RecordBatch {
    let numbers = Int64Array::from_iter_values(from..to);
    let halves = Float64Array::from_iter((from..to).map(|row| (row % 11 != 0).then_some(row as f64 / 2.0)));
    let texts = StringArray::from_iter_values((from..to).map(words));
    let columns: [(&str, ArrayRef); 3] =
        [("number", Arc::new(numbers)), ("half", Arc::new(halves)), ("words", Arc::new(texts))];
    RecordBatch::try_from_iter(columns).unwrap()
}

fn csv(from: i64, to: i64) -> String {
    let mut text = "number,half,words\n".to_owned();
    for row in from..to {
        let half = if row % 11 == 0 { String::new() } else { format!("{:?}", row as f64 / 2.0) };
        writeln!(text, "{row},{half},\"{}\"", words(row).replace('"', "\"\"")).unwrap();
    }
    text
}

fn json_lines(from: i64, to: i64) -> String {
    let mut text = String::new();
    for row in from..to {
        let half = if row % 11 == 0 { "null".to_owned() } else { format!("{:?}", row as f64 / 2.0) };
        let words = serde_json::to_string(&words(row)).unwrap();
        writeln!(text, "{{\"number\": {row}, \"half\": {half}, \"words\": {words}}}").unwrap();
    }
    text
}

fn gzip(text: &str) -> Vec<u8> {
    // Two members, one after the other, as `cat a.gz b.gz` makes them.
    let (first, second) = text.as_bytes().split_at(text.len() / 2);
    let mut bytes = Vec::new();
    for part in [first, second] {
        let mut writer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        writer.write_all(part).unwrap();
        bytes.extend(writer.finish().unwrap());
    }
    bytes
}

/// The same 20,000 rows in two files of every format.
fn make(folder: &Path) {
    for (number, (from, to)) in [(0, 13_000), (13_000, ROWS)].into_iter().enumerate() {
        let batches: Vec<RecordBatch> =
            (from..to).step_by(1_000).map(|row| batch(row, (row + 1_000).min(to))).collect();
        let schema = batches[0].schema();
        let properties = WriterProperties::builder().set_max_row_group_row_count(Some(3_000)).build();
        let mut parquet = ArrowWriter::try_new(Vec::new(), schema.clone(), Some(properties)).unwrap();
        let mut file = FileWriter::try_new(Vec::new(), &schema).unwrap();
        let mut stream = StreamWriter::try_new(Vec::new(), &schema).unwrap();
        for batch in &batches {
            parquet.write(batch).unwrap();
            file.write(batch).unwrap();
            stream.write(batch).unwrap();
        }
        let write =
            |ending: &str, bytes: &[u8]| fs::write(folder.join(format!("{number}.{ending}")), bytes).unwrap();
        write("parquet", &parquet.into_inner().unwrap());
        write("arrow", &file.into_inner().unwrap());
        write("arrows", &stream.into_inner().unwrap());
        write("csv", csv(from, to).as_bytes());
        write("csv.gz", &gzip(&csv(from, to)));
        write("csv.zst", &zstd::encode_all(csv(from, to).as_bytes(), 1).unwrap());
        write("jsonl", json_lines(from, to).as_bytes());
    }
}

const FORMATS: [&str; 7] = ["parquet", "arrow", "arrows", "csv", "csv.gz", "csv.zst", "jsonl"];

fn folder() -> &'static Path {
    static FOLDER: std::sync::OnceLock<tempfile::TempDir> = std::sync::OnceLock::new();
    FOLDER
        .get_or_init(|| {
            let folder = tempfile::tempdir().unwrap();
            make(folder.path());
            folder
        })
        .path()
}

fn inputs(format: &str) -> Vec<String> {
    vec![format!("{}/[01].{format}", folder().display())]
}

/// The numbers of the rows of a batch, once every other cell has been held against them.
fn rows_of(batch: &RecordBatch) -> Vec<i64> {
    let numbers = batch.column_by_name("number").unwrap().as_primitive::<Int64Type>();
    let halves = batch.column_by_name("half").unwrap().as_primitive::<Float64Type>();
    let texts = batch.column_by_name("words").unwrap().as_string::<i32>();
    for (place, &row) in numbers.values().iter().enumerate() {
        let half = halves.is_valid(place).then(|| halves.value(place));
        assert_eq!(half, (row % 11 != 0).then_some(row as f64 / 2.0));
        assert_eq!(texts.value(place), words(row));
    }
    numbers.values().to_vec()
}

fn read(stream: &mut Stream) -> Vec<Vec<i64>> {
    std::iter::from_fn(|| stream.next_batch().unwrap()).map(|batch| rows_of(&batch)).collect()
}

fn options() -> StreamOptions {
    StreamOptions { batch_rows: 777, budget: 2 << 20, ..StreamOptions::default() }
}

#[test]
fn rows_come_in_the_order_of_the_files() {
    for format in FORMATS {
        for (batch_rows, budget) in [(1, 4 << 20), (777, 2 << 20), (4_096, 16 << 20), (100_000, 64 << 20)] {
            let options = StreamOptions { batch_rows, budget, ..options() };
            let mut stream = Stream::open(&inputs(format), options).unwrap();
            let batches = read(&mut stream);
            assert!(batches[..batches.len() - 1].iter().all(|batch| batch.len() == batch_rows), "{format}");
            assert_eq!(batches.concat(), (0..ROWS).collect::<Vec<_>>(), "{format} {batch_rows}");
            let progress = stream.progress();
            assert!(progress.peak <= budget, "{format}: {progress:?}");
            assert_eq!((progress.rows, progress.batches), (ROWS as u64, batches.len() as u64));
        }
    }
}

#[test]
fn columns_come_in_the_order_they_are_asked_for() {
    for format in FORMATS {
        let columns = Some(vec!["words".to_owned(), "number".to_owned()]);
        let mut stream = Stream::open(&inputs(format), StreamOptions { columns, ..options() }).unwrap();
        let names: Vec<String> = stream.schema().fields().iter().map(|field| field.name().clone()).collect();
        assert_eq!(names, ["words", "number"]);
        let batch = stream.next_batch().unwrap().unwrap();
        assert_eq!(batch.schema().fields().len(), 2);
        assert_eq!(batch.column(0).as_string::<i32>().value(7), words(7));
        let missing = StreamOptions { columns: Some(vec!["nobody".to_owned()]), ..options() };
        assert!(Stream::open(&inputs(format), missing).err().unwrap().to_string().contains("nobody"));
    }
}

#[test]
fn a_shuffle_is_the_same_for_the_same_seed_and_another_for_another() {
    for format in FORMATS {
        let order = |shuffle, epoch| {
            let mut stream =
                Stream::open(&inputs(format), StreamOptions { shuffle, epoch, ..options() }).unwrap();
            let rows = read(&mut stream).concat();
            assert!(stream.progress().peak <= 2 << 20, "{format}: {:?}", stream.progress());
            rows
        };
        let first = order(Some(1), 0);
        assert_eq!(first, order(Some(1), 0), "{format}");
        assert_ne!(first, order(Some(2), 0), "{format}");
        assert_ne!(first, order(Some(1), 1), "{format}");
        let mut sorted = first.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..ROWS).collect::<Vec<_>>(), "{format}");
        // Neighbours are torn apart.
        let neighbours = first.windows(2).filter(|pair| pair[1] == pair[0] + 1).count();
        assert!(neighbours < ROWS as usize / 50, "{format}: {neighbours}");
    }
}

#[test]
fn equal_ranks_hand_out_equally_many_batches() {
    for format in FORMATS {
        for shuffle in [None, Some(3)] {
            let mut counts = Vec::new();
            let mut all = Vec::new();
            for rank in 0..3 {
                let options =
                    StreamOptions { rank, world: 3, equal: true, shuffle, batch_rows: 100, ..options() };
                let batches = read(&mut Stream::open(&inputs(format), options).unwrap());
                assert!(batches.iter().all(|batch| batch.len() == 100));
                counts.push(batches.len());
                all.extend(batches.concat());
            }
            assert!(
                counts.iter().all(|&count| count == counts[0] && count > 40),
                "{format} {shuffle:?} {counts:?}"
            );
            let length = all.len();
            all.sort_unstable();
            all.dedup();
            assert_eq!(all.len(), length);
        }
    }
}

#[test]
fn the_last_batch_can_be_dropped() {
    let mut stream =
        Stream::open(&inputs("parquet"), StreamOptions { drop_last: true, ..options() }).unwrap();
    let batches = read(&mut stream);
    assert_eq!(batches.len(), ROWS as usize / 777);
    assert!(batches.iter().all(|batch| batch.len() == 777));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    /// Over all ranks every row comes once; a stream that is left and resumed gives the rest.
    #[test]
    fn shards_and_resumed_streams_lose_and_repeat_nothing(
        format in prop::sample::select(&FORMATS[..]),
        batch_rows in 1usize..3_000,
        budget in (3u64 << 20)..(24 << 20),
        world in 1usize..5,
        shuffle in prop::option::of(0u64..100),
        left_after in 0usize..12,
    ) {
        let mut all = Vec::new();
        for rank in 0..world {
            let options = StreamOptions { batch_rows, budget, rank, world, shuffle, ..StreamOptions::default() };
            let mut whole = Stream::open(&inputs(format), options.clone()).unwrap();
            let batches = read(&mut whole);
            prop_assert!(whole.progress().peak <= budget);
            all.extend(batches.concat());

            let mut left = Stream::open(&inputs(format), options.clone()).unwrap();
            for batch in batches.iter().take(left_after) {
                prop_assert_eq!(&rows_of(&left.next_batch().unwrap().unwrap()), batch);
            }
            let token = left.token();
            drop(left);
            let resume = Some(token.parse().unwrap());
            let mut resumed = Stream::open(&inputs(format), StreamOptions { resume, ..options.clone() }).unwrap();
            prop_assert_eq!(&read(&mut resumed)[..], &batches[left_after.min(batches.len())..]);
            let at_the_end = Some(resumed.token().parse().unwrap());
            let mut nothing = Stream::open(&inputs(format), StreamOptions { resume: at_the_end, ..options }).unwrap();
            prop_assert!(nothing.next_batch().unwrap().is_none());
        }
        all.sort_unstable();
        prop_assert_eq!(all, (0..ROWS).collect::<Vec<_>>());
    }
}

#[test]
fn a_token_of_another_stream_is_refused_in_words() {
    let mut stream = Stream::open(&inputs("csv"), StreamOptions { shuffle: Some(1), ..options() }).unwrap();
    stream.next_batch().unwrap();
    let token = stream.token();
    let refusal = |inputs: &[String], other: StreamOptions| {
        let resume = Some(token.parse().unwrap());
        Stream::open(inputs, StreamOptions { resume, ..other }).err().unwrap().to_string()
    };
    let same = StreamOptions { shuffle: Some(1), ..options() };
    assert!(refusal(&inputs("csv"), StreamOptions { shuffle: Some(2), ..same.clone() }).contains("seed"));
    assert!(refusal(&inputs("csv"), StreamOptions { epoch: 1, ..same.clone() }).contains("epoch"));
    assert!(refusal(&inputs("csv"), StreamOptions { world: 2, ..same.clone() }).contains("world"));
    assert!(refusal(&inputs("csv"), StreamOptions { budget: 3 << 20, ..same.clone() }).contains("budget"));
    assert!(refusal(&inputs("jsonl"), same).contains("inputs"));
    assert!(!token.contains(folder().to_str().unwrap()), "{token}");
    for wrong in ["", "{}", "[1]", "{\"oomph_stream\": 2}", "{\"oomph_stream\": 1}"] {
        assert!(wrong.parse::<oomph_data::stream::Token>().is_err());
    }
}

#[test]
fn a_token_of_a_place_that_is_not_there_is_refused() {
    for format in FORMATS {
        for shuffle in [None, Some(1)] {
            let options = StreamOptions { shuffle, ..options() };
            let mut stream = Stream::open(&inputs(format), options.clone()).unwrap();
            for _ in 0..9 {
                stream.next_batch().unwrap();
            }
            let token: serde_json::Value = serde_json::from_str(&stream.token()).unwrap();
            let resumed = |place: &str, value: u64| {
                let mut token = token.clone();
                *token.pointer_mut(&format!("/place/{place}"))? = value.into();
                let resume = Some(token.to_string().parse().unwrap());
                Some(Stream::open(&inputs(format), StreamOptions { resume, ..options.clone() }))
            };
            let counters =
                ["piece", "slab", "rows", "batches", "text/file", "text/offset", "text/line", "text/number"];
            for counter in counters {
                for value in [u64::MAX, i64::MAX as u64] {
                    let Some(refused) = resumed(counter, value) else { continue };
                    let error = refused.err().unwrap().to_string();
                    assert!(
                        error.contains("names a place that it does not have"),
                        "{format} {counter}: {error}"
                    );
                }
                // What no check can see may give other rows or an error, and never a panic or an end that does not come.
                let Some(Ok(mut elsewhere)) = resumed(counter, 1 << 62) else { continue };
                while let Ok(Some(_)) = elsewhere.next_batch() {}
            }
        }
    }
}

#[test]
fn a_budget_that_is_too_small_names_one_that_works() {
    for format in FORMATS {
        for shuffle in [None, Some(1)] {
            let open = |budget| {
                let mut stream = Stream::open(
                    &inputs(format),
                    StreamOptions { batch_rows: 15_000, budget, shuffle, ..options() },
                )?;
                let mut rows = 0;
                while let Some(batch) = stream.next_batch()? {
                    rows += batch.num_rows();
                }
                Ok::<_, oomph_data::DataError>((rows, stream.progress().peak))
            };
            let error = open(2 << 20).unwrap_err().to_string();
            let (_, named) = error.split_once("a budget of at least ").unwrap();
            let named: u64 = named.split(' ').next().unwrap().parse().unwrap();
            let (rows, peak) =
                open(named << 20).unwrap_or_else(|error| panic!("{format} {shuffle:?} {named}: {error}"));
            assert_eq!(rows, ROWS as usize);
            assert!(peak <= named << 20);
        }
    }
    assert!(Stream::open(&inputs("csv"), StreamOptions { budget: 1000, ..options() }).is_err());
}

#[test]
fn broken_rows_are_named_or_left_out_and_counted_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("broken.csv");
    let mut text = "number,half,words\n".to_owned();
    for row in 0..5_000 {
        match row % 1000 {
            500 => writeln!(text, "{row},too,many,cells").unwrap(),
            _ => writeln!(text, "{row},{:?},w", row as f64).unwrap(),
        }
    }
    fs::write(&path, text).unwrap();
    let inputs = [path.to_str().unwrap().to_owned()];
    let mut failing = Stream::open(&inputs, options()).unwrap();
    let error = std::iter::from_fn(|| failing.next_batch().transpose()).find_map(Result::err).unwrap();
    assert!(error.to_string().contains("line 502"), "{error}");
    assert!(failing.next_batch().unwrap_err().to_string().contains("has ended with an error"));
    for shuffle in [None, Some(1)] {
        let (mut rows, mut broken) = (0, 0);
        for rank in 0..2 {
            let skipping = StreamOptions { on_error: OnError::Skip, rank, world: 2, shuffle, ..options() };
            let mut stream = Stream::open(&inputs, skipping).unwrap();
            while let Some(batch) = stream.next_batch().unwrap() {
                rows += batch.num_rows();
            }
            broken += stream.broken_rows().count;
        }
        assert_eq!((rows, broken), (4_995, 5));
    }
}

#[test]
fn an_input_that_differs_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
    write("0.csv", "a,b\n1,2\n");
    write("1.csv", "a,c\n1,2\n");
    let inputs = [format!("{}/*.csv", folder.path().display())];
    let mut stream = Stream::open(&inputs, options()).unwrap();
    let error =
        std::iter::from_fn(|| stream.next_batch().transpose()).find_map(Result::err).unwrap().to_string();
    assert!(error.contains("1.csv: has another header"), "{error}");
}

#[test]
fn a_stream_that_is_dropped_ends_its_threads() {
    let threads = || {
        fs::read_dir("/proc/self/task")
            .unwrap()
            .filter_map(|task| fs::read_to_string(task.ok()?.path().join("comm")).ok())
            .filter(|name| name.starts_with("oomph-stream"))
            .count()
    };
    // Other tests run beside this one: its own threads are those that go.
    for _ in 0..50 {
        let mut stream = Stream::open(&inputs("parquet"), options()).unwrap();
        stream.next_batch().unwrap();
    }
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while threads() > 40 {
        assert!(std::time::Instant::now() < deadline, "{} threads are left", threads());
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

#[test]
fn a_wait_for_a_batch_can_be_ended_from_another_thread() {
    let mut stream = Stream::open(&inputs("csv"), options()).unwrap();
    stream.next_batch().unwrap();
    let stopper = stream.stopper();
    std::thread::spawn(move || stopper.stop()).join().unwrap();
    let error = std::iter::from_fn(|| stream.next_batch().transpose()).find_map(Result::err).unwrap();
    assert!(matches!(error, oomph_data::DataError::Stopped), "{error}");
}

/// A line of this process's status, in bytes.
fn status(name: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(name)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

/// The most that this process has had in memory.
fn peak() -> u64 {
    status("VmHWM:")
}

/// From here on the kernel gives this process no more than so many bytes of its own: what asks for them anyway fails.
fn allow(bytes: u64) {
    let limit = Some(status("VmData:") + bytes);
    let limit = rustix::process::Rlimit { current: limit, maximum: limit };
    rustix::process::setrlimit(rustix::process::Resource::Data, limit).unwrap();
}

const LARGE: &str = "OOMPH_TEST_LARGE_INPUT";

/// Runs in a process of its own, which `a_file_ten_times_the_budget_stays_within_it` starts.
#[test]
fn child_that_streams_a_large_file() {
    let Ok(input) = std::env::var(LARGE) else { return };
    allow((16 + 100) << 20);
    for shuffle in [None, Some(1)] {
        let mut stream = Stream::open(
            std::slice::from_ref(&input),
            StreamOptions { budget: 16 << 20, batch_rows: 1024, shuffle, ..options() },
        )
        .unwrap();
        let mut sum = 0i64;
        while let Some(batch) = stream.next_batch().unwrap() {
            sum = sum.wrapping_add(batch.column(0).as_primitive::<Int64Type>().values().iter().sum::<i64>());
        }
        println!("sum {sum} peak {} rows {}", peak(), stream.progress().rows);
    }
}

#[test]
fn a_file_ten_times_the_budget_stays_within_it() {
    const BLOCKS: i64 = 40;
    const ROWS_OF_BLOCK: i64 = 60_000;
    let folder = tempfile::tempdir().unwrap();
    let number = |row: i64| row.wrapping_mul(0x5851_f42d_4c95_7f2d) >> 8;
    let (csv, table) = (folder.path().join("large.csv"), folder.path().join("large.parquet"));
    let mut text = String::new();
    for row in 0..ROWS_OF_BLOCK {
        writeln!(text, "{},{},{:?},text {row}", number(row), row, number(row) as f64 / 1e9).unwrap();
    }
    let mut file = fs::File::create(&csv).unwrap();
    file.write_all(b"a,b,c,d\n").unwrap();
    let numbers = Int64Array::from_iter_values((0..ROWS_OF_BLOCK).map(number));
    let floats = Float64Array::from_iter_values((0..ROWS_OF_BLOCK).map(|row| number(row) as f64));
    let texts = StringArray::from_iter_values(
        (0..ROWS_OF_BLOCK).map(|row| format!("a longer text {row}, and then some")),
    );
    let columns: [(&str, ArrayRef); 3] =
        [("a", Arc::new(numbers)), ("b", Arc::new(floats)), ("c", Arc::new(texts))];
    let block = RecordBatch::try_from_iter(columns).unwrap();
    let mut writer = ArrowWriter::try_new(fs::File::create(&table).unwrap(), block.schema(), None).unwrap();
    for _ in 0..BLOCKS {
        file.write_all(text.as_bytes()).unwrap();
        writer.write(&block).unwrap();
    }
    writer.close().unwrap();
    assert!(fs::metadata(&csv).unwrap().len() > 100 << 20);
    let sum = (0..ROWS_OF_BLOCK).map(number).sum::<i64>().wrapping_mul(BLOCKS);
    for input in [csv, table] {
        let child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child_that_streams_a_large_file", "--nocapture", "--test-threads=1"])
            .env(LARGE, &input)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&child.stdout).into_owned();
        assert!(child.status.success(), "{said}{}", String::from_utf8_lossy(&child.stderr));
        let lines: Vec<Vec<&str>> = said
            .lines()
            .filter(|line| line.contains("sum "))
            .map(|line| line.split_whitespace().collect())
            .collect();
        assert_eq!(lines.len(), 2, "{said}");
        for line in &lines {
            let value = |name: &str| {
                line[line.iter().position(|word| *word == name).unwrap() + 1].parse::<i64>().unwrap()
            };
            assert_eq!((value("sum"), value("rows")), (sum, BLOCKS * ROWS_OF_BLOCK));
            assert!(value("peak") < (16 + 100) << 20, "{} MiB for {}", value("peak") >> 20, input.display());
        }
        println!("{}: {lines:?}", input.display());
    }
}

fn location(folder: &Path, name: &str) -> Vec<String> {
    vec![folder.join(name).to_str().unwrap().to_owned()]
}

#[test]
fn short_files_are_not_read_as_if_they_were_long() {
    let folder = tempfile::tempdir().unwrap();
    for number in 0..100 {
        fs::write(folder.path().join(format!("{number:03}.csv")), format!("a,b\n{number},x\n")).unwrap();
    }
    let begin = std::time::Instant::now();
    let large = StreamOptions { budget: 4 << 30, ..options() };
    let mut stream = Stream::open(&location(folder.path(), "*.csv"), large).unwrap();
    let batch = stream.next_batch().unwrap().unwrap();
    assert_eq!(batch.column(0).as_primitive::<Int64Type>().values(), &(0..100).collect::<Vec<i64>>()[..]);
    // It was half a minute when every header was looked for in 64 MiB.
    assert!(begin.elapsed() < std::time::Duration::from_secs(8), "{:?}", begin.elapsed());
}

#[test]
fn a_header_may_be_longer_than_what_is_read_first() {
    let folder = tempfile::tempdir().unwrap();
    let long = |last: &str| format!("\"{}\n\",{last}\n", "n".repeat(200_000));
    for (number, last) in ["b", "b", "c"].into_iter().enumerate() {
        fs::write(folder.path().join(format!("{number}.csv")), format!("{}{number},7\n", long(last)))
            .unwrap();
    }
    let options = StreamOptions { batch_rows: 2, budget: 8 << 20, ..options() };
    let mut stream = Stream::open(&location(folder.path(), "*.csv"), options).unwrap();
    let batch = stream.next_batch().unwrap().unwrap();
    assert_eq!(batch.column(0).as_primitive::<Int64Type>().values(), &[0, 1]);
    assert_eq!(batch.schema().field(0).name().len(), 200_001);
    let error = stream.next_batch().unwrap_err().to_string();
    assert!(error.contains("2.csv: has another header"), "{error}");
}

fn write_parquet(path: &Path, batch: &RecordBatch) {
    let properties = WriterProperties::builder()
        .set_dictionary_enabled(false)
        .set_statistics_enabled(parquet::file::properties::EnabledStatistics::None)
        .build();
    let file = fs::File::create(path).unwrap();
    let mut writer = ArrowWriter::try_new(file, batch.schema(), Some(properties)).unwrap();
    writer.write(batch).unwrap();
    writer.close().unwrap();
}

#[test]
fn many_columns_take_no_longer_each() {
    const COLUMNS: i64 = 20_000;
    let folder = tempfile::tempdir().unwrap();
    let columns = (0..COLUMNS).map(|column| {
        let cells: ArrayRef = Arc::new(Int64Array::from(vec![column, -column]));
        (format!("column {column}"), cells)
    });
    let wide = RecordBatch::try_from_iter(columns).unwrap();
    for name in ["0.parquet", "1.parquet"] {
        write_parquet(&folder.path().join(name), &wide);
    }
    let begin = std::time::Instant::now();
    let budget = 256 << 20;
    let inputs = location(folder.path(), "*.parquet");
    let mut stream = Stream::open(&inputs, StreamOptions { budget, ..options() }).unwrap();
    let batch = stream.next_batch().unwrap().unwrap();
    assert_eq!((batch.num_rows(), batch.num_columns()), (4, COLUMNS as usize));
    for (column, cells) in (0..COLUMNS).zip(batch.columns()) {
        assert_eq!(cells.as_primitive::<Int64Type>().values(), &[column, -column, column, -column]);
    }
    assert!(begin.elapsed() < std::time::Duration::from_secs(20), "{:?}", begin.elapsed());
}

#[test]
fn a_name_that_stands_for_two_columns_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let cells = |first: i64| -> ArrayRef { Arc::new(Int64Array::from_iter_values(first..first + 3)) };
    let twice = RecordBatch::try_from_iter([("x", cells(0)), ("y", cells(10)), ("y", cells(20))]).unwrap();
    write_parquet(&folder.path().join("twice.parquet"), &twice);
    let inputs = location(folder.path(), "twice.parquet");
    let open = |columns: Option<&[&str]>| {
        let columns = columns.map(|names| names.iter().map(|&name| name.to_owned()).collect());
        Stream::open(&inputs, StreamOptions { columns, ..options() })
    };
    let error = |columns| open(columns).err().unwrap().to_string();
    assert!(error(None).contains("two columns named \"y\""), "{}", error(None));
    assert!(error(Some(&["y"])).contains("two columns named \"y\""));
    assert!(error(Some(&["x", "x"])).contains("\"x\" is asked for twice"));
    let batch = open(Some(&["x"])).unwrap().next_batch().unwrap().unwrap();
    assert_eq!(batch.column(0).as_primitive::<Int64Type>().values(), &[0, 1, 2]);
}

#[test]
fn pages_of_many_columns_count_in_the_budget() {
    const ROWS: i64 = 4_000;
    const COLUMNS: i64 = 800;
    let folder = tempfile::tempdir().unwrap();
    let cell = |column: i64, row: i64| (row * COLUMNS + column).wrapping_mul(0x5851_f42d_4c95_7f2d);
    let columns = (0..COLUMNS).map(|column| {
        let cells: ArrayRef = Arc::new(Int64Array::from_iter_values((0..ROWS).map(|row| cell(column, row))));
        (format!("column {column}"), cells)
    });
    write_parquet(&folder.path().join("wide.parquet"), &RecordBatch::try_from_iter(columns).unwrap());
    let inputs = location(folder.path(), "wide.parquet");
    let read = |budget: u64, columns: Option<Vec<String>>| {
        let mut stream =
            Stream::open(&inputs, StreamOptions { batch_rows: 100, budget, columns, ..options() })?;
        let (mut sum, mut rows) = (0i64, 0);
        while let Some(batch) = stream.next_batch()? {
            let of = |cells: &ArrayRef| {
                cells.as_primitive::<Int64Type>().values().iter().fold(0, |sum: i64, &c| sum.wrapping_add(c))
            };
            sum = batch.columns().iter().map(of).fold(sum, i64::wrapping_add);
            rows += batch.num_rows();
        }
        Ok::<_, oomph_data::DataError>((sum, rows))
    };
    let sum_of = |columns: i64| {
        (0..columns).flat_map(|column| (0..ROWS).map(move |row| cell(column, row))).fold(0, i64::wrapping_add)
    };
    // 800 pages of 32,000 bytes.
    let error = read(32 << 20, None).unwrap_err().to_string();
    assert!(error.contains("a page of each column takes 25 MiB"), "{error}");
    let (_, named) = error.split_once("a budget of at least ").unwrap();
    let named: u64 = named.split(' ').next().unwrap().parse().unwrap();
    assert!((49..=55).contains(&named), "{error}");
    assert_eq!(read(named << 20, None).unwrap(), (sum_of(COLUMNS), ROWS as usize));
    let few = (0..100).map(|column| format!("column {column}")).collect();
    assert_eq!(read(32 << 20, Some(few)).unwrap(), (sum_of(100), ROWS as usize));
}

#[test]
fn an_input_in_another_format_is_named() {
    let folder = tempfile::tempdir().unwrap();
    fs::copy(self::folder().join("0.parquet"), folder.path().join("0.parquet")).unwrap();
    fs::write(folder.path().join("1.parquet"), "number,half,words\n1,2,x\n").unwrap();
    let error = Stream::open(&location(folder.path(), "*.parquet"), options()).err().unwrap().to_string();
    assert!(error.contains("1.parquet: is in another format than the first input"), "{error}");
}
