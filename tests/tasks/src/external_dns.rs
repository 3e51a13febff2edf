//! external-dns with the options and rights that the page gives it, and BIND as the provider, by
//! RFC 2136. The load balancer is this test.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use portcullis_testbed::{command, go, workspace};

use super::process::Process;
use super::report::Report;
use super::world::{World, await_answer};

pub(crate) const PAGE: &str = "external-dns";

/// The nested Go module, relative to the workspace.
const MODULE: &str = "tests/tasks/external-dns";
const EXTERNAL_DNS: &str = "sigs.k8s.io/external-dns";

const NAMESPACES: &[&str] = &["infra", "shop", "tenant"];
const FIRST: &str = "198.51.100.10";
const SECOND: &str = "198.51.100.11";
const TARGET: &str = "198.51.100.77";
/// Of the zone and the key in `named.conf`.
const PROVIDER: &[&str] = &[
    "--provider=rfc2136",
    "--rfc2136-host=127.0.0.1",
    "--rfc2136-port=5354",
    "--rfc2136-zone=example",
    "--rfc2136-tsig-keyname=external-dns",
    "--rfc2136-tsig-secret=96Ah/a2g0/nLeFGK+d/0tzQcccf9hCEIy34PoXX2Qg8=",
    "--rfc2136-tsig-secret-alg=hmac-sha256",
    "--rfc2136-tsig-axfr",
    "--txt-owner-id=test",
    "--interval=2s",
];
const ZONE: &str = "$TTL 60\n@ IN SOA ns.example. root.example. (1 60 60 60 60)\n@ IN NS ns.example.\n\
                    ns IN A 127.0.0.1\n";

/// The version, and the server's.
pub(crate) fn controller() -> Result<String> {
    let named = command::find("named").context("no named: install bind9 and bind9-dnsutils")?;
    let bind = command::output(std::process::Command::new(named).arg("-v"))?;
    let bind = bind.split(['-', ' ']).take(2).collect::<Vec<_>>().join(" ");
    Ok(format!("external-dns {} ({bind})", go::required(MODULE, EXTERNAL_DNS)?))
}

pub(crate) fn build() -> Result<PathBuf> {
    go::built(MODULE, ".", "external-dns")
}

pub(crate) fn try_out(world: &World, report: &mut Report) -> Result<()> {
    let program = build()?;
    world.make_namespaces(NAMESPACES)?;
    // Claims, and ListenerSets at all, are what the page leaves open.
    let gateway = "  gatewayClassName: portcullis\n";
    let open = format!("{gateway}  allowedListeners: {{namespaces: {{from: All}}}}\n");
    let claims = "spec: {claims: [{namespaces: {matchLabels: {kubernetes.io/metadata.name: shop}}},\n  \
                  {namespaces: {}, hostnames: [tenant.example]}],\n  service:";
    world.apply_shown(PAGE, "conf/web.yaml", &[(gateway, &open), ("spec: {service:", claims)])?;
    world.apply_shown(PAGE, "external-dns/rights.yaml", &[])?;
    let _provider = start_provider(world)?;
    let mut controller = world.command(&program);
    controller.args(PROVIDER).args(shown_options()?).arg("--kubeconfig").arg(kubeconfig(world)?);
    let mut controller = Process::start(&world.cluster, "external-dns", &mut controller)?;
    let checked = checks(world, report);
    world.remove_namespaces(NAMESPACES)?;
    controller.lives()?;
    checked.with_context(|| controller.last_words())
}

fn start_provider(world: &World) -> Result<Process> {
    let directory = world.cluster.layout().path("named");
    fs::create_dir_all(&directory)?;
    let template = fs::read_to_string(workspace::root().join("tests/tasks/cluster/named.conf"))?;
    let config = template.replace("@DIRECTORY@", &directory.display().to_string());
    fs::write(directory.join("named.conf"), config)?;
    fs::write(directory.join("example.zone"), ZONE)?;
    let mut named = world.cluster.command("named");
    named.arg("-g").arg("-c").arg(directory.join("named.conf"));
    let mut named = Process::start(&world.cluster, "named", &mut named)?;
    let ask = || named.lives().and_then(|()| lookup(world, "ns"));
    await_answer("BIND", ask, |found| found == "127.0.0.1")?;
    Ok(named)
}

/// The options that the page has behind the provider's.
fn shown_options() -> Result<Vec<String>> {
    let text = fs::read_to_string(workspace::root().join("docs/tasks/external-dns.md"))?;
    let words = text.split_whitespace().skip_while(|word| *word != "--provider=…").skip(1);
    let options = words.filter(|word| *word != "\\").take_while(|word| word.starts_with("--"));
    let options: Vec<_> = options.map(str::to_owned).collect();
    ensure!(!options.is_empty(), "the page shows no options of external-dns");
    Ok(options)
}

/// With the ServiceAccount's rights.
fn kubeconfig(world: &World) -> Result<PathBuf> {
    let kubectl = |arguments: &[&str]| world.cluster.kubectl(arguments);
    let token = kubectl(&["create", "token", "external-dns", "--namespace=infra"])?;
    let cluster =
        kubectl(&["config", "view", "--raw", "--flatten", "-o", "jsonpath={.clusters[0].cluster}"])?;
    let path = world.cluster.layout().path("external-dns.kubeconfig");
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{{name: c, cluster: {cluster}}}]\n\
         contexts: [{{name: c, context: {{cluster: c, user: u}}}}]\n\
         users: [{{name: u, user: {{token: \"{}\"}}}}]\n",
        token.trim()
    );
    fs::write(&path, text)?;
    Ok(path)
}

fn checks(world: &World, report: &mut Report) -> Result<()> {
    report.check("a route's name at the address that the load balancer gave its Gateway", || {
        ensure!(lookup(world, "shop")?.is_empty(), "it is there before there is an address");
        give(world, FIRST)?;
        Ok(format!("none before; then shop.example A {}", await_record(world, "shop", FIRST)?))
    })?;
    report.check("the name follows when the address changes", || {
        give(world, SECOND)?;
        Ok(format!("shop.example A {}", await_record(world, "shop", SECOND)?))
    })?;
    world.apply_file("names.yaml", &[])?;
    report.check("the name of a tenant's ListenerSet, at its Gateway's address", || {
        Ok(format!("tenant.example A {}", await_record(world, "tenant", SECOND)?))
    })?;
    report.check("the annotation at the Gateway says which address is meant", || {
        let target = format!("external-dns.alpha.kubernetes.io/target={TARGET}");
        world.cluster.kubectl(&["annotate", "--namespace=infra", "gateway/web", &target])?;
        Ok(format!("shop.example A {}", await_record(world, "shop", TARGET)?))
    })?;
    report.check("a name that claims refuse is not published", || {
        let reason = "{.status.parents[*].conditions[?(@.type=='Accepted')].reason}";
        let refused = |found: &str| found == "NotAllowedByListeners";
        let reason = world.await_field("tenant", &["httproute", "taken"], reason, refused)?;
        // external-dns has seen it: it has written all names anew since.
        ensure!(lookup(world, "taken")?.is_empty(), "it is");
        Ok(format!("Accepted: {reason}; taken.example has no address"))
    })?;
    report.check("a route that goes takes its name with it, and no other", || {
        world.cluster.kubectl(&["delete", "--namespace=shop", "httproute/shop"])?;
        await_record(world, "shop", "")?;
        Ok(format!("shop.example is gone, tenant.example A {}", lookup(world, "tenant")?))
    })
}

/// Does a load balancer's part.
fn give(world: &World, address: &str) -> Result<()> {
    let service = ["service", "web-portcullis"];
    world.await_field("infra", &service, "{.spec.type}", |found| found == "LoadBalancer")?;
    let status = format!(r#"{{"status": {{"loadBalancer": {{"ingress": [{{"ip": "{address}"}}]}}}}}}"#);
    let patch = ["patch", "service/web-portcullis", "--namespace=infra", "--subresource=status"];
    world.cluster.kubectl(&[&patch[..], &["--type=merge", "--patch", &status]].concat())?;
    let published = "{.status.addresses[*].value}";
    world.await_field("infra", &["gateway", "web"], published, |found| found == address).map(drop)
}

fn await_record(world: &World, name: &str, address: &str) -> Result<String> {
    await_answer(&format!("{name}.example"), || lookup(world, name), |found| found == address)
}

/// Addresses of a name in the zone.
fn lookup(world: &World, name: &str) -> Result<String> {
    let server = ["@127.0.0.1", "-p", "5354", "+short", "+time=2", "A"];
    let found = command::output(world.cluster.command("dig").args(server).arg(format!("{name}.example")))?;
    Ok(found.trim().to_owned())
}
