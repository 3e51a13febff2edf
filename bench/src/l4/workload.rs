//! Traffic that every proxy forwards.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Bytes of the backend over so many connections, by TCP port.
    Bulk(usize),
    /// The same over TLS that is passed through.
    BulkTls(usize),
    /// Connections that end after a question and an answer, by TCP port.
    Connections,
    /// The same by the only server name of a port, and by random ones of many.
    OneName,
    ManyNames,
    /// Datagrams of clients that each wait for their answer.
    Datagrams,
}

/// Lengths of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Length {
    Full,
    Quick,
}

pub(super) struct Workload {
    /// For `--workload`.
    pub(super) name: &'static str,
    pub(super) title: &'static str,
    pub(super) kind: Kind,
}

const fn workload(name: &'static str, title: &'static str, kind: Kind) -> Workload {
    Workload { name, title, kind }
}

pub(super) const WORKLOADS: &[Workload] = &[
    workload("bulk-1", "TCP, bytes of 1 connection", Kind::Bulk(1)),
    workload("bulk-16", "TCP, bytes of 16 connections", Kind::Bulk(16)),
    workload("bulk-tls", "TLS passthrough, bytes of 16 connections", Kind::BulkTls(16)),
    workload("connect-tcp", "TCP, connections", Kind::Connections),
    workload("connect-name", "TLS passthrough, connections, 1 name", Kind::OneName),
    workload("connect-names", "TLS passthrough, connections, 10,000 names", Kind::ManyNames),
    workload("udp", "UDP, questions and answers", Kind::Datagrams),
];

impl Kind {
    pub(super) fn is_bulk(self) -> bool {
        matches!(self, Self::Bulk(_) | Self::BulkTls(_))
    }
}

impl Length {
    /// Bytes of a measurement, over all connections.
    pub(super) fn bytes(self) -> u64 {
        match self {
            Self::Full => 1 << 30,
            Self::Quick => 1 << 28,
        }
    }

    pub(super) fn connections(self) -> usize {
        match self {
            Self::Full => 4_000,
            Self::Quick => 1_600,
        }
    }

    /// Questions with their answers.
    pub(super) fn datagrams(self) -> usize {
        match self {
            Self::Full => 40_000,
            Self::Quick => 8_000,
        }
    }

    pub(super) fn half_closed(self) -> usize {
        match self {
            Self::Full => 1_000,
            Self::Quick => 200,
        }
    }
}
