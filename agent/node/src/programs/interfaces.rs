//! Interfaces to which the packet guard or the reader of names is attached.

use std::fs;
use std::path::Path;

use rustix::net::netdevice::name_to_index;

/// A choice of interfaces.
///
/// XDP taxes every packet of an interface, has room for one program, which the cluster's network
/// may need for itself, and switches segmentation offload off on veth (published: TCP falls from 45
/// to 8 Gb/s). The steering program refuses what the guard would drop, so the guard is for those
/// who ask.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Interfaces {
    #[default]
    None,
    /// The interfaces with a device of their own under `/sys/class/net`.
    Uplinks,
    /// The same and those of pods: every Ethernet interface that lies on no other. Each packet
    /// comes in by one of them, and by one only.
    All,
    /// Exactly these, of whatever kind.
    Named(Vec<String>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Interface {
    pub(crate) name: String,
    pub(crate) index: u32,
}

impl Interfaces {
    /// As an operator names them: nothing or `none` for none, `uplinks` for those with a device,
    /// `all` for those of pods, too.
    pub fn from_names(names: &[String]) -> Self {
        match names {
            [] => Self::None,
            [none] if none == "none" => Self::None,
            [uplinks] if uplinks == "uplinks" => Self::Uplinks,
            [all] if all == "all" => Self::All,
            names => Self::Named(names.to_vec()),
        }
    }

    /// Those that are there, and the names of those that are not.
    pub(crate) fn find(&self) -> (Vec<Interface>, Vec<&str>) {
        match self {
            Interfaces::None => (vec![], vec![]),
            Interfaces::Uplinks => (list(is_uplink), vec![]),
            Interfaces::All => (list(is_lowest), vec![]),
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

const CLASS: &str = "/sys/class/net";

fn list(is_meant: fn(&Path) -> bool) -> Vec<Interface> {
    entries(Path::new(CLASS), is_meant).filter_map(here).collect()
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
fn is_uplink(entry: &Path) -> bool {
    entry.join("device").exists()
}

/// Bridges, bonds, VLANs and most tunnels name the interfaces below, by which their packets came in
/// before; loopback and the other tunnels are no Ethernet.
fn is_lowest(entry: &Path) -> bool {
    let is_ethernet = fs::read_to_string(entry.join("type")).is_ok_and(|kind| kind.trim() == ETHERNET);
    let mut files = fs::read_dir(entry).into_iter().flatten().flatten();
    is_ethernet && !files.any(|file| file.file_name().as_encoded_bytes().starts_with(b"lower_"))
}

/// `ARPHRD_ETHER` of linux/if_arp.h.
const ETHERNET: &str = "1";

/// Names and indices of the entries that are meant.
fn entries(class: &Path, is_meant: fn(&Path) -> bool) -> impl Iterator<Item = (String, u32)> {
    let entries = fs::read_dir(class).into_iter().flatten().flatten();
    let meant = entries.filter(move |entry| is_meant(&entry.path()));
    meant.filter_map(|entry| {
        let index = fs::read_to_string(entry.path().join("ifindex")).ok()?;
        Some((entry.file_name().into_string().ok()?, index.trim().parse().ok()?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_interfaces_with_a_device_are_uplinks_and_all_are_the_lowest() {
        let class = tempfile::tempdir().unwrap();
        let entry = |name: &str| class.path().join(name);
        fs::create_dir_all(entry("eth0/device")).unwrap();
        fs::create_dir_all(entry("bridge0/lower_veth1")).unwrap();
        let kinds = [("lo", "772"), ("eth0", "1"), ("veth1", "1"), ("bridge0", "1"), ("tun0", "65534")];
        for (number, (name, kind)) in kinds.iter().enumerate() {
            fs::create_dir_all(entry(name)).unwrap();
            fs::write(entry(name).join("ifindex"), format!("{}\n", number + 1)).unwrap();
            fs::write(entry(name).join("type"), format!("{kind}\n")).unwrap();
        }
        assert_eq!(entries(class.path(), is_uplink).collect::<Vec<_>>(), [("eth0".to_owned(), 2)]);
        let mut lowest: Vec<_> = entries(class.path(), is_lowest).collect();
        lowest.sort();
        assert_eq!(lowest, [("eth0".to_owned(), 2), ("veth1".to_owned(), 3)]);
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
        assert_eq!(named(&["all"]), Interfaces::All);
        assert_eq!(named(&["eth0", "uplinks"]), Interfaces::Named(vec!["eth0".into(), "uplinks".into()]));
    }
}
