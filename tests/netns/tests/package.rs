//! The Debian package under a real systemd, which runs in namespaces of its own on a copy of this
//! machine's files: what operators do with the unit, and what they see. Takes root, and the
//! programs that `cargo xtask setup` installs.
#![cfg(test)]

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use portcullis_testbed::{build, command, until, workspace};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tempfile::TempDir;

const LONG: Duration = Duration::from_secs(60);

/// Argument: a directory. What is changed in the copy of `/` is kept in memory, and goes with the
/// mount namespace. Services of this machine are not started: they are wanted by other targets. Of
/// the kernel's settings only those of its own network can be written: others are this machine's.
const BOOT: &str = r#"
set -e
mount --make-rprivate /
mount -t tmpfs tmpfs "$1"
mkdir "$1/changes" "$1/work" "$1/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/changes,workdir=$1/work" "$1/root"
cd "$1/root"
mount -t proc proc proc
mount --bind proc/sys proc/sys
mount --bind proc/sys/net proc/sys/net
mount -o remount,bind,ro proc/sys
mount -t sysfs -o ro sysfs sys
mount -t bpf bpf sys/fs/bpf -o mode=700
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t tmpfs tmpfs run
mount -t tmpfs tmpfs tmp
mount -t tmpfs -o mode=755 tmpfs dev
for device in null zero full random urandom tty ptmx; do cp -a "/dev/$device" dev/; done
ip link set lo up
rm -rf etc/portcullis var/lib/portcullis usr/sbin/policy-rc.d
mkdir before
pivot_root . before
umount -l /before
exec env -i PATH="$PATH" container=test /lib/systemd/systemd --system --unit=basic.target
"#;

/// A system with an init of its own.
struct Machine {
    child: Child,
    init: u32,
    _place: TempDir,
}

impl Machine {
    fn boot() -> Result<Self> {
        ensure!(rustix::process::getuid().is_root(), "this test needs root");
        let place = tempfile::tempdir()?;
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "unshare", "--pid", "--mount", "--net", "--cgroup", "--uts"]);
        command.args(["--ipc", "--fork", "--kill-child=KILL", "bash", "-c", BOOT, "bash"]).arg(place.path());
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let child = command.spawn().context("cannot run setpriv")?;
        let mut machine = Self { child, init: 0, _place: place };
        let children = format!("/proc/{0}/task/{0}/children", machine.child.id());
        machine.init = until(LONG, || {
            let init = fs::read_to_string(&children)?.trim().parse()?;
            let name = fs::read_to_string(format!("/proc/{init}/comm"))?;
            ensure!(name.trim() == "systemd", "{name}");
            Ok(init)
        })?;
        until(LONG, || machine.run("systemctl is-active basic.target"))?;
        Ok(machine)
    }

    fn enter(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.init.to_string(), "--mount", "--pid", "--net", "--uts", "--ipc"]);
        command.args(["--cgroup", "--root", "--wdns=/", program]);
        command
    }

    /// Standard output of a line for the shell; an error says both outputs.
    fn run(&self, line: &str) -> Result<String> {
        let output = self.enter("sh").args(["-c", line]).stdin(Stdio::null()).output()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        if !output.status.success() {
            bail!("`{line}`: {}: {text}{}", output.status, String::from_utf8_lossy(&output.stderr));
        }
        Ok(text)
    }

    fn file(&self, path: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root{path}", self.init))
    }

    fn log(&self) -> String {
        self.run("journalctl --unit portcullis --output cat --no-pager").unwrap_or_default()
    }

    fn main_process(&self) -> Result<u32> {
        Ok(self.run("systemctl show --property MainPID --value portcullis")?.trim().parse()?)
    }

    /// Has a function run in the machine's network, on this thread's behalf.
    fn in_its_network(&self, function: impl FnOnce()) {
        let namespace = File::open(format!("/proc/{}/ns/net", self.init)).unwrap();
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
        function();
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // Already gone is fine.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Answered by the agent itself: no backend is to be held up.
const MANIFESTS: &str = "
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: web}
spec: {gatewayClassName: portcullis, listeners: [{name: http, protocol: HTTP, port: 80}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: web}
spec: {parentRefs: [{name: web}], rules: [{filters: [{type: RequestRedirect, requestRedirect: {port: 81}}]}]}
";

#[test]
fn a_service_of_systemd_serves_reloads_and_is_upgraded_without_a_refused_connection() {
    let packages = tempfile::tempdir().unwrap();
    let [package, next] = built(packages.path()).unwrap();
    let machine = Machine::boot().unwrap();
    fs::copy(&package, machine.file("/tmp/portcullis.deb")).unwrap();
    fs::copy(&next, machine.file("/tmp/next.deb")).unwrap();
    machine.run("dpkg --install --force-unsafe-io /tmp/portcullis.deb").unwrap();
    machine.run("systemd-analyze verify --man=no portcullis.service").unwrap();
    machine.run("systemctl is-active portcullis && systemctl is-enabled portcullis").unwrap();

    // An edit needs no reload.
    fs::write(machine.file("/etc/portcullis/config/web.yaml"), MANIFESTS).unwrap();
    until(LONG, || machine.run("portcullis ready")).unwrap();
    check_rights(&machine).unwrap();

    let is_over = AtomicBool::new(false);
    let answered = AtomicU64::new(0);
    thread::scope(|scope| {
        let client = || machine.in_its_network(|| ask_until(&is_over, &answered));
        let clients = [scope.spawn(client), scope.spawn(client)];
        let result = operate(&machine, &answered);
        is_over.store(true, Ordering::Relaxed);
        clients.into_iter().for_each(|client| client.join().unwrap());
        result.unwrap_or_else(|error| panic!("{error:#}\n{}", machine.log()));
    });

    machine.run("dpkg --remove portcullis").unwrap();
    assert!(!machine.file("/sys/fs/bpf/portcullis").exists(), "programs are left");
    assert!(machine.file("/etc/portcullis/config/web.yaml").exists(), "manifests are the operator's");
    // Removed with it, the directory is made anew, and as closed as at first.
    machine.run("rm -r /etc/portcullis && dpkg --install --force-unsafe-io /tmp/portcullis.deb").unwrap();
    let rights = machine.run("stat -c %U:%G:%a /etc/portcullis/config").unwrap();
    assert_eq!(rights.trim(), "root:portcullis:750");
    machine.run("dpkg --purge portcullis").unwrap();
    assert!(!machine.file("/run/portcullis-bpf").exists(), "the unit's mount point is left");
    assert!(!machine.file("/var/lib/portcullis").exists());
    assert!(!machine.file("/var/log/portcullis").exists());
}

/// All of an operator's commands that must cost no client anything.
fn operate(machine: &Machine, answered: &AtomicU64) -> Result<()> {
    let goes_on = || {
        let before = answered.load(Ordering::Relaxed);
        until(LONG, || {
            let more = answered.load(Ordering::Relaxed) - before;
            ensure!(more > 50, "{more} requests");
            Ok(())
        })
    };
    let replaced = |line: &str| {
        let before = machine.main_process()?;
        machine.run(line)?;
        ensure!(machine.main_process()? != before, "`{line}` replaces no process");
        goes_on()
    };
    replaced("systemctl reload portcullis")?;
    let default = machine.file("/etc/default/portcullis");
    let options = fs::read_to_string(&default)?;
    fs::write(&default, options.replace("\n#PORTCULLIS_ACCESS_LOG=", "\nPORTCULLIS_ACCESS_LOG="))?;
    replaced("systemctl reload portcullis")?;
    let rights = machine.run("stat -c %U:%G:%a /var/log/portcullis")?;
    ensure!(rights.trim() == "portcullis:portcullis:750", "{rights}");
    ensure!(machine.file("/var/log/portcullis/access.log").is_file(), "no access log");
    fs::write(&default, &options)?;
    replaced("dpkg --install --force-unsafe-io /tmp/next.deb")?;

    // A reload that is refused, whatever the reason, leaves the agent that serves.
    let before = machine.main_process()?;
    let broken = machine.file("/etc/portcullis/config/broken.yaml");
    fs::write(&broken, "kind: [")?;
    refuse(machine, "systemctl reload portcullis")?;
    let log = machine.log();
    ensure!(log.contains("broken.yaml:1") && log.contains("not YAML"), "{log}");
    fs::remove_file(broken)?;
    fs::write(&default, options.clone() + "PORTCULLIS_CORES=none\n")?;
    refuse(machine, "systemctl reload portcullis")?;
    fs::write(&default, options)?;
    ensure!(machine.main_process()? == before, "another one serves");
    goes_on()?;
    replaced("systemctl reload portcullis")
}

fn refuse(machine: &Machine, line: &str) -> Result<()> {
    match machine.run(line) {
        Ok(_) => bail!("`{line}` succeeds"),
        Err(_) => Ok(()),
    }
}

/// An ordinary user with four capabilities, and the kernel's programs all the same.
fn check_rights(machine: &Machine) -> Result<()> {
    let process = machine.main_process()?;
    let status = fs::read_to_string(machine.file(&format!("/proc/{process}/status")))?;
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
        line.split_whitespace().next().unwrap_or_default().to_owned()
    };
    // BPF 39, PERFMON 38, NET_ADMIN 12, NET_BIND_SERVICE 10.
    let capabilities = format!("{:016x}", 1_u64 << 39 | 1 << 38 | 1 << 12 | 1 << 10);
    for set in ["CapPrm:", "CapEff:", "CapBnd:", "CapAmb:"] {
        ensure!(field(set) == capabilities, "{set} {}", field(set));
    }
    ensure!(field("Uid:") != "0" && field("NoNewPrivs:") == "1" && field("Seccomp:") == "2", "{status}");
    let log = machine.log();
    ensure!(log.contains("datapath: ebpf: steer on this network namespace"), "{log}");
    Ok(())
}

/// Each request has a connection of its own, and each has to be answered.
fn ask_until(is_over: &AtomicBool, answered: &AtomicU64) {
    while !is_over.load(Ordering::Relaxed) {
        let mut answer = String::new();
        let mut connection = TcpStream::connect("127.0.0.1:80").unwrap();
        let request = b"GET / HTTP/1.1\r\nHost: web.example.com\r\nConnection: close\r\n\r\n";
        connection.write_all(request).unwrap();
        connection.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 302"), "{answer}");
        answered.fetch_add(1, Ordering::Relaxed);
    }
}

/// The package of this checkout's agent, which is the same when it is built again, and one of the
/// next version.
fn built(directory: &Path) -> Result<[PathBuf; 2]> {
    let (agent, xtask) = (build::debug_program(), workspace::target_directory().join("debug/xtask"));
    for program in [&agent, &xtask] {
        ensure!(program.is_file(), "no {}: run `cargo build -p portcullis -p xtask`", program.display());
    }
    let package = |name: &str| {
        let output = directory.join(name);
        let mut build = Command::new(&xtask);
        build
            .args(["deb", "--uncompressed", "--binary"])
            .arg(&agent)
            .arg("--output")
            .arg(&output)
            .env("SOURCE_DATE_EPOCH", "1700000000");
        command::output(&mut build).map(|_| output)
    };
    let (first, second) = (package("first.deb")?, package("second.deb")?);
    ensure!(fs::read(&first)? == fs::read(&second)?, "two builds differ");
    check_contents(&first)?;

    let tree = directory.join("tree");
    command::output(Command::new("dpkg-deb").arg("--raw-extract").args([&first, &tree]))?;
    let control = tree.join("DEBIAN/control");
    let text = fs::read_to_string(&control)?;
    fs::write(&control, text.replace("\nVersion: ", "\nVersion: 1:"))?;
    let next = directory.join("next.deb");
    command::output(Command::new("dpkg-deb").args(["-Znone", "--build"]).args([&tree, &next]))?;
    Ok([first, next])
}

fn check_contents(package: &Path) -> Result<()> {
    let list = command::output(Command::new("dpkg-deb").arg("--contents").arg(package))?;
    for line in list.lines() {
        let mut words = line.split_whitespace();
        let (mode, owner) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let mode_is_usual = match line.ends_with('/') || line.ends_with("/usr/bin/portcullis") {
            true => mode.ends_with("rwxr-xr-x"),
            false => mode == "-rw-r--r--",
        };
        ensure!(mode_is_usual && owner == "root/root", "{line}");
    }
    for file in [
        "etc/default/portcullis",
        "etc/portcullis/config/",
        "usr/bin/portcullis",
        "usr/lib/systemd/system/portcullis.service",
        "usr/lib/sysusers.d/portcullis.conf",
        "usr/share/bash-completion/completions/portcullis",
        "usr/share/doc/portcullis/changelog.gz",
        "usr/share/doc/portcullis/copyright",
        "usr/share/doc/portcullis/examples/home-server/gateway.yaml",
        "usr/share/man/man1/portcullis.1.gz",
        "usr/share/man/man1/portcullis-run.1.gz",
    ] {
        ensure!(list.lines().any(|line| line.ends_with(&format!(" ./{file}"))), "no {file} in:\n{list}");
    }
    let conffiles = command::output(Command::new("dpkg-deb").arg("--info").arg(package).arg("conffiles"))?;
    ensure!(conffiles == "/etc/default/portcullis\n", "{conffiles}");
    Ok(())
}
