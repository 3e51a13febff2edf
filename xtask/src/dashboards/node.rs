//! One agent and the datapath of its node.

use super::panel::{Dashboard, Measure, Panel, Row, Variable, lines, query, table};

pub(super) fn dashboard() -> Dashboard {
    Dashboard {
        name: "node",
        title: "Portcullis / Node",
        description: "Agents and the datapath of their nodes.",
        variables: &[Variable::Job, Variable::Instance],
        rows: vec![
            Row { title: "Agent", panels: agent() },
            Row { title: "Connections and requests", panels: connections() },
            Row { title: "Datapath", panels: datapath() },
            Row { title: "What is missing", panels: missing() },
            Row { title: "Configuration", panels: configuration() },
        ],
    }
}

fn agent() -> Vec<Panel> {
    vec![
        table(
            "Agents",
            "Version and datapath of each agent. Two versions for long: an update is stuck.",
            Measure::Count,
            "portcullis_agent_info{@agent}",
        ),
        table(
            "Runs for",
            "Time since an agent's start. Shorter than that of its pod: it crashed, and the log of its previous container says \
             why.",
            Measure::Seconds,
            "sort(time() - process_start_time_seconds{@agent})",
        ),
        lines(
            "Processor",
            "Processors that an agent keeps busy, in user space and in the kernel. Near `--cores`: requests wait.",
            Measure::Count,
            vec![query("rate(process_cpu_seconds_total{@agent}[@rate])", "{{instance}}")],
        ),
        lines(
            "Memory",
            "Memory of an agent. It follows connections and routes; that of one alone that grows for days is a bug to report.",
            Measure::Bytes,
            vec![
                query("process_resident_memory_bytes{@agent}", "{{instance}}"),
                query("process_virtual_memory_bytes{@agent}", "{{instance}} virtual"),
            ],
        ),
        lines(
            "File descriptors",
            "Those in use and as many as there may be: from three quarters on, connections wait to be accepted. Raise the \
             container runtime's limit.",
            Measure::Count,
            vec![
                query("process_open_fds{@agent}", "{{instance}}"),
                query("process_max_fds{@agent}", "{{instance}} limit"),
            ],
        ),
        lines(
            "Threads",
            "One for each core, and a few.",
            Measure::Count,
            vec![query("process_threads{@agent}", "{{instance}}")],
        ),
        lines(
            "Panics",
            "Bugs that cost a connection or kept a change from taking effect. Any: report what the log has of it.",
            Measure::Count,
            vec![query("portcullis_panics_total{@agent}", "{{instance}}")],
        ),
    ]
}

fn connections() -> Vec<Panel> {
    vec![
        lines(
            "Connections by core",
            "Connections, tunnels and sessions of UDP that each core serves. One that has many more: a few long connections, \
             or HTTP/2 clients that send all on one.",
            Measure::Count,
            vec![query(
                "sum by (instance, core) (portcullis_core_connections{@agent})",
                "{{instance}} core {{core}}",
            )],
        ),
        lines(
            "Connections that were not accepted",
            "Connections that could not be accepted, or had to wait because three quarters of the file descriptors were in use.",
            Measure::PerSecond,
            vec![query("rate(network_server_accept_errors_total{@agent}[@rate])", "{{instance}}")],
        ),
        lines(
            "HTTP/1 read by the library",
            "Requests that have something unusual, or all of them with `--http1 library`: they cost a little more.",
            Measure::Requests,
            vec![query("rate(portcullis_http1_by_library_total{@agent}[@rate])", "{{instance}}")],
        ),
        lines(
            "Lines of access logs lost",
            "Lines that were not read in time: what reads the agent's output is too slow, or logs too much.",
            Measure::PerSecond,
            vec![query("rate(http_server_access_log_lost_total{@agent}[@rate])", "{{instance}}")],
        ),
        lines(
            "Spans and lines for the collector",
            "By what became of them. `lost`: the collector does not take them, or not in time; the agent's log has why.",
            Measure::PerSecond,
            vec![query(
                "rate(portcullis_otlp_items_total{@agent}[@rate])",
                "{{instance}} {{signal}} {{outcome}}",
            )],
        ),
        lines(
            "Requests over the budget of spans",
            "Requests that were to be recorded, and were not: lower the share, or raise `--trace-spans`.",
            Measure::Requests,
            vec![query("rate(portcullis_traces_over_budget_total{@agent}[@rate])", "{{instance}}")],
        ),
    ]
}

fn datapath() -> Vec<Panel> {
    vec![
        lines(
            "Verdicts of kernel programs",
            "Packets and connections by verdict. Drops that grow: docs/datapath.md has what each means.",
            Measure::PerSecond,
            vec![query(
                "sum by (reason) (rate(portcullis_datapath_verdicts_total{@agent}[@rate]))",
                "{{reason}}",
            )],
        ),
        lines(
            "TCP and UDP frontends",
            "By who serves them, and why not the kernel.",
            Measure::Count,
            vec![query(
                "sum by (mechanism, reason) (portcullis_l4_frontends{@agent})",
                "{{mechanism}} {{reason}}",
            )],
        ),
        lines(
            "Flows in the kernel",
            "Connections, and clients of UDP, that the kernel forwards, and those that have just ended.",
            Measure::Count,
            vec![query("portcullis_forwarded_flows{@agent}", "{{instance}}")],
        ),
        lines(
            "Terms enforced",
            "Listeners with lists of clients or budgets, by the earliest place at which those hold; `portcullis status` says why \
             not earlier.",
            Measure::Count,
            vec![query(
                "sum by (terms, enforced_by) (portcullis_terms_enforced{@agent})",
                "{{terms}} {{enforced_by}}",
            )],
        ),
    ]
}

fn missing() -> Vec<Panel> {
    vec![
        table(
            "Without kernel programs",
            "Agents that serve from ordinary sockets, and why; docs/metrics.md has the reasons. `asked-for` is no trouble.",
            Measure::Count,
            "portcullis_datapath_without_programs{@agent}",
        ),
        table(
            "Interfaces without the packet guard",
            "Interfaces that should have it, and why they have not: packets that it would drop reach the stack.",
            Measure::Count,
            "portcullis_interface_unguarded{@agent}",
        ),
        table(
            "Interfaces whose server names are not read",
            "Interfaces on which the kernel should read them, and why it does not: agents read them alone.",
            Measure::Count,
            "portcullis_interface_unread{@agent}",
        ),
    ]
}

fn configuration() -> Vec<Panel> {
    vec![
        lines(
            "Age",
            "Time since the last change took effect. One agent's that grows while the others' does not: it does not follow the \
             API server.",
            Measure::Seconds,
            vec![query("portcullis_config_age_seconds{@agent}", "{{instance}}")],
        ),
        lines(
            "Generation",
            "The snapshot that each agent serves, counted from its start.",
            Measure::Count,
            vec![query("portcullis_config_generation{@agent}", "{{instance}}")],
        ),
    ]
}
