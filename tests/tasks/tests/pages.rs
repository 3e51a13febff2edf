//! README and the pages of `docs/tasks`: all that they tell readers to type, typed. The agent is
//! the one that `cargo build -p portcullis` builds.

use std::collections::BTreeSet;
use std::fs;

use portcullis_task_tests::follow;
use portcullis_testbed::workspace;

/// A test for each page, by its name in `docs/tasks`.
macro_rules! pages {
    ($($name:ident $page:literal)*) => {
        const PAGES: &[&str] = &[$($page),*];

        $(#[test]
        fn $name() {
            try_out(concat!("docs/tasks/", $page, ".md"));
        })*
    };
}

pages! {
    authentication "authentication"
    canary "canary"
    capacity "capacity"
    cert_manager "cert-manager"
    delegation "delegation"
    external_dns "external-dns"
    first_gateway "first-gateway"
    from_ingress_nginx "from-ingress-nginx"
    grpc "grpc"
    load_balancers "load-balancers"
    mtls "mtls"
    oauth2_proxy "oauth2-proxy"
    progressive_delivery "progressive-delivery"
    rate_limits "rate-limits"
    tcp_udp "tcp-udp"
    tenants "tenants"
    tls "tls"
    troubleshooting "troubleshooting"
    upgrade "upgrade"
    virtual_machines "virtual-machines"
}

#[test]
fn readme() {
    try_out("README.md");
}

#[test]
fn every_page_is_tried() {
    let pages = fs::read_dir(workspace::root().join("docs/tasks")).unwrap();
    let names = pages.map(|page| page.unwrap().path().file_stem().unwrap().to_string_lossy().into_owned());
    let names: BTreeSet<_> = names.filter(|name| name != "README").collect();
    assert_eq!(names, PAGES.iter().map(|page| (*page).to_owned()).collect());
}

fn try_out(page: &str) {
    let problem = follow(page).err().map(|error| format!("{error:#}")).unwrap_or_default();
    assert!(problem.is_empty(), "{problem}");
}
