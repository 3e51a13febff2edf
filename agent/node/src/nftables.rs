//! Tables of nftables: sets of keys, chains, and rules of few expressions, as the parts of this
//! crate need them. What they are for is not known here. Each table is replaced as a whole, in one
//! transaction: nothing in it has a state that could be lost. The numbers of attributes are those
//! of linux/netfilter/nf_tables.h.

mod message;

use std::io;

use message::{Attributes, Batch, Kind};

/// The name of all our tables; families number their tables apart.
const TABLE: &str = "portcullis";

/// Elements of one message: a list's length has 16 bits.
const CHUNK: usize = 1000;

/// Registers of four bytes each. Those of a key lie one after the other.
const KEY: u32 = 8;
/// Of one value.
const VALUE: u32 = 1;
const REGISTER: usize = 4;

/// A protocol family of netfilter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
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

    /// Takes the table of a family away, if there is one.
    pub(crate) fn without(&mut self, family: Family) {
        // Deleting what is not there is an error, so it is made first.
        self.0.add(Kind::NewTable, family as u8, table());
        self.0.add(Kind::DeleteTable, family as u8, table());
    }

    /// Begins the table of a family anew.
    pub(crate) fn table(&mut self, family: Family) -> Table<'_> {
        self.without(family);
        self.0.add(Kind::NewTable, family as u8, table());
        Table { batch: &mut self.0, family }
    }

    /// Puts all of it in force, or nothing.
    ///
    /// # Errors
    /// When the kernel has no nftables, or the agent lacks NET_ADMIN.
    pub(crate) fn commit(self) -> io::Result<()> {
        self.0.send()
    }
}

/// Returns `true` if the table of a family has this many rules. A firewall that is loaded anew
/// flushes those of all programs.
pub(crate) fn has_rules(family: Family, rules: usize) -> io::Result<bool> {
    Ok(message::count(Kind::GetRule, family as u8, table())? == rules)
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
        let set = Attributes::new().text(1, TABLE).text(2, name).number(4, shown_as);
        self.add(Kind::NewSet, set.number(5, length).number(10, 1));
        for chunk in keys.chunks(CHUNK) {
            // Each an element (1) with a key (1) with a value (1).
            let elements = chunk.iter().fold(Attributes::new(), |list, key| {
                list.nested(1, Attributes::new().nested(1, Attributes::new().bytes(1, key)))
            });
            // Table 1, set 2, elements 3.
            self.add(Kind::NewElements, Attributes::new().text(1, TABLE).text(2, name).nested(3, elements));
        }
    }

    /// A chain of type filter at a hook of the family.
    pub(crate) fn chain(&mut self, name: &str, hook: u32, priority: i32) {
        let hook = Attributes::new().number(1, hook).number(2, priority.cast_unsigned());
        // Table 1, name 3, hook 4 (number 1, priority 2), type 7.
        let chain = Attributes::new().text(1, TABLE).text(3, name).nested(4, hook).text(7, "filter");
        self.add(Kind::NewChain, chain);
    }

    pub(crate) fn rule(&mut self, chain: &str, Rule(expressions): Rule) {
        // Table 1, chain 2, expressions 4.
        self.add(Kind::NewRule, Attributes::new().text(1, TABLE).text(2, chain).nested(4, expressions));
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
        const OUTPUT_INTERFACE: u32 = 5;
        self.meta(VALUE, OUTPUT_INTERFACE).equals(&interface.to_ne_bytes())
    }

    /// The address of this length at this place is in the set.
    pub(crate) fn address_in(self, set: &str, offset: u32, length: u32) -> Self {
        self.load(KEY, Header::Network, offset, length).look_up(set)
    }

    /// Address, protocol and port at these places are in the set, each padded to four bytes.
    pub(crate) fn endpoint_in(self, set: &str, (offset, length): (u32, u32), port: u32) -> Self {
        const TRANSPORT_PROTOCOL: u32 = 16;
        let protocol = KEY + length / REGISTER as u32;
        let address = self.load(KEY, Header::Network, offset, length);
        address.meta(protocol, TRANSPORT_PROTOCOL).load(protocol + 1, Header::Transport, port, 2).look_up(set)
    }

    pub(crate) fn untracked(self) -> Self {
        self.expression("notrack", None)
    }

    pub(crate) fn dropped(self) -> Self {
        // Register 0 is the verdict; its code (1), drop, is 0. Data (2) with a verdict (2).
        let verdict = Attributes::new().nested(2, Attributes::new().number(1, 0));
        self.expression("immediate", Some(Attributes::new().number(1, 0).nested(2, verdict)))
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
        // Source register 1, operation 2 (equal is 0), data 3.
        let data = Attributes::new().bytes(1, bytes);
        self.expression("cmp", Some(Attributes::new().number(1, VALUE).number(2, 0).nested(3, data)))
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
fn table() -> Attributes {
    Attributes::new().text(1, TABLE)
}
