//! A Gateway as its users see it.

use anyhow::{Result, ensure};
use portcullis_test_cluster::{Check, Cluster, wait};
use portcullis_testbed::command;

use super::client::{Conversation, PODS};
use super::load::Load;
use super::words::{TIMEOUT, await_field, field, is_local, vip};
use crate::TESTED;

pub(super) const CHECKS: &[(&str, Check)] = &[
    ("the Gateway is Programmed and has its Service's address", gateway_is_programmed),
    ("nothing is lost when a port comes and goes", changes_keep_connections),
];

pub(super) const LAST_CHECKS: &[(&str, Check)] =
    &[("a Gateway that goes takes its address with it", address_goes_with_the_gateway)];

fn gateway_is_programmed(cluster: &Cluster) -> Result<()> {
    let programmed = "{.status.conditions[?(@.type=='Programmed')].status}";
    await_field(cluster, "gateway/web", programmed, "True")?;
    let (given, service) = (vip(cluster)?, field(cluster, "service/web-portcullis", "{.spec.clusterIP}")?);
    ensure!(given == service, "the Gateway's address is {given}, its Service's {service}");
    Ok(())
}

fn changes_keep_connections(cluster: &Cluster) -> Result<()> {
    let vip = vip(cluster)?;
    let [first, second] = PODS.map(|pod| Conversation::begin(cluster, pod, &vip, 80));
    let load = Load::begin(cluster, PODS[1], &format!("http://{vip}/"))?;
    let more = format!("http://{vip}:8080/");
    change_listeners(
        cluster,
        r#"{"op":"add","path":"/spec/listeners/-","value":{"name":"more","port":8080,"protocol":"HTTP"}}"#,
    )?;
    PODS.iter().try_for_each(|pod| pod.await_answer(cluster, &more).map(drop))?;
    change_listeners(cluster, r#"{"op":"remove","path":"/spec/listeners/1"}"#)?;
    PODS.iter().try_for_each(|pod| pod.await_refusal(cluster, &more))?;
    first?.go_on()?;
    second?.go_on()?;
    load.end().map(drop)
}

fn change_listeners(cluster: &Cluster, operation: &str) -> Result<()> {
    let patch = format!("[{operation}]");
    cluster.kubectl(&["patch", "-n", TESTED, "gateway/web", "--type=json", "--patch", &patch]).map(drop)
}

fn address_goes_with_the_gateway(cluster: &Cluster) -> Result<()> {
    let gone = vip(cluster)?;
    let stays = field(cluster, "service/other-portcullis", "{.spec.clusterIP}")?;
    cluster.kubectl(&["delete", "-n", TESTED, "gateway/web"])?;
    for node in cluster.nodes() {
        wait::until_true(&format!("{gone} gone from {node}"), TIMEOUT, || {
            !is_local(cluster, node, &gone) && is_local(cluster, node, &stays)
        })?;
        let set = ["list", "set", "ip", "portcullis", "vips"];
        wait::until_true(&format!("the rules on {node} without {gone}"), TIMEOUT, || {
            command::output(cluster.command_on(node, "nft").args(set))
                .is_ok_and(|rules| !rules.contains(&gone))
        })?;
    }
    Ok(())
}
