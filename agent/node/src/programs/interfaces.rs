//! The interfaces to which the packet guard is attached.

use std::fs;
use std::path::Path;

use rustix::net::netdevice::name_to_index;

use crate::error::Unavailable;

/// XDP switches segmentation offload off on veth (published: TCP falls from 45 to 8 Gb/s) and sees
/// every local byte on loopback, so virtual interfaces are only attached to when they are named.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Interfaces {
    /// No packet guard: connections are steered, nothing is dropped.
    None,
    /// The interfaces with a device of their own under `/sys/class/net`.
    #[default]
    Uplinks,
    /// Exactly these, of whatever kind.
    Named(Vec<String>),
}

pub(crate) struct Interface {
    pub(crate) name: String,
    pub(crate) index: u32,
}

impl Interfaces {
    /// As an operator names them: nothing for the default, `none` for no packet guard.
    pub fn from_names(names: &[String]) -> Self {
        match names {
            [] => Self::Uplinks,
            [none] if none == "none" => Self::None,
            names => Self::Named(names.to_vec()),
        }
    }

    pub(crate) fn resolve(&self) -> Result<Vec<Interface>, Unavailable> {
        match self {
            Interfaces::None => Ok(vec![]),
            Interfaces::Uplinks => Ok(uplinks(Path::new("/sys/class/net")).filter_map(here).collect()),
            Interfaces::Named(names) => names.iter().cloned().map(interface).collect(),
        }
    }
}

/// A file system shows the interfaces of the network namespace that it was mounted in, which need
/// not be ours.
fn here((name, index): (String, u32)) -> Option<Interface> {
    interface(name).ok().filter(|interface| interface.index == index)
}

fn interface(name: String) -> Result<Interface, Unavailable> {
    let socket = rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::DGRAM, None);
    match socket.and_then(|socket| name_to_index(socket, &name)) {
        Ok(index) => Ok(Interface { name, index }),
        Err(_) => Err(Unavailable::NoInterface(name)),
    }
}

/// Loopback, bridges, veths and tunnels have no `device`; network cards, virtual ones included, do.
fn uplinks(class: &Path) -> impl Iterator<Item = (String, u32)> {
    let entries = fs::read_dir(class).into_iter().flatten().flatten();
    let real = entries.filter(|entry| entry.path().join("device").exists());
    real.filter_map(|entry| {
        let index = fs::read_to_string(entry.path().join("ifindex")).ok()?;
        Some((entry.file_name().into_string().ok()?, index.trim().parse().ok()?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_interfaces_with_a_device_are_uplinks() {
        let class = tempfile::tempdir().unwrap();
        fs::create_dir_all(class.path().join("eth0/device")).unwrap();
        fs::create_dir_all(class.path().join("lo")).unwrap();
        fs::create_dir_all(class.path().join("veth1")).unwrap();
        for (number, name) in ["lo", "eth0", "veth1"].iter().enumerate() {
            fs::write(class.path().join(name).join("ifindex"), format!("{}\n", number + 1)).unwrap();
        }
        assert_eq!(uplinks(class.path()).collect::<Vec<_>>(), [("eth0".to_owned(), 2)]);
    }

    #[test]
    fn an_interface_of_another_namespace_is_not_here() {
        assert!(here(("lo".into(), 1)).is_some());
        assert!(here(("lo".into(), 999)).is_none());
        assert!(here(("no-such".into(), 1)).is_none());
    }

    #[test]
    fn an_unknown_interface_is_named() {
        let Err(error) = Interfaces::Named(vec!["no-such".into()]).resolve() else { panic!("resolved") };
        assert!(error.to_string().contains("no-such"));
    }
}
