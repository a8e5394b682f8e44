//! Any bytes that are text or arrays are profiled and loaded, or refused: no panic, no endless loop, and what the second
//! pass loads is what the first one said.
//!
//! Parquet and Arrow IPC are left out: where their decoders panic, oomph catches it, which the fuzzer does not allow.

#![no_main]

use libfuzzer_sys::fuzz_target;
use oomph_data::arrays::{self, Arrays, ShrinkOptions};
use oomph_data::input::{Input, Options};
use oomph_data::load::{Data, load};
use oomph_data::source::{Compression, Format, memory, recognise};
use oomph_data::text::TextOverrides;
use oomph_data::{OnError, Unobserved, profile};

fuzz_target!(|bytes: &[u8]| {
    let source = memory("fuzz.csv", bytes.to_vec());
    let Ok((format, compression)) = recognise(source.as_ref()) else { return };
    match format {
        Format::Parquet | Format::ArrowFile | Format::ArrowStream => {}
        Format::Npy | Format::Npz => {
            if let Ok(Arrays::One(array)) = arrays::open(source) {
                let _ = arrays::shrink_array(&array, &ShrinkOptions::default(), &Unobserved);
            }
        }
        Format::Csv { .. } | Format::JsonLines => {
            // What unpacks to more than memory is for the one who packed it to try.
            if compression != Compression::None {
                return;
            }
            let Ok(input) = Input::of(source, format, compression, &TextOverrides::default()) else { return };
            let options = Options { on_error: OnError::Skip, threads: 1, ..Options::default() };
            let Ok(profiled) = profile::of(&input, &options, &Unobserved) else { return };
            let loaded = load(&input, &profiled, &options, &Unobserved).expect("what was profiled is loaded");
            if let Data::Table(batch) = loaded.data {
                assert_eq!(batch.num_rows() as u64, profiled.profile.rows);
            }
        }
    }
});
