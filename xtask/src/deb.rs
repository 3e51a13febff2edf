//! `cargo xtask deb`: the agent as a Debian package for machines outside of a cluster, by
//! `dpkg-deb`. The same input gives the same bytes: all times are `SOURCE_DATE_EPOCH`, or the
//! commit's.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use portcullis_testbed::{command, workspace};

use crate::architecture::Architecture;
use crate::image::{Linkage, linkage, strip};
use crate::release;

const MAINTAINER: &str = "Portcullis maintainers <maintainers@portcullis.dev>";

/// Files that an operator edits, and an upgrade asks about.
const CONFFILES: &str = "/etc/default/portcullis\n";

/// Files of this repository, by their places in the package.
const FILES: &[(&str, &str)] = &[
    ("deploy/systemd/portcullis.service", "usr/lib/systemd/system/portcullis.service"),
    ("deploy/systemd/sysusers.conf", "usr/lib/sysusers.d/portcullis.conf"),
    ("deploy/debian/default", "etc/default/portcullis"),
    ("deploy/debian/copyright", "usr/share/doc/portcullis/copyright"),
    ("examples/home-server/gateway.yaml", "usr/share/doc/portcullis/examples/home-server/gateway.yaml"),
    ("examples/home-server/photos.yaml", "usr/share/doc/portcullis/examples/home-server/photos.yaml"),
    ("examples/home-server/files.yaml", "usr/share/doc/portcullis/examples/home-server/files.yaml"),
];

/// Scripts of a shell by which it completes commands.
const COMPLETIONS: &[(&str, &str)] = &[
    ("bash", "usr/share/bash-completion/completions/portcullis"),
    ("zsh", "usr/share/zsh/vendor-completions/_portcullis"),
    ("fish", "usr/share/fish/vendor_completions.d/portcullis.fish"),
];

const SCRIPTS: &[&str] = &["postinst", "prerm", "postrm"];

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Path of the package [default: target/deb/portcullis_VERSION_ARCHITECTURE.deb]
    #[arg(long)]
    output: Option<PathBuf>,
    /// An agent that is built already, for this machine's architecture
    #[arg(long)]
    binary: Option<PathBuf>,
    /// Do not compress it: for tests
    #[arg(long, hide = true)]
    uncompressed: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let program = args.binary.clone().map_or_else(|| release::build(None), Ok)?;
    let epoch = epoch()?;
    let package = tempfile::tempdir()?;
    let contents = Contents { root: package.path() };
    contents.add_files(&program)?;
    contents.add_made(epoch)?;
    let architecture = Architecture::of(&program)?.name();
    contents.add_control(architecture, &depends(linkage(&program)?)?)?;
    let version = env!("CARGO_PKG_VERSION");
    let name = format!("target/deb/portcullis_{version}_{architecture}.deb");
    let output = args.output.clone().unwrap_or_else(|| workspace::root().join(name));
    fs::create_dir_all(output.parent().context("the package has no directory")?)?;
    let mut build = Command::new("dpkg-deb");
    let compression = if args.uncompressed { "-Znone" } else { "-Zxz" };
    build.args(["--root-owner-group", compression, "--build"]).arg(package.path()).arg(&output);
    command::output(build.env("SOURCE_DATE_EPOCH", epoch.to_string()))?;
    println!("deb: {} ({} MiB)", output.display(), fs::metadata(&output)?.len().div_ceil(1 << 20));
    Ok(())
}

/// Seconds since 1970: no file is younger.
fn epoch() -> Result<u64> {
    let given = std::env::var("SOURCE_DATE_EPOCH").ok();
    let committed = || command::ask("git", &["log", "-1", "--format=%ct"]);
    let text = given.or_else(committed).context("set SOURCE_DATE_EPOCH: there is no commit to ask")?;
    text.parse().with_context(|| format!("SOURCE_DATE_EPOCH {text:?} is no number of seconds"))
}

/// The agent that is shipped is static. One that is not has this machine's C library, or a newer
/// one.
fn depends(linkage: Linkage) -> Result<String> {
    let mut depends =
        "init-system-helpers (>= 1.54), systemd | systemd-standalone-sysusers | systemd-sysusers".to_owned();
    if linkage == Linkage::Dynamic {
        let version = command::ask("dpkg-query", &["-W", "-f", "${Version}", "libc6"]);
        let version = version.context("dpkg knows no libc6")?;
        let upstream = version.split('-').next().unwrap_or_default();
        depends += &format!(", libc6 (>= {upstream}), libgcc-s1");
    }
    Ok(depends)
}

/// The directory that becomes the package.
struct Contents<'a> {
    root: &'a Path,
}

impl Contents<'_> {
    fn add_files(&self, program: &Path) -> Result<()> {
        self.write("usr/bin/portcullis", 0o755, &fs::read(strip(program)?)?)?;
        for (source, place) in FILES {
            let bytes = fs::read(workspace::root().join(source)).with_context(|| (*source).to_owned())?;
            self.write(place, 0o644, &bytes)?;
        }
        self.directory(&self.root.join("etc/portcullis/config"))
    }

    /// The agent itself prints what it is about.
    fn add_made(&self, epoch: u64) -> Result<()> {
        let program = self.root.join("usr/bin/portcullis");
        for (shell, place) in COMPLETIONS {
            let script = command::output(Command::new(&program).args(["completions", shell]))?;
            self.write(place, 0o644, script.as_bytes())?;
        }
        let pages = tempfile::tempdir()?;
        command::output(Command::new(&program).args(["man", "--dir"]).arg(pages.path()))?;
        for page in fs::read_dir(pages.path())? {
            let page = page?;
            let name = page.file_name().to_string_lossy().into_owned();
            self.compressed(&format!("usr/share/man/man1/{name}.gz"), &page.path())?;
        }
        let date = command::output(Command::new("date").args(["-u", "-R", "-d", &format!("@{epoch}")]))?;
        let changes = pages.path().join("changelog");
        let version = env!("CARGO_PKG_VERSION");
        let entry = format!(
            "portcullis ({version}) unstable; urgency=medium\n\n  * Release {version}: CHANGELOG.md of the source has \
             what is new.\n\n -- {MAINTAINER}  {date}"
        );
        fs::write(&changes, entry)?;
        self.compressed("usr/share/doc/portcullis/changelog.gz", &changes)
    }

    fn add_control(&self, architecture: &str, depends: &str) -> Result<()> {
        let version = env!("CARGO_PKG_VERSION");
        let size = size(self.root)?.div_ceil(1 << 10);
        let control = format!(
            "Package: portcullis\nVersion: {version}\nArchitecture: {architecture}\nMaintainer: {MAINTAINER}\n\
             Installed-Size: {size}\nDepends: {depends}\nRecommends: ca-certificates\nSection: net\nPriority: optional\n\
             Description: gateway for HTTP, TLS, TCP and UDP by the Gateway API\n \
             Serves manifests of Kubernetes' Gateway API from a directory, without a\n cluster: listeners, routes and \
             policies by name, address and path. Where the\n kernel permits, its programs (eBPF) steer and forward \
             connections.\n"
        );
        self.write("DEBIAN/control", 0o644, control.as_bytes())?;
        self.write("DEBIAN/conffiles", 0o644, CONFFILES.as_bytes())?;
        let sums = command::output(
            Command::new("sh")
                .current_dir(self.root)
                .args(["-c", "find usr -type f -print0 | LC_ALL=C sort -z | xargs -0 md5sum"]),
        )?;
        self.write("DEBIAN/md5sums", 0o644, sums.as_bytes())?;
        for script in SCRIPTS {
            let source = workspace::root().join("deploy/debian").join(script);
            self.write(&format!("DEBIAN/{script}"), 0o755, &fs::read(source)?)?;
        }
        Ok(())
    }

    /// As Debian wants manual pages and changes: without name and time.
    fn compressed(&self, place: &str, source: &Path) -> Result<()> {
        self.write(place, 0o644, &[])?;
        let target = File::create(self.root.join(place))?;
        let mut gzip = Command::new("gzip");
        let status = gzip.arg("-9nc").stdin(File::open(source)?).stdout(Stdio::from(target)).status();
        if !status.context("cannot run gzip")?.success() {
            bail!("gzip cannot compress {}", source.display());
        }
        Ok(())
    }

    /// With these modes, whatever the umask is.
    fn write(&self, place: &str, mode: u32, bytes: &[u8]) -> Result<()> {
        let path = self.root.join(place);
        self.directory(path.parent().unwrap_or(self.root))?;
        fs::write(&path, bytes)?;
        Ok(fs::set_permissions(path, Permissions::from_mode(mode))?)
    }

    fn directory(&self, path: &Path) -> Result<()> {
        fs::create_dir_all(path)?;
        for directory in path.ancestors().take_while(|place| place.starts_with(self.root)) {
            fs::set_permissions(directory, Permissions::from_mode(0o755))?;
        }
        Ok(())
    }
}

/// Bytes of all files below a directory.
fn size(directory: &Path) -> Result<u64> {
    let mut sum = 0;
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        sum += if entry.file_type()?.is_dir() { size(&entry.path())? } else { entry.metadata()?.len() };
    }
    Ok(sum)
}
