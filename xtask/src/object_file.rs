//! The last look at the object before it ships.

use anyhow::{Context, Result, bail};
use object::build::elf::{Builder, SectionData};
use object::read::elf::ElfFile64;
use object::{Endianness, Object, ObjectSymbol, elf};

/// A panic left in the code is a call the verifier refuses, with a message that does not say so.
/// Every such call leaves a symbol with "panic" in its name.
pub(crate) fn refuse_panics(object: &[u8]) -> Result<()> {
    let file = ElfFile64::<Endianness>::parse(object).context("the object is not 64-bit ELF")?;
    let names = file.symbols().filter_map(|symbol| symbol.name().ok());
    let panics: Vec<_> = names.filter(|name| name.contains("panic")).collect();
    if !panics.is_empty() {
        bail!(
            "code in ebpf/ or common/ can panic ({}): use `get`, fixed-size arrays or masks",
            panics.join(", ")
        );
    }
    Ok(())
}

/// Removes DWARF and keeps BTF.
pub(crate) fn strip_debug(object: &[u8]) -> Result<Vec<u8>> {
    let mut builder = Builder::read(object).context("cannot read the object's sections")?;
    for section in &mut builder.sections {
        let name = section.name.as_slice();
        section.delete = name.starts_with(b".debug") || name.starts_with(b".rel.debug");
    }
    builder.delete_orphans();
    add_section_names(&mut builder);
    let mut stripped = Vec::new();
    builder.write(&mut stripped).context("cannot write the stripped object")?;
    Ok(stripped)
}

/// LLVM keeps section and symbol names in one table; the writer wants one for each.
fn add_section_names(builder: &mut Builder<'_>) {
    let names = builder.sections.add();
    names.name = b".shstrtab"[..].into();
    names.sh_type = elf::SHT_STRTAB;
    names.sh_addralign = 1;
    names.data = SectionData::SectionString;
}
