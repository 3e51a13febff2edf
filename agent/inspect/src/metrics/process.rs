//! The agent's process, by the names that Prometheus' client libraries have for it.

use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::registry::{Registry, Unit};

use super::gauge;

/// Times and sizes of the process, as Linux counts them.
#[derive(Debug, Default)]
pub struct Process {
    /// Processor time, in user space and in the kernel.
    pub cpu: Duration,
    /// Bytes.
    pub resident: u64,
    /// Bytes.
    pub virtual_memory: u64,
    pub open_descriptors: u64,
    pub most_descriptors: u64,
    pub threads: u64,
    /// Seconds since 1970.
    pub started: u64,
}

pub(super) fn register(registry: &mut Registry, process: &Process) {
    let cpu: Counter<f64, std::sync::atomic::AtomicU64> = Counter::default();
    cpu.inc_by(process.cpu.as_secs_f64());
    let help = "Processor time of the agent, in user space and in the kernel";
    registry.register_with_unit("process_cpu", help, Unit::Seconds, cpu);
    for (name, help, value) in [
        ("process_resident_memory_bytes", "Memory in use", process.resident),
        ("process_virtual_memory_bytes", "Address space in use", process.virtual_memory),
        ("process_open_fds", "Open file descriptors", process.open_descriptors),
        ("process_max_fds", "File descriptors that may be open", process.most_descriptors),
        ("process_threads", "Threads", process.threads),
        ("process_start_time_seconds", "Start of the agent, in seconds since 1970", process.started),
    ] {
        gauge(registry, name, help, value);
    }
}
