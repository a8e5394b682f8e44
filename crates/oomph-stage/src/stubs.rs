//! Stub libraries, made from what is installed.
//!
//! A stub library exports functions that count their calls and succeed (`0` is success in every NVIDIA library). Its
//! names are those of the NVIDIA libraries that are installed, less those that `oomph-cuda` answers and those that need
//! no device; so any version of PyTorch finds what it asks for, and a result can say what was called. Of a library that
//! is not installed, the names are those that PyTorch's libraries leave undefined ([`asks`]).
//!
//! The file is a plain ELF shared object for x86-64: tables and a page of stubs, then what is written to, the counters. Sections are for linkers:
//! Triton compiles a helper against the driver, and from version 2.41 on GNU ld refuses a library that has none.

use object::read::elf::{ElfFile64, Sym as _};
use object::write::StringId;
use object::write::elf::{FileHeader, ProgramHeader, Rel, SectionHeader, SectionIndex, Sym, Verdef, Writer};
use object::{Endianness, elf};
use std::collections::BTreeSet;
use std::path::Path;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exports {
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

/// A function that a library leaves to others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    pub function: String,
    /// The library that it was linked to and the version that it must have there, where one was noted.
    pub of: Option<(String, String)>,
}

/// Reads what a library leaves to others, without loading it. What it can do without is not listed.
pub fn asks(path: &Path) -> Result<Vec<Asked>, LibraryError> {
    let wrong = |problem: String| LibraryError { path: path.display().to_string(), problem };
    let file = std::fs::File::open(path).map_err(|error| wrong(error.to_string()))?;
    let bytes = object::read::ReadCache::new(file);
    let elf = ElfFile64::<Endianness, _>::parse(&bytes).map_err(|error| wrong(error.to_string()))?;
    read_asks(&elf).map_err(|error| wrong(error.to_string()))
}

fn read_asks<'data, R: object::ReadRef<'data>>(
    elf: &ElfFile64<'data, Endianness, R>,
) -> object::Result<Vec<Asked>> {
    let endian = elf.endian();
    let symbols = elf.elf_dynamic_symbol_table();
    let versions = elf.elf_section_table().versions(endian, elf.data())?;
    let mut asked = Vec::new();
    for (index, symbol) in symbols.enumerate() {
        if symbol.st_shndx(endian) != elf::SHN_UNDEF || symbol.st_bind() != elf::STB_GLOBAL {
            continue;
        }
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let version = match &versions {
            Some(versions) => versions.version(versions.version_index(endian, index))?,
            None => None,
        };
        let of = version.and_then(|version| Some((text(version.file()?), text(version.name()))));
        asked.push(Asked { function: text(symbol.name(endian, symbols.strings())?), of });
    }
    Ok(asked)
}

/// The names of the driver's functions that stand as text in a library, which asks for them while it runs.
pub fn driver_names(path: &Path) -> BTreeSet<String> {
    let read = || -> Option<BTreeSet<String>> {
        let bytes = object::read::ReadCache::new(std::fs::File::open(path).ok()?);
        let elf = ElfFile64::<Endianness, _>::parse(&bytes).ok()?;
        let text = object::ObjectSection::data(&object::Object::section_by_name(&elf, ".rodata")?).ok()?;
        Some(driver_words(text))
    };
    read().unwrap_or_default()
}

/// The words of a text that are named as the driver's functions are.
pub fn driver_words(text: &[u8]) -> BTreeSet<String> {
    let words = text.split(|byte| !byte.is_ascii_alphanumeric() && *byte != b'_');
    let is_named_so =
        |word: &&[u8]| word.len() > 3 && word.starts_with(b"cu") && word[2].is_ascii_uppercase();
    words.filter(is_named_so).filter_map(|word| Some(std::str::from_utf8(word).ok()?.to_owned())).collect()
}

/// What the function of `oomph-cuda` is called that answers for one of a library that is not installed.
pub const ABSENT: &str = "oomph_absent_";

/// A stub library to be written.
#[derive(Clone, Debug)]
pub struct StubLibrary<'a> {
    /// The name by which programs ask for it.
    pub soname: &'a str,
    /// Libraries that are searched after it.
    pub needs: &'a [&'a str],
    /// The versions that programs ask for; its symbols have the first.
    pub versions: &'a [&'a str],
    /// Functions that are counted and succeed.
    pub functions: &'a BTreeSet<String>,
    /// Functions that `oomph-cuda` answers under a name of its own ([`ABSENT`]).
    pub answered: &'a BTreeSet<String>,
}

/// Bytes of a function.
const STUB_SIZE: usize = 16;
const PAGE: usize = 4096;
/// The data symbols by which `oomph-cuda` reads the counters.
const COUNT: &str = "oomph_stub_count";
const COUNTERS: &str = "oomph_stub_counters";
const NAMES: &str = "oomph_stub_names";

/// Where the parts of the file are; it is loaded as it is, so that these are addresses too.
struct Layout {
    symbols: usize,
    hash: usize,
    strings: usize,
    versions: usize,
    version_names: usize,
    list: usize,
    relocations: usize,
    code: usize,
    /// Where what is read ends.
    read_end: usize,
    /// Where what is written begins: with what the loader looks at.
    dynamic: usize,
    count: usize,
    counters: usize,
    /// Where the loader writes the addresses of what is answered.
    addresses: usize,
    end: usize,
}

/// What the file names, each in the table of strings.
struct Names {
    soname: StringId,
    needs: Vec<StringId>,
    versions: Vec<StringId>,
    /// Of the functions, then of the data, then of what is asked of `oomph-cuda`.
    symbols: Vec<StringId>,
}

/// Symbols of the first version have this index, the file itself the one before.
const VERSION: u16 = 2;

impl StubLibrary<'_> {
    /// The file's bytes. Where there is no memory for them, none: the loader refuses such a file.
    pub fn build(&self) -> Vec<u8> {
        let mut out = Vec::new();
        match self.write(&mut out) {
            Ok(()) => out,
            Err(_) => Vec::new(),
        }
    }

    fn write(&self, out: &mut Vec<u8>) -> object::write::Result<()> {
        let asked: Vec<String> = self.answered.iter().map(|name| format!("{ABSENT}{name}")).collect();
        let symbols: Vec<&str> = (self.functions.iter().chain(self.answered).map(String::as_str))
            .chain([COUNT, COUNTERS, NAMES])
            .chain(asked.iter().map(String::as_str))
            .collect();
        let mut writer = Writer::new(Endianness::Little, true, out);
        let names = self.names(&mut writer, &symbols);
        let sections = Sections::new(&mut writer, !names.versions.is_empty());
        // The stubs' names once more, in order, for reports.
        let list: Vec<u8> =
            self.functions.iter().flat_map(|name| name.bytes().chain(std::iter::once(0))).collect();
        let dynamic_count = 10 + names.needs.len() + if names.versions.is_empty() { 0 } else { 3 };
        let layout = self.reserve(&mut writer, list.len(), dynamic_count);

        writer.write_file_header(&FileHeader {
            os_abi: elf::ELFOSABI_NONE,
            abi_version: 0,
            e_type: elf::ET_DYN,
            e_machine: elf::EM_X86_64,
            e_entry: 0,
            e_flags: 0,
        })?;
        write_segments(&mut writer, &layout, dynamic_count);
        self.write_symbols(&mut writer, &layout, &sections, &names.symbols);
        writer.write_hash(self.bucket_count(), symbols.len() as u32 + 1, |index| {
            let index = index.checked_sub(1)?;
            Some(elf::hash(symbols[index as usize].as_bytes()))
        });
        writer.write_dynstr();
        if !names.versions.is_empty() {
            write_versions(&mut writer, symbols.len() - asked.len(), asked.len(), &names);
        }
        writer.write(&list);
        writer.write_align_relocation();
        for index in 0..asked.len() {
            writer.write_relocation(
                true,
                &Rel {
                    r_offset: (layout.addresses + 8 * index) as u64,
                    // The first symbol is the null one.
                    r_sym: (symbols.len() - asked.len() + index + 1) as u32,
                    r_type: elf::R_X86_64_GLOB_DAT,
                    r_addend: 0,
                },
            );
        }
        writer.pad_until(layout.code);
        for index in 0..self.functions.len() {
            writer.write(&stub(layout.code + index * STUB_SIZE, layout.counters + 8 * index));
        }
        for index in 0..asked.len() {
            let at = layout.code + (self.functions.len() + index) * STUB_SIZE;
            writer.write(&jump(at, layout.addresses + 8 * index));
        }
        writer.pad_until(layout.dynamic);
        write_dynamic(&mut writer, &layout, &names, asked.len())?;
        writer.write(&(self.functions.len() as u64).to_le_bytes());
        writer.pad_until(layout.end);
        writer.write_shstrtab();
        sections.write_headers(&mut writer, &layout);
        Ok(())
    }

    fn bucket_count(&self) -> u32 {
        ((self.functions.len() + self.answered.len()) as u32 / 2).max(1)
    }

    fn names<'a>(&'a self, writer: &mut Writer<'a>, symbols: &[&'a str]) -> Names {
        Names {
            soname: writer.add_dynamic_string(self.soname.as_bytes()),
            needs: self.needs.iter().map(|name| writer.add_dynamic_string(name.as_bytes())).collect(),
            versions: (self.versions.iter())
                .map(|version| writer.add_dynamic_string(version.as_bytes()))
                .collect(),
            symbols: (symbols.iter())
                .map(|name| {
                    writer.reserve_dynamic_symbol_index();
                    writer.add_dynamic_string(name.as_bytes())
                })
                .collect(),
        }
    }

    /// In the order in which the parts are written.
    fn reserve(&self, writer: &mut Writer, list_size: usize, dynamic_count: usize) -> Layout {
        let count = self.functions.len();
        writer.reserve_file_header();
        writer.reserve_program_headers(SEGMENTS);
        let symbols = writer.reserve_dynsym();
        let symbol_count = writer.dynamic_symbol_count();
        let hash = writer.reserve_hash(self.bucket_count(), symbol_count);
        let strings = writer.reserve_dynstr();
        let definitions = self.versions.len() + 1;
        let (versions, version_names) = match self.versions {
            [] => (0, 0),
            _ => (writer.reserve_gnu_versym(), writer.reserve_gnu_verdef(definitions, definitions)),
        };
        let list = writer.reserve(list_size, 1);
        let relocations = writer.reserve_relocations(self.answered.len(), true);
        let code = writer.reserve((count + self.answered.len()) * STUB_SIZE, PAGE);
        let read_end = writer.reserved_len();
        writer.reserve(0, PAGE);
        let dynamic = writer.reserve_dynamic(dynamic_count);
        let counted = writer.reserve(8, 8);
        let counters = writer.reserve(8 * count, 8);
        let addresses = writer.reserve(8 * self.answered.len(), 8);
        let end = writer.reserved_len();
        writer.reserve_shstrtab();
        writer.reserve_section_headers();
        Layout {
            symbols,
            hash,
            strings,
            versions,
            version_names,
            list,
            relocations,
            code,
            read_end,
            dynamic,
            count: counted,
            counters,
            addresses,
            end,
        }
    }

    fn write_symbols(&self, writer: &mut Writer, layout: &Layout, sections: &Sections, names: &[StringId]) {
        let functions = (0..self.functions.len() + self.answered.len())
            .map(|index| (elf::STT_FUNC, Some(sections.text.0), layout.code + index * STUB_SIZE, STUB_SIZE));
        let data = [
            (sections.data.0, layout.count),
            (sections.data.0, layout.counters),
            (sections.read_only.0, layout.list),
        ];
        let data = data.map(|(section, at)| (elf::STT_OBJECT, Some(section), at, 8));
        let asked = self.answered.iter().map(|_| (elf::STT_NOTYPE, None, 0, 0));
        writer.write_null_dynamic_symbol();
        for (&name, (kind, section, at, size)) in names.iter().zip(functions.chain(data).chain(asked)) {
            writer.write_dynamic_symbol(&Sym {
                name: Some(name),
                section,
                st_info: (elf::STB_GLOBAL << 4) | kind,
                st_other: 0,
                st_shndx: elf::SHN_UNDEF,
                st_value: at as u64,
                st_size: size as u64,
            });
        }
    }
}

/// Of the sections that the writer does not know by itself, index and name.
struct Sections {
    read_only: (SectionIndex, StringId),
    text: (SectionIndex, StringId),
    data: (SectionIndex, StringId),
}

impl Sections {
    /// In the order in which [`Sections::write_headers`] writes them.
    fn new(writer: &mut Writer, has_versions: bool) -> Self {
        fn named(writer: &mut Writer, name: &'static str) -> (SectionIndex, StringId) {
            let name = writer.add_section_name(name.as_bytes());
            (writer.reserve_section_index(), name)
        }
        writer.reserve_null_section_index();
        writer.reserve_dynsym_section_index();
        writer.reserve_hash_section_index();
        writer.reserve_dynstr_section_index();
        if has_versions {
            writer.reserve_gnu_versym_section_index();
            writer.reserve_gnu_verdef_section_index();
        }
        let read_only = named(writer, ".rodata");
        let text = named(writer, ".text");
        writer.reserve_dynamic_section_index();
        let data = named(writer, ".data");
        writer.reserve_shstrtab_section_index();
        Self { read_only, text, data }
    }

    fn write_headers(&self, writer: &mut Writer, layout: &Layout) {
        let header = |(_, name), flags: u32, from: usize, to: usize, align| SectionHeader {
            name: Some(name),
            sh_type: elf::SHT_PROGBITS,
            sh_flags: u64::from(elf::SHF_ALLOC | flags),
            sh_addr: from as u64,
            sh_offset: from as u64,
            sh_size: (to - from) as u64,
            sh_link: 0,
            sh_info: 0,
            sh_addralign: align,
            sh_entsize: 0,
        };
        writer.write_null_section_header();
        // The first symbol is the null one, and the only one that is not seen from outside.
        writer.write_dynsym_section_header(layout.symbols as u64, 1);
        writer.write_hash_section_header(layout.hash as u64);
        writer.write_dynstr_section_header(layout.strings as u64);
        writer.write_gnu_versym_section_header(layout.versions as u64);
        writer.write_gnu_verdef_section_header(layout.version_names as u64);
        writer.write_section_header(&header(self.read_only, 0, layout.list, layout.relocations, 1));
        writer.write_section_header(&header(
            self.text,
            elf::SHF_EXECINSTR,
            layout.code,
            layout.read_end,
            PAGE as u64,
        ));
        writer.write_dynamic_section_header(layout.dynamic as u64);
        writer.write_section_header(&header(self.data, elf::SHF_WRITE, layout.count, layout.end, 8));
        writer.write_shstrtab_section_header();
    }
}

const SEGMENTS: u32 = 4;

fn write_segments(writer: &mut Writer, layout: &Layout, dynamic_count: usize) {
    let read = elf::PF_R;
    let dynamic_end = layout.dynamic + 16 * dynamic_count;
    writer.write_align_program_headers();
    for (kind, flags, from, to, align) in [
        (elf::PT_LOAD, read | elf::PF_X, 0, layout.read_end, PAGE),
        (elf::PT_LOAD, read | elf::PF_W, layout.dynamic, layout.end, PAGE),
        (elf::PT_DYNAMIC, read | elf::PF_W, layout.dynamic, dynamic_end, 8),
        // Without this the loader would want an executable stack.
        (elf::PT_GNU_STACK, read | elf::PF_W, 0, 0, 16),
    ] {
        writer.write_program_header(&ProgramHeader {
            p_type: kind,
            p_flags: flags,
            p_offset: from as u64,
            p_vaddr: from as u64,
            p_paddr: from as u64,
            p_filesz: (to - from) as u64,
            p_memsz: (to - from) as u64,
            p_align: align as u64,
        });
    }
}

/// What is defined here has the first of the versions, which stand beside the file's own name; what is asked for has none.
fn write_versions(writer: &mut Writer, defined: usize, asked: usize, names: &Names) {
    writer.write_null_gnu_versym();
    for _ in 0..defined {
        writer.write_gnu_versym(VERSION);
    }
    for _ in 0..asked {
        writer.write_gnu_versym(elf::VER_NDX_GLOBAL);
    }
    writer.write_align_gnu_verdef();
    let own = (names.soname, elf::VER_FLG_BASE);
    let all = std::iter::once(own).chain(names.versions.iter().map(|name| (*name, 0)));
    for ((name, flags), index) in all.zip(VERSION - 1..) {
        writer.write_gnu_verdef(&Verdef { version: 1, flags, index, aux_count: 1, name });
    }
}

/// `lock inc qword [rip + counter]; xor eax, eax; ret`, padded.
fn stub(at: usize, counter: usize) -> [u8; STUB_SIZE] {
    let [a, b, c, d] = ((counter as i64 - (at as i64 + 8)) as i32).to_le_bytes();
    [0xf0, 0x48, 0xff, 0x05, a, b, c, d, 0x31, 0xc0, 0xc3, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc]
}

/// `jmp [rip + address]`, padded.
fn jump(at: usize, address: usize) -> [u8; STUB_SIZE] {
    let [a, b, c, d] = ((address as i64 - (at as i64 + 6)) as i32).to_le_bytes();
    [0xff, 0x25, a, b, c, d, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc]
}

fn write_dynamic(
    writer: &mut Writer,
    layout: &Layout,
    names: &Names,
    asked: usize,
) -> object::write::Result<()> {
    writer.write_align_dynamic();
    writer.write_dynamic_string(elf::DT_SONAME, names.soname)?;
    writer.write_dynamic(elf::DT_HASH, layout.hash as u64)?;
    writer.write_dynamic(elf::DT_STRTAB, layout.strings as u64)?;
    writer.write_dynamic(elf::DT_SYMTAB, layout.symbols as u64)?;
    let size = writer.dynstr_len() as u64;
    writer.write_dynamic(elf::DT_STRSZ, size)?;
    writer.write_dynamic(elf::DT_SYMENT, 24)?;
    for &name in &names.needs {
        writer.write_dynamic_string(elf::DT_NEEDED, name)?;
    }
    writer.write_dynamic(elf::DT_RELA, layout.relocations as u64)?;
    writer.write_dynamic(elf::DT_RELASZ, 24 * asked as u64)?;
    writer.write_dynamic(elf::DT_RELAENT, 24)?;
    if !names.versions.is_empty() {
        writer.write_dynamic(elf::DT_VERSYM, layout.versions as u64)?;
        writer.write_dynamic(elf::DT_VERDEF, layout.version_names as u64)?;
        writer.write_dynamic(elf::DT_VERDEFNUM, names.versions.len() as u64 + 1)?;
    }
    writer.write_dynamic(elf::DT_NULL, 0)
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
            for versions in [&[][..], &["libcublasLt.so.13"], &["libcublasLt.so.13", "ANOTHER"]] {
                for answered in [names(&[]), names(&["cudnnGetVersion", "ncclGetVersion"])] {
                    let stub = StubLibrary {
                        soname: "libcublasLt.so.13",
                        needs: &["liboomph_cuda.so"],
                        versions,
                        functions: &functions,
                        answered: &answered,
                    };
                    let file = written(&stub.build());
                    let all: BTreeSet<String> = functions.union(&answered).cloned().collect();
                    assert_eq!(read_by_segments(file.path()), all, "{versions:?}");
                    assert_eq!(exports(file.path()).unwrap().functions, all, "{versions:?}");
                }
            }
        }
    }

    /// A program is linked to it, as Triton's is, and nothing that it calls may be left over.
    #[test]
    fn a_linker_takes_a_stub_library() {
        let folder = tempfile::tempdir().unwrap();
        let functions = names(&["cuInit", "cuMemAlloc_v2"]);
        let answered = names(&["cuDeviceGet"]);
        for versions in [&[][..], &["OF_THE_DRIVER"]] {
            let stub = StubLibrary {
                soname: "libcuda.so.1",
                needs: &[],
                versions,
                functions: &functions,
                answered: &answered,
            };
            std::fs::write(folder.path().join("libcuda.so.1"), stub.build()).unwrap();
            let source = "int cuInit(unsigned), cuDeviceGet(int *, int); int f(void) { return cuInit(0) + cuDeviceGet(0, 0); }";
            std::fs::write(folder.path().join("helper.c"), source).unwrap();
            let linked = std::process::Command::new("cc")
                .args(["-shared", "-fPIC", "-nostdlib", "-o", "helper.so", "helper.c"])
                .args(["-L.", "-l:libcuda.so.1", "-Wl,--no-undefined", "-Wl,--allow-shlib-undefined"])
                .current_dir(folder.path())
                .output()
                .unwrap();
            assert!(linked.status.success(), "{versions:?}: {}", String::from_utf8_lossy(&linked.stderr));
            let asked: BTreeSet<String> =
                asks(&folder.path().join("helper.so")).unwrap().into_iter().map(|one| one.function).collect();
            assert_eq!(asked, names(&["cuInit", "cuDeviceGet"]));
        }
    }

    /// As the loader reads it.
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
