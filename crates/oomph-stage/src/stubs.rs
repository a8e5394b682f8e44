//! Stub libraries, made from what is installed.
//!
//! A stub library exports functions that count their calls and succeed (`0` is success in every NVIDIA library). Its
//! names are those of the NVIDIA libraries that are installed, less those that `oomph-cuda` answers and those that need
//! no device; so any version of PyTorch finds what it asks for, and a result can say what was called.
//!
//! The file is a plain ELF shared object for x86-64, written here: a code page of stubs, tables, and counters.

use object::read::elf::{ElfFile64, Sym};
use object::{Endianness, elf};
use std::collections::BTreeSet;
use std::path::Path;

/// What a library exports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exports {
    /// Functions.
    pub functions: BTreeSet<String>,
}

/// What is wrong with a library.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {problem}")]
pub struct LibraryError {
    path: String,
    problem: String,
}

/// Reads what a library exports, without loading it.
pub fn exports(path: &Path) -> Result<Exports, LibraryError> {
    let wrong = |problem: String| LibraryError { path: path.display().to_string(), problem };
    let file = std::fs::File::open(path).map_err(|error| wrong(error.to_string()))?;
    // Libraries of hundreds of megabytes, of which a few pages are read.
    let bytes = object::read::ReadCache::new(file);
    let elf = ElfFile64::<Endianness, _>::parse(&bytes).map_err(|error| wrong(error.to_string()))?;
    read_exports(&elf).map_err(|error| wrong(error.to_string()))
}

fn read_exports<'data, R: object::ReadRef<'data>>(
    elf: &ElfFile64<'data, Endianness, R>,
) -> object::Result<Exports> {
    let endian = elf.endian();
    let mut exports = Exports::default();
    let symbols = elf.elf_dynamic_symbol_table();
    for symbol in symbols.iter() {
        let kind = symbol.st_type();
        if symbol.st_shndx(endian) != elf::SHN_UNDEF
            && matches!(kind, elf::STT_FUNC | elf::STT_GNU_IFUNC)
            && matches!(symbol.st_bind(), elf::STB_GLOBAL | elf::STB_WEAK)
            && let Ok(name) = std::str::from_utf8(symbol.name(endian, symbols.strings())?)
        {
            exports.functions.insert(name.to_string());
        }
    }
    Ok(exports)
}

/// A stub library to be written.
#[derive(Clone, Debug)]
pub struct StubLibrary<'a> {
    /// The name by which programs ask for it.
    pub soname: &'a str,
    /// Libraries that are searched after it.
    pub needs: &'a [&'a str],
    /// The version that its symbols have, where programs ask for one.
    pub version: Option<&'a str>,
    /// Its functions.
    pub functions: &'a BTreeSet<String>,
}

/// `lock inc qword [rip + counter]; xor eax, eax; ret`, padded.
const STUB_SIZE: usize = 16;
const PAGE: usize = 4096;
/// The data symbols by which `oomph-cuda` reads the counters.
const COUNT: &str = "oomph_stub_count";
const COUNTERS: &str = "oomph_stub_counters";
const NAMES: &str = "oomph_stub_names";

impl StubLibrary<'_> {
    /// The file's bytes.
    pub fn build(&self) -> Vec<u8> {
        let functions: Vec<&str> = self.functions.iter().map(String::as_str).collect();
        let count = functions.len();

        // Strings: the dynamic string table, and the stubs' names once more, in order, for reports.
        let mut strings = vec![0u8];
        let mut string = |text: &str| {
            let at = strings.len() as u64;
            strings.extend_from_slice(text.as_bytes());
            strings.push(0);
            at
        };
        let soname = string(self.soname);
        let needs: Vec<u64> = self.needs.iter().map(|name| string(name)).collect();
        let version = self.version.map(&mut string);
        let names: Vec<u64> = functions.iter().map(|name| string(name)).collect();
        let data_names = [string(COUNT), string(COUNTERS), string(NAMES)];
        let mut list = Vec::new();
        for name in &functions {
            list.extend_from_slice(name.as_bytes());
            list.push(0);
        }

        // Layout: one segment that is read and executed, one that is written.
        let symbol_count = 1 + count + data_names.len();
        let headers = 64 + 4 * 56;
        let symbols_at = headers;
        let hash_at = symbols_at + symbol_count * 24;
        let bucket_count = (count / 2).max(1);
        let strings_at = (hash_at + 4 * (2 + bucket_count + symbol_count)).next_multiple_of(8);
        let versym_at = (strings_at + strings.len()).next_multiple_of(8);
        let verdef_at = (versym_at + 2 * symbol_count).next_multiple_of(8);
        let list_at = verdef_at + 2 * 28;
        let code_at = (list_at + list.len()).next_multiple_of(PAGE);
        let read_end = code_at + count * STUB_SIZE;
        let write_at = read_end.next_multiple_of(PAGE);
        let dynamic_size = 16 * (12 + needs.len());
        let count_at = write_at + dynamic_size;
        let counters_at = count_at + 8;
        let end = counters_at + 8 * count;

        let mut out = vec![0u8; end];
        let mut put = |at: usize, bytes: &[u8]| out[at..at + bytes.len()].copy_from_slice(bytes);

        // ELF header.
        put(0, &[0x7f, b'E', b'L', b'F', 2, 1, 1, 0]);
        put(16, &elf::ET_DYN.to_le_bytes());
        put(18, &elf::EM_X86_64.to_le_bytes());
        put(20, &1u32.to_le_bytes());
        put(32, &64u64.to_le_bytes());
        put(52, &64u16.to_le_bytes());
        put(54, &56u16.to_le_bytes());
        put(56, &4u16.to_le_bytes());
        put(58, &64u16.to_le_bytes());

        let mut segment = |index: usize, kind: u32, flags: u32, from: usize, to: usize, align: usize| {
            let at = 64 + index * 56;
            put(at, &kind.to_le_bytes());
            put(at + 4, &flags.to_le_bytes());
            for (field, value) in [from, from, from, to - from, to - from, align].into_iter().enumerate() {
                put(at + 8 + field * 8, &(value as u64).to_le_bytes());
            }
        };
        segment(0, elf::PT_LOAD, elf::PF_R | elf::PF_X, 0, read_end.max(code_at + 1).min(write_at), PAGE);
        segment(1, elf::PT_LOAD, elf::PF_R | elf::PF_W, write_at, end, PAGE);
        segment(2, elf::PT_DYNAMIC, elf::PF_R | elf::PF_W, write_at, write_at + dynamic_size, 8);
        // Without this the loader would want an executable stack.
        segment(3, elf::PT_GNU_STACK, elf::PF_R | elf::PF_W, 0, 0, 16);

        // Symbols, their hash table and versions. Index 2 is the version that is defined, 1 is none.
        let mut symbol = |index: usize, name: u64, kind: u8, section: u16, value: usize, size: usize| {
            let at = symbols_at + index * 24;
            put(at, &(name as u32).to_le_bytes());
            put(at + 4, &[(elf::STB_GLOBAL << 4) | kind, 0]);
            put(at + 6, &section.to_le_bytes());
            put(at + 8, &(value as u64).to_le_bytes());
            put(at + 16, &(size as u64).to_le_bytes());
        };
        for (index, name) in names.iter().enumerate() {
            symbol(1 + index, *name, elf::STT_FUNC, 1, code_at + index * STUB_SIZE, STUB_SIZE);
        }
        for (index, (name, at)) in data_names.into_iter().zip([count_at, counters_at, list_at]).enumerate() {
            symbol(1 + count + index, name, elf::STT_OBJECT, 1, at, 8);
        }
        let mut buckets = vec![0u32; bucket_count];
        let mut chains = vec![0u32; symbol_count];
        for (index, name) in functions.iter().copied().chain([COUNT, COUNTERS, NAMES]).enumerate() {
            let symbol = index + 1;
            let bucket = elf::hash(name.as_bytes()) as usize % bucket_count;
            chains[symbol] = buckets[bucket];
            buckets[bucket] = symbol as u32;
        }
        let words = [bucket_count as u32, symbol_count as u32].into_iter().chain(buckets).chain(chains);
        for (index, word) in words.enumerate() {
            put(hash_at + 4 * index, &word.to_le_bytes());
        }
        put(strings_at, &strings);
        put(list_at, &list);
        if let Some(version) = version {
            for index in 1..symbol_count {
                put(versym_at + 2 * index, &2u16.to_le_bytes());
            }
            for (index, (name, flags, text)) in
                [(soname, elf::VER_FLG_BASE, self.soname), (version, 0, self.version.unwrap_or_default())]
                    .into_iter()
                    .enumerate()
            {
                let at = verdef_at + 28 * index;
                let next = if index == 0 { 28u32 } else { 0 };
                put(at, &1u16.to_le_bytes());
                put(at + 2, &flags.to_le_bytes());
                put(at + 4, &(index as u16 + 1).to_le_bytes());
                put(at + 6, &1u16.to_le_bytes());
                put(at + 8, &elf::hash(text.as_bytes()).to_le_bytes());
                put(at + 12, &20u32.to_le_bytes());
                put(at + 16, &next.to_le_bytes());
                put(at + 20, &(name as u32).to_le_bytes());
            }
        }

        // Code and counters.
        for index in 0..count {
            let at = code_at + index * STUB_SIZE;
            let counter = counters_at + 8 * index;
            let distance = (counter as i64 - (at as i64 + 8)) as i32;
            put(at, &[0xf0, 0x48, 0xff, 0x05]);
            put(at + 4, &distance.to_le_bytes());
            put(at + 8, &[0x31, 0xc0, 0xc3, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc]);
        }
        put(count_at, &(count as u64).to_le_bytes());

        let mut dynamic = vec![
            (elf::DT_SONAME, soname),
            (elf::DT_HASH, hash_at as u64),
            (elf::DT_STRTAB, strings_at as u64),
            (elf::DT_SYMTAB, symbols_at as u64),
            (elf::DT_STRSZ, strings.len() as u64),
            (elf::DT_SYMENT, 24),
        ];
        dynamic.extend(needs.iter().map(|name| (elf::DT_NEEDED, *name)));
        if version.is_some() {
            dynamic.extend([
                (elf::DT_VERSYM, versym_at as u64),
                (elf::DT_VERDEF, verdef_at as u64),
                (elf::DT_VERDEFNUM, 2),
            ]);
        }
        dynamic.push((elf::DT_NULL, 0));
        for (index, (tag, value)) in dynamic.into_iter().enumerate() {
            put(write_at + 16 * index, &(tag as u64).to_le_bytes());
            put(write_at + 16 * index + 8, &value.to_le_bytes());
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    fn written(bytes: &[u8]) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), bytes).unwrap();
        file
    }

    #[test]
    fn a_stub_library_exports_its_functions() {
        for functions in [names(&["cuInit", "cudaMalloc", "nvmlInit_v2"]), names(&[]), {
            (0..5000).map(|index| format!("cublasFunction{index}")).collect()
        }] {
            for version in [None, Some("libcublasLt.so.13")] {
                let stub = StubLibrary {
                    soname: "libcublasLt.so.13",
                    needs: &["liboomph_cuda.so"],
                    version,
                    functions: &functions,
                };
                let file = written(&stub.build());
                assert_eq!(read_by_segments(file.path()), functions, "{version:?}");
            }
        }
    }

    /// The file has no sections, which only linkers need, so it is read as the loader reads it.
    fn read_by_segments(path: &Path) -> BTreeSet<String> {
        let bytes = std::fs::read(path).unwrap();
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()) as usize;
        // The third program header is the dynamic section; its entries are tag and value.
        let dynamic = word(64 + 2 * 56 + 8);
        let value = |tag: u64| {
            let entry =
                (0..).map(|index| dynamic + 16 * index).find(|at| [tag as usize, 0].contains(&word(*at)));
            entry.filter(|at| word(*at) == tag as usize).map(|at| word(at + 8))
        };
        let [symbols, strings, hash] =
            [elf::DT_SYMTAB, elf::DT_STRTAB, elf::DT_HASH].map(|tag| value(tag as u64).unwrap());
        let count = u32::from_le_bytes(bytes[hash + 4..hash + 8].try_into().unwrap()) as usize;
        let mut functions = BTreeSet::new();
        for index in 1..count {
            let at = symbols + 24 * index;
            let name = strings + u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
            let end = name + bytes[name..].iter().position(|byte| *byte == 0).unwrap();
            if bytes[at + 4] & 0xf == elf::STT_FUNC {
                functions.insert(String::from_utf8(bytes[name..end].to_vec()).unwrap());
            }
        }
        functions
    }

    #[test]
    fn what_is_no_library_is_refused_with_its_name() {
        for bytes in [&b""[..], b"\x7fELF", b"not a library at all", &[0x7f; 5000]] {
            let file = written(bytes);
            let error = exports(file.path()).unwrap_err().to_string();
            assert!(error.contains(&file.path().display().to_string()), "{error}");
        }
        assert!(exports(Path::new("/no/such/library.so")).is_err());
    }
}
