//! Tables of nftables: sets of keys, chains, and rules of few expressions, as the parts of this
//! crate need them. What they are for is not known here. Each table is replaced as a whole, in one
//! transaction: nothing in it has a state that could be lost. The numbers of attributes are those
//! of linux/netfilter/nf_tables.h.

pub(crate) mod addressing;
mod message;

use std::io;
use std::time::Duration;

use netlink_sys::Socket;

use message::{Attributes, Batch, Kind};

/// The name of tables that are left for the next agent; families name their tables apart.
pub(crate) const LASTING: &str = "portcullis";

/// Elements of one message: a list's length has 16 bits.
const CHUNK: usize = 1000;

/// Registers of four bytes each. Those of a key lie one after the other.
const KEY: u32 = 8;
/// Of one value.
const VALUE: u32 = 1;
const REGISTER: usize = 4;

/// The place of the flags in a TCP header.
const TCP_FLAGS: u32 = 13;

/// `enum nft_meta_keys`.
const MARK: u32 = 3;
const OUTPUT_INTERFACE: u32 = 5;
const TRANSPORT_PROTOCOL: u32 = 16;

/// A protocol family of netfilter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    /// IPv4 and IPv6.
    Inet = 1,
    Ipv4 = 2,
    Arp = 3,
    Ipv6 = 10,
}

/// The tables as they are to be.
pub(crate) struct Ruleset(Batch);

/// A table under construction.
pub(crate) struct Table<'r> {
    batch: &'r mut Batch,
    family: Family,
    name: &'r str,
}

/// A table that the kernel takes away with this value, at the latest when the process ends.
pub(crate) struct Owned(#[expect(dead_code, reason = "the table goes when it is closed")] Socket);

/// The end of a table.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lifetime {
    Lasting,
    /// With the process; no other may change it.
    Owned,
}

/// A header of a packet, from which bytes are read.
#[derive(Clone, Copy)]
pub(crate) enum Header {
    Network = 1,
    Transport = 2,
}

/// Expressions, each of which has to hold for the next.
pub(crate) struct Rule(Attributes);

// === impl Ruleset ===

impl Ruleset {
    pub(crate) fn new() -> Self {
        Self(Batch::new())
    }

    /// Takes a table away, if there is one.
    pub(crate) fn without(&mut self, family: Family, name: &str) {
        // Deleting what is not there is an error, so it is made first.
        self.0.add(Kind::NewTable, family as u8, table(name));
        self.0.add(Kind::DeleteTable, family as u8, table(name));
    }

    /// Begins a table anew.
    pub(crate) fn table<'r>(&'r mut self, family: Family, name: &'r str) -> Table<'r> {
        self.without(family, name);
        self.new_table(family, name, Lifetime::Lasting)
    }

    /// Begins a table that is not there yet.
    pub(crate) fn new_table<'r>(
        &'r mut self,
        family: Family,
        name: &'r str,
        lifetime: Lifetime,
    ) -> Table<'r> {
        const OWNER: u32 = 2;
        let made = match lifetime {
            Lifetime::Lasting => table(name),
            Lifetime::Owned => table(name).number(2, OWNER),
        };
        self.0.add(Kind::NewTable, family as u8, made);
        self.existing(family, name)
    }

    /// Changes a table that is there.
    pub(crate) fn existing<'r>(&'r mut self, family: Family, name: &'r str) -> Table<'r> {
        Table { batch: &mut self.0, family, name }
    }

    /// Puts all of it in force, or nothing.
    ///
    /// # Errors
    /// When the kernel has no nftables, or the agent lacks NET_ADMIN.
    pub(crate) fn commit(self) -> io::Result<()> {
        self.0.send().map(drop)
    }

    /// The same, with tables that end with what is returned.
    ///
    /// # Errors
    /// As [`Ruleset::commit`]; tables have owners since Linux 5.12.
    pub(crate) fn commit_owned(self) -> io::Result<Owned> {
        self.0.send().map(Owned)
    }
}

/// Returns `true` if the table of a family has this many rules. A firewall that is loaded anew
/// flushes those of all programs.
pub(crate) fn has_rules(family: Family, name: &str, rules: usize) -> io::Result<bool> {
    Ok(message::count(Kind::GetRule, family as u8, table(name))? == rules)
}

/// Returns `true` if a set of a table has this many elements.
pub(crate) fn has_elements(family: Family, name: &str, set: &str, elements: usize) -> io::Result<bool> {
    // Table 1, set 2.
    Ok(message::count_elements(family as u8, table(name).text(2, set))? == elements)
}

/// Returns `true` for the error of a kernel that knows no rules, or none of the family, and
/// therefore has none of ours.
pub(crate) fn is_unknown(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EPROTONOSUPPORT | libc::EOPNOTSUPP))
}

// === impl Table ===

impl Table<'_> {
    /// A set of keys of equal length. `shown_as` is how nft(8) shows them: its number of the type,
    /// or of a concatenation six bits each.
    pub(crate) fn set(&mut self, name: &str, shown_as: u32, keys: &[Vec<u8>]) {
        let length = keys.first().map_or(0, Vec::len) as u32;
        // Table 1, name 2, key type 4, key length 5, id 10.
        let set = table(self.name).text(2, name).number(4, shown_as);
        self.add(Kind::NewSet, set.number(5, length).number(10, 1));
        for chunk in keys.chunks(CHUNK) {
            // Each an element (1) with a key (1) with a value (1).
            let elements = chunk.iter().fold(Attributes::new(), |list, key| {
                list.nested(1, Attributes::new().nested(1, Attributes::new().bytes(1, key)))
            });
            // Table 1, set 2, elements 3.
            self.add(Kind::NewElements, table(self.name).text(2, name).nested(3, elements));
        }
    }

    /// A set whose keys leave it by themselves.
    pub(crate) fn fading_set(&mut self, name: &str, shown_as: u32, length: u32) {
        const TIMEOUT: u32 = 0x10;
        let set = table(self.name).text(2, name).number(3, TIMEOUT).number(4, shown_as);
        self.add(Kind::NewSet, set.number(5, length).number(10, 1));
    }

    /// Has such a set hold this key alone, for so long from now on.
    pub(crate) fn refresh(&mut self, name: &str, key: &[u8], time: Duration) {
        self.add(Kind::DeleteElements, table(self.name).text(2, name));
        let milliseconds = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        // Key 1, timeout 4.
        let element = Attributes::new().nested(1, Attributes::new().bytes(1, key));
        let element = element.bytes(4, &milliseconds.to_be_bytes());
        let elements = Attributes::new().nested(1, element);
        self.add(Kind::NewElements, table(self.name).text(2, name).nested(3, elements));
    }

    /// A chain of type filter at a hook of the family.
    pub(crate) fn chain(&mut self, name: &str, hook: u32, priority: i32) {
        let hook = Attributes::new().number(1, hook).number(2, priority.cast_unsigned());
        // Table 1, name 3, hook 4 (number 1, priority 2), type 7.
        let chain = table(self.name).text(3, name).nested(4, hook).text(7, "filter");
        self.add(Kind::NewChain, chain);
    }

    pub(crate) fn rule(&mut self, chain: &str, Rule(expressions): Rule) {
        // Table 1, chain 2, expressions 4.
        self.add(Kind::NewRule, table(self.name).text(2, chain).nested(4, expressions));
    }

    fn add(&mut self, kind: Kind, attributes: Attributes) {
        self.batch.add(kind, self.family as u8, attributes);
    }
}

// === impl Rule ===

impl Rule {
    pub(crate) fn new() -> Self {
        Self(Attributes::new())
    }

    /// The packet has these bytes there; at most 16.
    pub(crate) fn has(self, header: Header, offset: u32, bytes: &[u8]) -> Self {
        self.load(VALUE, header, offset, bytes.len() as u32).equals(bytes)
    }

    /// The packet leaves by the interface of this index.
    pub(crate) fn leaves_by(self, interface: u32) -> Self {
        self.meta(VALUE, OUTPUT_INTERFACE).equals(&interface.to_ne_bytes())
    }

    /// The address of this length at this place is in the set.
    pub(crate) fn address_in(self, set: &str, offset: u32, length: u32) -> Self {
        self.load(KEY, Header::Network, offset, length).look_up(set)
    }

    /// Address, protocol and port at these places are in the set, each padded to four bytes.
    pub(crate) fn endpoint_in(self, set: &str, (offset, length): (u32, u32), port: u32) -> Self {
        let protocol = KEY + length / REGISTER as u32;
        let address = self.load(KEY, Header::Network, offset, length);
        address.meta(protocol, TRANSPORT_PROTOCOL).load(protocol + 1, Header::Transport, port, 2).look_up(set)
    }

    pub(crate) fn untracked(self) -> Self {
        self.expression("notrack", None)
    }

    pub(crate) fn dropped(self) -> Self {
        self.verdict(0)
    }

    pub(crate) fn accepted(self) -> Self {
        self.verdict(1)
    }

    /// Register 0 is the verdict; data (2) with a verdict (2) with its code (1).
    fn verdict(self, code: u32) -> Self {
        let verdict = Attributes::new().nested(2, Attributes::new().number(1, code));
        self.expression("immediate", Some(Attributes::new().number(1, 0).nested(2, verdict)))
    }

    /// The packet begins a TCP connection: SYN, without ACK, RST and FIN.
    pub(crate) fn begins_connection(self) -> Self {
        let tcp = self.meta(VALUE, TRANSPORT_PROTOCOL).equals(&[6]);
        tcp.load(VALUE, Header::Transport, TCP_FLAGS, 1).masked(&[0x17], &[0]).equals(&[0x02])
    }

    /// The packet is none of TCP.
    pub(crate) fn other_than_tcp(self) -> Self {
        self.meta(VALUE, TRANSPORT_PROTOCOL).differs(&[6])
    }

    /// The packet, of TCP, does not begin a connection.
    pub(crate) fn continues_connection(self) -> Self {
        self.load(VALUE, Header::Transport, TCP_FLAGS, 1).masked(&[0x17], &[0]).differs(&[0x02])
    }

    /// The transport protocol is in the set.
    pub(crate) fn protocol_in(self, set: &str) -> Self {
        self.meta(KEY, TRANSPORT_PROTOCOL).look_up(set)
    }

    /// The port at this place of the transport header is in the set.
    pub(crate) fn port_in(self, set: &str, port: u32) -> Self {
        self.load(KEY, Header::Transport, port, 2).look_up(set)
    }

    /// The packet is one of IPv4, or of IPv6.
    pub(crate) fn of_family(self, family: Family) -> Self {
        const PROTOCOL_FAMILY: u32 = 15;
        self.meta(VALUE, PROTOCOL_FAMILY).equals(&[family as u8])
    }

    pub(crate) fn has_mark(self, bit: u32) -> Self {
        self.meta(VALUE, MARK).masked(&bit.to_ne_bytes(), &[0; 4]).equals(&bit.to_ne_bytes())
    }

    /// Sets the bit of the packet's mark.
    pub(crate) fn with_mark(self, bit: u32) -> Self {
        self.meta(VALUE, MARK).masked(&(!bit).to_ne_bytes(), &bit.to_ne_bytes()).set_mark()
    }

    /// Clears the bit of the packet's mark.
    pub(crate) fn without_mark(self, bit: u32) -> Self {
        self.meta(VALUE, MARK).masked(&(!bit).to_ne_bytes(), &[0; 4]).set_mark()
    }

    fn set_mark(self) -> Self {
        // Key 2, source register 3.
        self.expression("meta", Some(Attributes::new().number(2, MARK).number(3, VALUE)))
    }

    /// The value, and-ed with a mask and xor-ed.
    fn masked(self, mask: &[u8], xor: &[u8]) -> Self {
        // Source 1 and destination 2 register, length 3, mask 4, xor 5.
        let operation = Attributes::new().number(1, VALUE).number(2, VALUE).number(3, mask.len() as u32);
        let mask = Attributes::new().bytes(1, mask);
        let xor = Attributes::new().bytes(1, xor);
        self.expression("bitwise", Some(operation.nested(4, mask).nested(5, xor)))
    }

    /// Writes into the network header. No checksum is mended.
    pub(crate) fn written(self, offset: u32, bytes: &[u8]) -> Self {
        let value = Attributes::new().bytes(1, bytes);
        let set = self.expression("immediate", Some(Attributes::new().number(1, VALUE).nested(2, value)));
        // Base 2, offset 3, length 4, source register 5.
        let write = Attributes::new().number(2, Header::Network as u32).number(3, offset);
        set.expression("payload", Some(write.number(4, bytes.len() as u32).number(5, VALUE)))
    }

    fn load(self, register: u32, header: Header, offset: u32, length: u32) -> Self {
        // Destination register 1, base 2, offset 3, length 4.
        let load = Attributes::new().number(1, register).number(2, header as u32);
        self.expression("payload", Some(load.number(3, offset).number(4, length)))
    }

    fn meta(self, register: u32, key: u32) -> Self {
        // Destination register 1, key 2.
        self.expression("meta", Some(Attributes::new().number(1, register).number(2, key)))
    }

    fn equals(self, bytes: &[u8]) -> Self {
        self.compare(0, bytes)
    }

    fn differs(self, bytes: &[u8]) -> Self {
        self.compare(1, bytes)
    }

    /// Source register 1, operation 2, data 3.
    fn compare(self, operation: u32, bytes: &[u8]) -> Self {
        let data = Attributes::new().bytes(1, bytes);
        self.expression("cmp", Some(Attributes::new().number(1, VALUE).number(2, operation).nested(3, data)))
    }

    fn look_up(self, set: &str) -> Self {
        // Set 1, source register 2.
        self.expression("lookup", Some(Attributes::new().text(1, set).number(2, KEY)))
    }

    /// Name 1, data 2; each an element (1) of the list.
    fn expression(self, name: &str, data: Option<Attributes>) -> Self {
        let named = Attributes::new().text(1, name);
        let expression = match data {
            Some(data) => named.nested(2, data),
            None => named,
        };
        Self(self.0.nested(1, expression))
    }
}

/// `NFTA_TABLE_NAME`, which is the first attribute of everything else, too.
fn table(name: &str) -> Attributes {
    Attributes::new().text(1, name)
}
