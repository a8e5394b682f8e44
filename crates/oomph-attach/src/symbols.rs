//! Where a file that is mapped has its functions.

use object::read::ReadCache;
use object::read::elf::{ElfFile64, ProgramHeader as _, Sym as _};
use object::{Endianness, elf};
use std::collections::HashMap;
use std::fs::File;
use std::path::Path;

/// What a file exports of what is asked for, by name: addresses from where its first part is mapped.
pub(crate) fn exported(path: &Path, wanted: &[&'static str]) -> Option<HashMap<&'static str, u64>> {
    // A Python has tens of megabytes, of which a few pages are read.
    let bytes = ReadCache::new(File::open(path).ok()?);
    let elf = ElfFile64::<Endianness, _>::parse(&bytes).ok()?;
    let endian = elf.endian();
    let mut parts = elf.elf_program_headers().iter().filter(|part| part.p_type(endian) == elf::PT_LOAD);
    let first = parts.next().map(|part| part.p_vaddr(endian).wrapping_sub(part.p_offset(endian)))?;
    let symbols = elf.elf_dynamic_symbol_table();
    let mut found = HashMap::new();
    for symbol in symbols.iter() {
        if symbol.st_shndx(endian) == elf::SHN_UNDEF || symbol.st_type() == elf::STT_GNU_IFUNC {
            continue;
        }
        let Ok(name) = symbol.name(endian, symbols.strings()) else { continue };
        if let Some(name) = wanted.iter().find(|wanted| wanted.as_bytes() == name) {
            found.entry(*name).or_insert(symbol.st_value(endian).wrapping_sub(first));
        }
    }
    Some(found)
}
