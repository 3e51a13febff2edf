//! The reasons for the treatment of packets and connections: one table that is the counter's index,
//! the metric's label and the row of `docs/datapath.md`.

macro_rules! reasons {
    ($($name:ident $label:literal $description:literal)*) => {
        /// A named outcome; its discriminant is the index into the counter map.
        #[repr(u32)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Reason {
            $(#[doc = $description] $name,)*
        }

        impl Reason {
            /// Every reason, in counter order.
            pub const ALL: &[Reason] = &[$(Reason::$name),*];

            /// The metric label.
            pub const fn label(self) -> &'static str {
                match self { $(Reason::$name => $label),* }
            }

            /// One line for operators.
            pub const fn description(self) -> &'static str {
                match self { $(Reason::$name => $description),* }
            }
        }
    };
}

reasons! {
    PassedNotIp "passed-not-ip" "Neither IPv4 nor IPv6 (ARP, LLDP, two VLAN tags …)."
    PassedMalformed "passed-malformed" "Headers cut short or inconsistent; left to the kernel, which drops and counts it itself."
    PassedNotVip "passed-not-vip" "The destination is not a VIP."
    PassedListener "passed-listener" "To a VIP and a port with a listener."
    PassedSharedAddress "passed-shared-address" "To a port without a listener on a VIP that is shared with the host."
    PassedIcmp "passed-icmp" "ICMP or ICMPv6 to a VIP (ping, path MTU discovery, neighbour discovery)."
    PassedFragment "passed-fragment" "A later fragment to a VIP: it carries no port. Without its first fragment it goes nowhere."
    PassedExtension "passed-extension" "IPv6 with extension headers to a VIP: not walked here."
    PassedOtherProtocol "passed-other-protocol" "To a VIP, neither TCP, UDP nor ICMP."
    DroppedNoListener "dropped-no-listener" "TCP or UDP to a port of an exclusive VIP that no listener has."
    RefusedNoListener "refused-no-listener" "A new TCP connection, or a UDP datagram, to a port of an exclusive VIP that no listener has. The kernel answers with a reset, or with ICMP port unreachable."
    Steered "steered" "A new connection given to the socket of a core."
    SteeredAside "steered-aside" "As steered, but to another core than the client's own: that one's accept queue was filling up."
    SteerNoSocket "steer-no-socket" "A frontend without a live socket: the agent is down or starting, or the port is going. The kernel refuses the connection."
    SteerRefused "steer-refused" "The kernel would not assign the socket: another sk_lookup program was first, or the family differs."
    RefusedDeniedClient "refused-denied-client" "A new TCP connection, or a UDP datagram, from an address that no listener of the port permits."
    DroppedDeniedClient "dropped-denied-client" "As refused, but by the packet guard: the first packet of a TCP connection, or a datagram."
    HelloKnownName "hello-known-name" "A ClientHello for a name that a listener of its port has."
    HelloUnknownName "hello-unknown-name" "A ClientHello for a name that no listener of its port has. It is passed: user space answers with an alert."
    HelloWithoutName "hello-without-name" "A ClientHello without a server name."
    HelloNotRead "hello-not-read" "A ClientHello whose name only user space reads: in several records, too large, malformed, or for what is no DNS name."
    HelloUnconnected "hello-unconnected" "A ClientHello of no connection of this node, or with numbers that its client does not have: a forged one; or one with IP options or extension headers. It takes from no budget here, and is left to the kernel."
    HelloOverBudget "hello-over-budget" "A ClientHello for a listener that has, or shares, no budget of new connections left. Both ends got a reset."
    HelloDeniedClient "hello-denied-client" "A ClientHello from an address that its listener does not permit. Both ends got a reset."
    HelloUnknownRefused "hello-unknown-refused" "A ClientHello for a name that no listener of its port has, above the rate of those that are passed. Both ends got a reset."
    HelloLeft "hello-left" "A ClientHello to be refused whose packet cannot be answered here (IP options, extension headers, no memory): it is left to user space."
    Forwarded "forwarded" "A new connection, or a client's first datagram, forwarded in the kernel."
    ForwardConfirmed "forward-confirmed" "A client went on with what was forwarded: its flow is kept until it is idle or ends."
    ForwardNoPort "forward-no-port" "Not forwarded in the kernel, as the next ones, but served by user space: no port of the node is free towards the backend (`--forwarding-ports`)."
    ForwardFull "forward-full" "There is no room for more flows."
    ForwardNoBackend "forward-no-backend" "The rule's table of backends is being written."
    ForwardNoRoute "forward-no-route" "The backend is on the node itself or cannot be reached, the client is a frontend, or the node does not forward (`net.ipv4.ip_forward`, `net.ipv6.conf.all.forwarding`)."
    ForwardNoInterface "forward-no-interface" "The way to the backend leads over an interface without the programs, or without an address of the node."
    ForwardSameClient "forward-same-client" "The client is connected to the same backend from the same port, by another frontend; or it is the backend, and asks from the port that it answers at."
    ForwardFragment "forward-fragment" "A later fragment to an address with forwarded ports, without its first one: it passes untouched."
    DroppedForwardInterface "dropped-forward-interface" "A packet of an open flow whose way now leads over an interface without the programs, or to the node itself: its receiver would see an address that it does not know."
}

impl Reason {
    pub const COUNT: u32 = Self::ALL.len() as u32;

    /// Returns `true` if a packet is dropped for this reason.
    #[inline(always)]
    pub const fn drops(self) -> bool {
        matches!(
            self,
            Reason::DroppedNoListener | Reason::DroppedDeniedClient | Reason::DroppedForwardInterface
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_index_is_the_position_in_the_table() {
        for (index, reason) in Reason::ALL.iter().enumerate() {
            assert_eq!(*reason as usize, index, "{}", reason.label());
        }
    }

    #[test]
    fn labels_say_what_happens() {
        for reason in Reason::ALL {
            assert_eq!(reason.label().starts_with("dropped-"), reason.drops(), "{}", reason.label());
        }
    }
}
