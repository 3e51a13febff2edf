//! The interfaces to which the packet guard is attached.

use std::fs;
use std::path::Path;

use rustix::net::netdevice::name_to_index;

/// XDP taxes every packet of an interface, has room for one program, which the cluster's network
/// may need for itself, and switches segmentation offload off on veth (published: TCP falls from 45
/// to 8 Gb/s). The steering program refuses what the guard would drop, so the guard is for those
/// who ask.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Interfaces {
    /// No packet guard.
    #[default]
    None,
    /// The interfaces with a device of their own under `/sys/class/net`.
    Uplinks,
    /// Exactly these, of whatever kind.
    Named(Vec<String>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Interface {
    pub(crate) name: String,
    pub(crate) index: u32,
}

impl Interfaces {
    /// As an operator names them: nothing or `none` for no packet guard, `uplinks` for those with a
    /// device.
    pub fn from_names(names: &[String]) -> Self {
        match names {
            [] => Self::None,
            [none] if none == "none" => Self::None,
            [uplinks] if uplinks == "uplinks" => Self::Uplinks,
            names => Self::Named(names.to_vec()),
        }
    }

    /// Those that are there, and the names of those that are not.
    pub(crate) fn find(&self) -> (Vec<Interface>, Vec<&str>) {
        match self {
            Interfaces::None => (vec![], vec![]),
            Interfaces::Uplinks => (uplinks(Path::new("/sys/class/net")).filter_map(here).collect(), vec![]),
            Interfaces::Named(names) => {
                let absent = names.iter().filter(|name| interface(name).is_none());
                (
                    names.iter().filter_map(|name| interface(name)).collect(),
                    absent.map(|name| &**name).collect(),
                )
            }
        }
    }
}

/// A file system shows the interfaces of the network namespace that it was mounted in, which need
/// not be ours.
fn here((name, index): (String, u32)) -> Option<Interface> {
    interface(&name).filter(|interface| interface.index == index)
}

fn interface(name: &str) -> Option<Interface> {
    let socket = rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::DGRAM, None);
    let index = socket.and_then(|socket| name_to_index(socket, name)).ok()?;
    Some(Interface { name: name.to_owned(), index })
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
    fn an_interface_that_is_not_there_is_named() {
        let named = Interfaces::Named(vec!["lo".into(), "no-such".into()]);
        let (present, absent) = named.find();
        assert_eq!((&*present[0].name, present[0].index, &*absent), ("lo", 1, &["no-such"][..]));
    }

    #[test]
    fn the_guard_is_for_those_who_ask() {
        let named =
            |names: &[&str]| Interfaces::from_names(&names.iter().map(|it| (*it).into()).collect::<Vec<_>>());
        assert_eq!(named(&[]), Interfaces::None);
        assert_eq!(named(&["none"]), Interfaces::None);
        assert_eq!(named(&["uplinks"]), Interfaces::Uplinks);
        assert_eq!(named(&["eth0", "uplinks"]), Interfaces::Named(vec!["eth0".into(), "uplinks".into()]));
    }
}
