#!/bin/sh
# Fills the fuzzer's corpus from the fixtures and attacks: small files as they are, compressed ones unpacked.
set -eu
cd "$(dirname "$0")/.."
corpus=fuzz/corpus/any_bytes_are_read_or_refused
mkdir -p "$corpus"
for file in fixtures/h200/*.pickle.xz; do
    name=$(basename "$file" .xz)
    xz -dc "$file" > "$corpus/$name"
    # Whole recordings teach the fuzzer the shape, beginnings let it change things quickly.
    head -c 20000 "$corpus/$name" > "$corpus/$name.head"
    [ "$(wc -c < "$corpus/$name")" -lt 120000 ] || rm "$corpus/$name"
done
# The large attacks too: their beginnings, which are read as files that were cut off.
made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
python3 attacks/make.py "$made"
for file in fixtures/shapes/*.pickle fixtures/shapes/*.json fixtures/shapes/*.html fixtures/shapes/*.gz fixtures/shapes/*.zst "$made"/*; do
    if [ -f "$file" ]; then head -c 60000 "$file" > "$corpus/$(basename "$file")"; fi
done
target/release/oomph convert fixtures/h200/mlp64.pickle.xz -o "$corpus/mlp64.oomph" --force -q 2>/dev/null || true
echo "$(ls "$corpus" | wc -l) seeds"

tables=fuzz/corpus/any_table_is_profiled_or_refused
mkdir -p "$tables"
printf 'id,price,name,day\n1,2.50,"a ""b"", c",2024-02-29\n007,-0,NA,\n3,1e400,"x\ny",2024-13-01\n' > "$tables/quoted.csv"
printf 'a\tb\tc\r\n1\t2024-01-01 10:00:00.5\ttrue\r\n2\t2024-01-01 10:00:01\tfalse\r\n' > "$tables/times.tsv"
printf '{"a": 18446744073709551615, "b": [1, {"c": "\\u00e9"}]}\n{"b": "x", "d": null}\n' > "$tables/lines.jsonl"
