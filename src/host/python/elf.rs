//! Where a section of a program file lies: as much of ELF as that takes.
//!
//! Two tables of records of fixed size are read, no more. The file is chosen by a process and is
//! hostile: every number in it is checked before it is used, and what is read is bounded.

/// A section, and where its file is loaded: both as the file says, before the loader moves them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ElfSection {
    /// Where the section begins.
    pub address: u64,
    /// Its length in bytes.
    pub bytes: u64,
    /// Where the first loaded segment begins, rounded down to a page.
    pub load_address: u64,
    /// Where that segment begins in the file, likewise.
    pub load_offset: u64,
}

/// What is read from: a file, or the bytes of a test.
pub trait ReadAt {
    /// Fills `into` with what stands at `offset`; `None` where there is less.
    fn read_at(&self, offset: u64, into: &mut [u8]) -> Option<()>;
}

const HEADER_BYTES: usize = 64;
const SECTION_BYTES: usize = 64;
const SEGMENT_BYTES: usize = 56;
/// A file has some forty sections and a dozen segments.
const MOST_RECORDS: u16 = 1024;
const NAMES_BYTES: u64 = 64 << 10;
/// `PT_LOAD` of elf(5).
const LOADED: u32 = 1;
/// Segments are mapped by pages; those of Linux's architectures have 64 KiB at most.
const PAGE_BYTES: u64 = 4096;

/// Looks for a section by its name in a 64-bit little-endian ELF file. `None` where it has none, or is
/// no such file.
pub fn find_section(file: &impl ReadAt, name: &[u8]) -> Option<ElfSection> {
    let mut header = [0; HEADER_BYTES];
    file.read_at(0, &mut header)?;
    // The magic, 64 bits, little endian, version 1.
    if !header.starts_with(b"\x7fELF\x02\x01\x01") {
        return None;
    }
    let (segments, sections) = (number(&header, 32)?, number(&header, 40)?);
    let [segment_bytes, segment_count] = [54, 56].map(|at| small(&header, at));
    let [section_bytes, section_count, names_at] = [58, 60, 62].map(|at| small(&header, at));
    let (segment_count, section_count) = (segment_count?, section_count?);
    if usize::from(segment_bytes?) != SEGMENT_BYTES
        || usize::from(section_bytes?) != SECTION_BYTES
        || segment_count > MOST_RECORDS
        || section_count > MOST_RECORDS
        || names_at? >= section_count
    {
        return None;
    }
    let record = |table: u64, index: u16, bytes: usize| {
        let offset = table.checked_add(u64::from(index) * bytes as u64)?;
        let mut record = vec![0; bytes];
        file.read_at(offset, &mut record).map(|()| record)
    };
    let names = record(sections, names_at?, SECTION_BYTES)?;
    let (names_offset, names_bytes) = (number(&names, 24)?, number(&names, 32)?);
    let mut names = vec![0; usize::try_from(names_bytes.min(NAMES_BYTES)).ok()?];
    file.read_at(names_offset, &mut names)?;
    let (address, bytes) = (0..section_count).find_map(|index| {
        let section = record(sections, index, SECTION_BYTES)?;
        let at = u32::from_le_bytes(*section.first_chunk()?);
        let is_it = names.get(usize::try_from(at).ok()?..)?.strip_prefix(name)?.first() == Some(&0);
        is_it.then(|| Some((number(&section, 16)?, number(&section, 32)?)))?
    })?;
    let first = (0..segment_count).find_map(|index| {
        let segment = record(segments, index, SEGMENT_BYTES)?;
        let kind = u32::from_le_bytes(*segment.first_chunk()?);
        (kind == LOADED).then_some(segment)
    })?;
    let (load_offset, load_address) = (number(&first, 8)?, number(&first, 16)?);
    // They are the same within a page (elf(5): p_align), or nothing could map them.
    let within = load_address % PAGE_BYTES;
    (load_offset % PAGE_BYTES == within).then_some(())?;
    Some(ElfSection {
        address,
        bytes,
        load_address: load_address - within,
        load_offset: load_offset - within,
    })
}

fn number(record: &[u8], at: usize) -> Option<u64> {
    let bytes = record.get(at..)?.first_chunk()?;
    Some(u64::from_le_bytes(*bytes))
}

fn small(record: &[u8], at: usize) -> Option<u16> {
    let bytes = record.get(at..)?.first_chunk()?;
    Some(u16::from_le_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::dice::Dice;

    impl ReadAt for Vec<u8> {
        fn read_at(&self, offset: u64, into: &mut [u8]) -> Option<()> {
            let at = usize::try_from(offset).ok()?;
            let found = self.get(at..)?.get(..into.len())?;
            into.copy_from_slice(found);
            Some(())
        }
    }

    /// A file of one segment and three sections: none, names, and the one that is looked for.
    fn file() -> Vec<u8> {
        let mut file = b"\x7fELF\x02\x01\x01".to_vec();
        file.resize(HEADER_BYTES, 0);
        let put = |file: &mut Vec<u8>, at: usize, bytes: &[u8]| {
            if file.len() < at + bytes.len() {
                file.resize(at + bytes.len(), 0);
            }
            file[at..at + bytes.len()].copy_from_slice(bytes);
        };
        put(&mut file, 32, &64_u64.to_le_bytes());
        put(&mut file, 40, &256_u64.to_le_bytes());
        for (at, value) in [(54, 56_u16), (56, 2), (58, 64), (60, 3), (62, 1)] {
            put(&mut file, at, &value.to_le_bytes());
        }
        // A segment of another kind, and the first that is loaded.
        put(&mut file, 64, &6_u32.to_le_bytes());
        put(&mut file, 120, &LOADED.to_le_bytes());
        put(&mut file, 128, &0x1040_u64.to_le_bytes());
        put(&mut file, 136, &0x40_1040_u64.to_le_bytes());
        let names = b"\0.names\0.PyRuntimeX\0.PyRuntime\0";
        put(&mut file, 320 + 24, &1024_u64.to_le_bytes());
        put(&mut file, 320 + 32, &(names.len() as u64).to_le_bytes());
        put(&mut file, 384, &20_u32.to_le_bytes());
        put(&mut file, 384 + 16, &0x40_5000_u64.to_le_bytes());
        put(&mut file, 384 + 32, &777_u64.to_le_bytes());
        put(&mut file, 1024, names);
        file
    }

    #[test]
    fn a_section_is_found_by_its_whole_name() {
        let expected = ElfSection {
            address: 0x40_5000,
            bytes: 777,
            load_address: 0x40_1000,
            load_offset: 0x1000,
        };
        assert_eq!(find_section(&file(), b".PyRuntime"), Some(expected));
        assert_eq!(find_section(&file(), b".PyRun"), None);
        let another = |at: usize, byte: u8| {
            let mut file = file();
            file[at] = byte;
            find_section(&file, b".PyRuntime")
        };
        for at in [0, 4, 5, 54, 58, 62, 120, 128] {
            assert_eq!(another(at, 99), None, "{at}");
        }
    }

    #[test]
    fn no_file_however_damaged_is_more_than_not_found() {
        let whole = file();
        let mut dice = Dice::new(1);
        for length in 0..whole.len() {
            let cut = whole[..length].to_vec();
            assert_eq!(find_section(&cut, b".PyRuntime"), None, "{length}");
        }
        for _ in 0..20_000 {
            let mut file = whole.clone();
            for _ in 0..=dice.roll(4) {
                let at = dice.place(file.len());
                file[at] = [0, 1, 0x7f, 0x80, 0xff][dice.place(5)];
            }
            let _ = find_section(&file, b".PyRuntime");
        }
    }
}
