//! The cgroups that hold the cluster's processes, so that pods nest in them and a cluster that is
//! gone leaves none behind.
//!
//! With cgroup v1 every hierarchy gets a directory below the caller's own, so the caller's limits
//! hold for the cluster too. With cgroup v2 there is one directory, at the top: elsewhere a group
//! with processes of its own could not delegate controllers.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};

use crate::layout::Layout;
use crate::wait;

const MOUNT: &str = "/sys/fs/cgroup";
/// With v2 only leaves may hold processes; pods get siblings of this one.
const LEAF: &str = "parts";
const V2_CONTROLLERS: &str = "+cpu +cpuset +memory +pids";

pub(crate) struct Cgroups {
    directories: Vec<PathBuf>,
}

impl Cgroups {
    /// Makes the cluster's cgroups and writes down where they are.
    pub(crate) fn create(layout: &Layout) -> Result<Self> {
        let name = layout.name();
        let directories = if is_v2() { vec![Path::new(MOUNT).join(name)] } else { v1_directories(&name)? };
        let lines: Vec<_> = directories.iter().map(|directory| directory.display().to_string()).collect();
        fs::write(layout.cgroups(), lines.join("\n"))?;
        for directory in &directories {
            make(directory).with_context(|| format!("cannot make the cgroup {}", directory.display()))?;
        }
        Ok(Self { directories })
    }

    /// The cgroups that [`create`](Self::create) wrote down; empty if it never ran.
    pub(crate) fn recorded(layout: &Layout) -> Self {
        let text = fs::read_to_string(layout.cgroups()).unwrap_or_default();
        Self { directories: text.lines().map(PathBuf::from).collect() }
    }

    /// Moves a process to where the cgroup namespace is to have its root.
    pub(crate) fn hold(&self, pid: u32) -> Result<()> {
        self.directories.iter().try_for_each(|directory| attach(directory, pid))
    }

    /// Moves a process in with the others.
    pub(crate) fn join(&self, pid: u32) -> Result<()> {
        let place = |directory: &PathBuf| if is_v2() { directory.join(LEAF) } else { directory.clone() };
        self.directories.iter().map(place).try_for_each(|directory| attach(&directory, pid))
    }

    /// Ends the processes that are left in them, and removes them.
    pub(crate) fn remove(&self) -> Result<()> {
        for directory in self.directories.iter().filter(|directory| directory.is_dir()) {
            let what = format!("removal of the cgroup {}", directory.display());
            wait::until_true(&what, Duration::from_secs(10), || remove_tree(directory).is_ok())?;
        }
        Ok(())
    }
}

/// The hierarchies with controllers; those with names (systemd's) limit nothing and are left alone.
fn v1_directories(name: &str) -> Result<Vec<PathBuf>> {
    let own = fs::read_to_string("/proc/self/cgroup").context("cannot read /proc/self/cgroup")?;
    let directory = |line: &str| {
        let (_, line) = line.split_once(':')?;
        let (controllers, path) = line.split_once(':')?;
        let mount = Path::new(MOUNT).join(controllers);
        let has_controllers = !controllers.is_empty() && !controllers.contains('=') && mount.is_dir();
        has_controllers.then(|| existing(mount, path).join(name))
    };
    Ok(own.lines().filter_map(directory).collect())
}

/// In a container the path may be the host's, and the mount already the container's group.
fn existing(mount: PathBuf, path: &str) -> PathBuf {
    let own = mount.join(path.trim_start_matches('/'));
    if own.is_dir() { own } else { mount }
}

fn make(directory: &Path) -> Result<()> {
    let parent = directory.parent().unwrap_or(directory);
    if is_v2() {
        // Ordinarily enabled already; a controller that is missing shows when a pod asks for it.
        let _ = fs::write(parent.join("cgroup.subtree_control"), V2_CONTROLLERS);
        fs::create_dir_all(directory.join(LEAF))?;
        return Ok(());
    }
    fs::create_dir_all(directory)?;
    // A new cpuset is empty, and an empty one takes no process.
    for file in ["cpuset.cpus", "cpuset.mems"] {
        if let Ok(value) = fs::read_to_string(parent.join(file)) {
            fs::write(directory.join(file), value)?;
        }
    }
    Ok(())
}

fn attach(directory: &Path, pid: u32) -> Result<()> {
    fs::write(directory.join("cgroup.procs"), pid.to_string())
        .with_context(|| format!("cannot enter the cgroup {}", directory.display()))
}

/// A start that was killed may have left a process that was not written down.
fn kill_all(directory: &Path) {
    let processes = fs::read_to_string(directory.join("cgroup.procs")).unwrap_or_default();
    for process in processes.lines().filter_map(|line| Pid::from_raw(line.parse().ok()?)) {
        let _ = kill_process(process, Signal::KILL);
    }
}

/// Depth first. The files in a cgroup's directory cannot and need not be removed.
fn remove_tree(directory: &Path) -> std::io::Result<()> {
    kill_all(directory);
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_dir() {
            remove_tree(&path)?;
        }
    }
    match fs::remove_dir(directory) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

pub(crate) fn is_v2() -> bool {
    Path::new(MOUNT).join("cgroup.controllers").exists()
}
