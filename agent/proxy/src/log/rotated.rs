//! A file of lines that takes a bounded room on the disk: when it is full, it becomes the first of
//! the old ones, and the oldest goes. An agent that takes over writes to the same file meanwhile:
//! lines are appended, and what the other one has rotated is opened anew.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::core::log_limit::LogLimit;
use crate::core::settings::LogFile;

/// For the owner, and for those of its group to read.
const MODE: u32 = 0o640;
/// The time until what could not be moved is tried again.
const RETRY: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Rotated {
    settings: LogFile,
    file: File,
    /// Its last line has no end: a write did not come to one.
    is_torn: bool,
    /// Its last attempt at moving failed.
    stuck: Option<Instant>,
    logged: LogLimit,
}

impl Rotated {
    /// # Errors
    /// When there can be no such file.
    pub(super) fn open(settings: &LogFile) -> io::Result<Self> {
        let (file, is_torn) = open(&settings.path)?;
        // A link to it stays where it is.
        let settings = LogFile { path: fs::canonicalize(&settings.path)?, ..settings.clone() };
        Ok(Self { settings, file, is_torn, stuck: None, logged: LogLimit::default() })
    }

    /// Appends whole lines.
    ///
    /// # Errors
    /// When they are lost, or some of them.
    pub(super) fn write(&mut self, lines: &[u8]) -> io::Result<()> {
        let file = self.file.metadata()?;
        let is_same = |there: fs::Metadata| (there.dev(), there.ino()) == (file.dev(), file.ino());
        // Another agent may have rotated it, or an operator have taken it away.
        if !fs::metadata(&self.settings.path).is_ok_and(is_same) {
            (self.file, self.is_torn) = open(&self.settings.path)?;
        }
        let size = self.file.metadata()?.len();
        if size > 0 && size + lines.len() as u64 > self.settings.bytes {
            self.make_way();
        }
        if self.is_torn {
            self.file.write_all(b"\n")?;
        }
        let written = self.file.write_all(lines);
        self.is_torn = written.is_err();
        written
    }

    /// A file that cannot be moved goes on: lines in a file that is too large are better than none.
    fn make_way(&mut self) {
        if self.stuck.is_some_and(|last| last.elapsed() < RETRY) {
            return;
        }
        let rotated = self.rotate();
        self.stuck = rotated.is_err().then(Instant::now);
        if let Err(error) = rotated
            && self.logged.is_due()
        {
            tracing::error!(
                "the access log is full and goes on in the same file: {error}; move away what is there, and let the \
                 agent write in that directory"
            );
        }
    }

    fn rotate(&mut self) -> io::Result<()> {
        let LogFile { path, old, .. } = &self.settings;
        for number in (1..*old).rev() {
            unless_missing(rename(&numbered(path, number), &numbered(path, number + 1)))?;
        }
        match old {
            0 => {
                fs::remove_file(path).map_err(|error| told(&error, &format!("remove {}", path.display())))?
            }
            _ => rename(path, &numbered(path, 1))?,
        }
        (self.file, self.is_torn) = open(path)?;
        Ok(())
    }
}

fn open(path: &Path) -> io::Result<(File, bool)> {
    let opening = OpenOptions::new().create(true).read(true).append(true).mode(MODE).open(path);
    let mut file =
        opening.map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other(format!(
            "{} is no ordinary file, and cannot be rotated",
            path.display()
        )));
    }
    let mut last = [b'\n'];
    if file.seek(SeekFrom::End(0))? > 0 {
        file.seek(SeekFrom::End(-1))?;
        file.read_exact(&mut last)?;
    }
    Ok((file, last != [b'\n']))
}

/// `access.log.1` for `access.log`.
fn numbered(path: &Path, number: u32) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{number}"));
    name.into()
}

fn rename(from: &Path, to: &Path) -> io::Result<()> {
    let renamed = fs::rename(from, to);
    renamed.map_err(|error| told(&error, &format!("rename {} to {}", from.display(), to.display())))
}

fn told(error: &io::Error, what: &str) -> io::Error {
    io::Error::new(error.kind(), format!("cannot {what}: {error}"))
}

fn unless_missing(renamed: io::Result<()>) -> io::Result<()> {
    match renamed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        renamed => renamed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(path: &Path) -> Vec<Option<String>> {
        let old = (1..4).map(|number| numbered(path, number));
        std::iter::once(path.to_owned()).chain(old).map(|path| fs::read_to_string(path).ok()).collect()
    }

    fn some<const N: usize>(texts: [&str; N]) -> Vec<Option<String>> {
        let texts = texts.map(|text| (!text.is_empty()).then(|| text.to_owned()));
        texts.into_iter().chain([None, None, None, None]).take(4).collect()
    }

    #[test]
    fn the_oldest_lines_go() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("access.log");
        let settings = LogFile { path: path.clone(), bytes: 8, old: 2 };
        let mut log = Rotated::open(&settings).unwrap();
        for line in ["one\n", "two\n", "three\n"] {
            log.write(line.as_bytes()).unwrap();
        }
        assert_eq!(texts(&path), some(["three\n", "one\ntwo\n"]));
        // A batch that is too long for a file has one for itself.
        log.write(b"four and more\n").unwrap();
        log.write(b"five\n").unwrap();
        assert_eq!(texts(&path), some(["five\n", "four and more\n", "three\n"]));
        drop(log);
        Rotated::open(&settings).unwrap().write(b"6\n").unwrap();
        assert_eq!(texts(&path), some(["five\n6\n", "four and more\n", "three\n"]));
        let none = LogFile { old: 0, ..settings };
        Rotated::open(&none).unwrap().write(b"seven\n").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "seven\n");
    }

    #[test]
    fn a_file_that_cannot_be_moved_goes_on() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("access.log");
        fs::create_dir_all(numbered(&path, 2).join("in the way")).unwrap();
        let mut log = Rotated::open(&LogFile { path: path.clone(), bytes: 8, old: 2 }).unwrap();
        fs::write(numbered(&path, 1), "old\n").unwrap();
        for line in ["one and more\n", "two\n", "three\n"] {
            log.write(line.as_bytes()).unwrap();
        }
        assert_eq!(fs::read_to_string(&path).unwrap(), "one and more\ntwo\nthree\n");
        let problem = log.rotate().unwrap_err().to_string();
        let (from, to) = (numbered(&path, 1), numbered(&path, 2));
        let expected = format!("cannot rename {} to {}: ", from.display(), to.display());
        assert!(problem.starts_with(&expected), "{problem}");
        fs::remove_dir_all(numbered(&path, 2)).unwrap();
        log.stuck = Some(Instant::now());
        log.write(b"four\n").unwrap();
        assert!(!numbered(&path, 2).exists(), "it is tried again a second later");
        log.stuck = None;
        log.write(b"five\n").unwrap();
        assert_eq!(texts(&path), some(["five\n", "one and more\ntwo\nthree\nfour\n", "old\n"]));
    }

    #[test]
    fn the_file_behind_a_link_is_moved() {
        let directory = tempfile::tempdir().unwrap();
        let (path, link) = (directory.path().join("behind.log"), directory.path().join("access.log"));
        fs::write(&path, "").unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        let mut log = Rotated::open(&LogFile { path: link.clone(), bytes: 8, old: 1 }).unwrap();
        for line in ["one more\n", "two\n"] {
            log.write(line.as_bytes()).unwrap();
        }
        assert_eq!(texts(&path), some(["two\n", "one more\n"]));
        assert_eq!(fs::read_link(&link).unwrap(), path);
    }

    #[test]
    fn two_agents_write_to_one_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("access.log");
        let settings = LogFile { path: path.clone(), bytes: 8, old: 3 };
        let [mut one, mut other] = [(); 2].map(|()| Rotated::open(&settings).unwrap());
        one.write(b"one\n").unwrap();
        other.write(b"two\n").unwrap();
        other.write(b"three\n").unwrap();
        one.write(b"four\n").unwrap();
        other.write(b"5\n").unwrap();
        assert_eq!(texts(&path), some(["four\n5\n", "three\n", "one\ntwo\n"]));
    }

    #[test]
    fn a_line_that_broke_off_spoils_no_other() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("access.log");
        fs::write(&path, "one\ntw").unwrap();
        let settings = LogFile { path: path.clone(), bytes: 100, old: 1 };
        let mut log = Rotated::open(&settings).unwrap();
        log.write(b"three\n").unwrap();
        log.write(b"four\n").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "one\ntw\nthree\nfour\n");
        assert!(Rotated::open(&LogFile { path: "/dev/null".into(), ..settings }).is_err());
    }
}
