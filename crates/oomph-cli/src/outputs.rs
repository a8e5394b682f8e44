//! Files that are whole or not there: written beside their place and moved when they are done, and never over what was read.

use anyhow::{Context, anyhow, bail};
use oomph_report::page;
use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

/// What may be written, checked before the work rather than after it. `inputs` are never replaced, not even by force.
pub(crate) struct Outputs<'a> {
    pub(crate) inputs: &'a [PathBuf],
    pub(crate) force: bool,
}

impl Outputs<'_> {
    /// Says why one of these files cannot be written, if that can be known now.
    pub(crate) fn check(&self, outputs: &[&Path]) -> anyhow::Result<()> {
        for (index, output) in outputs.iter().enumerate() {
            if outputs[..index].iter().any(|other| same_file(output, other)) {
                bail!("{}: two outputs would be written to this one file", output.display());
            }
            if **output == *Path::new("-") {
                continue;
            }
            if self.inputs.iter().any(|input| same_file(output, input)) {
                bail!("{}: this is what is read; name another file to write to", output.display());
            }
            may_write(output, self.force)?;
            let folder = folder_of(output);
            if !folder.is_dir() {
                bail!("{}: there is no folder {}", output.display(), folder.display());
            }
        }
        Ok(())
    }
}

/// By where they lie, be they there or not, however they are written and linked.
pub(crate) fn same_file(one: &Path, other: &Path) -> bool {
    let place = |path: &Path| {
        path.canonicalize().or_else(|_| {
            let folder = folder_of(path).canonicalize()?;
            Ok::<_, io::Error>(folder.join(path.file_name().unwrap_or_default()))
        })
    };
    one == other || place(one).is_ok_and(|one| place(other).is_ok_and(|other| one == other))
}

pub(crate) fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|parent| *parent != Path::new("")).unwrap_or(Path::new("."))
}

/// Whether a file may be written here: it is not there, may be replaced, or is a page that can be made again.
fn may_write(path: &Path, force: bool) -> anyhow::Result<()> {
    let replaces = path.metadata().is_ok_and(|metadata| metadata.is_file());
    if replaces && !force && !is_page(path) {
        bail!("{}: exists already (--force writes over it)", path.display());
    }
    Ok(())
}

fn is_page(path: &Path) -> bool {
    let mut start = Vec::new();
    File::open(path).is_ok_and(|file| file.take(page::MARK_WITHIN).read_to_end(&mut start).is_ok())
        && page::is_page(&start)
}

/// Writes a file beside its place and moves it there when it is whole. A signal that ends oomph leaves nothing behind.
pub(crate) fn write_whole(
    path: &Path,
    force: bool,
    write: impl FnOnce(&mut (dyn Write + Send)) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    if path == Path::new("-") {
        let mut out = BufWriter::with_capacity(1 << 16, io::stdout());
        write(&mut out)?;
        return Ok(out.flush()?);
    }
    let name = || path.display().to_string();
    if path.metadata().is_ok_and(|metadata| !metadata.is_file()) {
        // A pipe or a device is written to, never replaced.
        let mut out = BufWriter::new(File::options().write(true).open(path).with_context(name)?);
        write(&mut out).with_context(name)?;
        return out.flush().with_context(name);
    }
    may_write(path, force)?;
    // What a link leads to is replaced, not the link.
    let place = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let folder = folder_of(&place);
    let mut builder = tempfile::Builder::new();
    builder.prefix(".oomph-");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        // As any file is made: what the umask leaves of it.
        builder.permissions(std::fs::Permissions::from_mode(0o666));
    }
    let temporary = builder.tempfile_in(folder).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => anyhow!("{}: there is no folder {}", name(), folder.display()),
        // The temporary file's name would say nothing to anybody.
        kind => anyhow!("{}: {}", name(), io::Error::from(kind)),
    })?;
    let _removed = oomph_child::RemovedOnSignal::new(temporary.path());
    let mut out = BufWriter::with_capacity(1 << 16, temporary);
    write(&mut out).with_context(name)?;
    let temporary = out.into_inner().map_err(|error| error.into_error()).with_context(name)?;
    temporary.as_file().sync_all().with_context(name)?;
    if force || place.exists() {
        temporary.persist(&place).map_err(|error| error.error).with_context(name)?;
    } else {
        temporary.persist_noclobber(&place).map_err(|error| error.error).with_context(name)?;
    }
    Ok(())
}
