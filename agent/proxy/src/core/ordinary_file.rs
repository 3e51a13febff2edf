//! Files that are read again and again while the agent runs, by threads that must not wait.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::OFlags;

/// The bytes of a file, `most` of them at most. Any other, a pipe for instance, could have a thread
/// wait for ever.
///
/// # Errors
/// When it cannot be read, is no ordinary file, or has more.
pub fn read_ordinary_file(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let file: File = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    if !file.metadata()?.is_file() {
        let problem = "it is no ordinary file: it is read again and again, so write one";
        return Err(io::Error::other(problem));
    }
    let mut bytes = Vec::new();
    file.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        return Err(io::Error::other(format!("it has more than {} KiB", most >> 10)));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;

    #[test]
    fn a_pipe_is_refused_at_once() {
        let directory = tempfile::tempdir().unwrap();
        let pipe = directory.path().join("pipe");
        mknodat(CWD, &pipe, FileType::Fifo, Mode::RWXU, 0).unwrap();
        let problem = read_ordinary_file(&pipe, 1).unwrap_err().to_string();
        assert!(problem.contains("it is no ordinary file"), "{problem}");
        let file = directory.path().join("file");
        std::fs::write(&file, "ab").unwrap();
        assert_eq!(read_ordinary_file(&file, 2).unwrap(), b"ab");
        assert!(read_ordinary_file(&file, 1).is_err());
    }
}
