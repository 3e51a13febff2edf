//! Three hundred tenants share a port of one Gateway. Thirty of them break their part in every way
//! there is, and mend it again, while clients of all the others are served without a break.
#![cfg(test)]

mod ailment;
mod load;
mod tenant;

use std::fs;
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use portcullis_netns_tests::{Scenario, VIP};
use portcullis_testbed::{Agent, TlsClient, refusal, until};

use ailment::{Ailment, Symptom};
use load::{Load, Work};
use tenant::{GATEWAY, Manifests, Tenant};

const TENANTS: usize = 300;
const TIMEOUT: Duration = Duration::from_secs(60);

/// Older by name than the tenants that fall ill, so that these are the ones to lose a conflict.
const HEALTHY: usize = 270;

#[test]
fn what_thirty_tenants_break_and_mend_concerns_nobody_else() {
    let scenario = Scenario::without_configuration("tenants").unwrap();
    let tenants: Vec<_> =
        (0..TENANTS).map(|number| Tenant::new(number, &scenario.authority).unwrap()).collect();
    let (healthy, patients) = tenants.split_at(HEALTHY);
    fs::write(scenario.config().join("edge.yaml"), GATEWAY.replace("{VIP}", VIP)).unwrap();
    tenants.iter().for_each(|tenant| put(&scenario.config(), tenant, &tenant.manifests()).unwrap());
    let agent = scenario.start_agent().unwrap();
    let client = TlsClient::new(&scenario.authority).unwrap();
    scenario.client.enter(|| tenants.iter().try_for_each(|tenant| recovers(&client, tenant))).unwrap();
    // Their files are written after the data plane has what they are about.
    let statuses = until(TIMEOUT, || statuses(&agent, healthy)).unwrap();

    let network = &scenario.client;
    let load = &network.enter(|| Load::open(&client, healthy)).unwrap();
    let story = thread::scope(|scope| {
        let work = [Work::OpenConnections, Work::NewConnections]
            .map(|work| scope.spawn(move || network.enter(|| load.run(work))));
        let story = load.during(|| network.enter(|| break_and_heal(&scenario, &agent, patients)));
        let served = work.map(|thread| thread.join().unwrap());
        story.map(|()| served)
    });
    let log = || format!("the agent's log:\n{}", agent.log());
    for served in story.unwrap_or_else(|error| panic!("{error:#}; {}", log())) {
        let served = served.unwrap_or_else(|error| panic!("{error:#}; {}", log()));
        assert!(served >= 2 * HEALTHY, "the load was no load: {served} requests");
    }
    assert_eq!(self::statuses(&agent, healthy).unwrap(), statuses, "nobody else's status changes");
}

/// Each patient falls ill, one after the other; when all are, they recover, in another order.
fn break_and_heal(scenario: &Scenario, agent: &Agent, patients: &[Tenant]) -> Result<()> {
    let client = TlsClient::new(&scenario.authority)?;
    let ill = || patients.iter().zip(Ailment::ALL.iter().cycle());
    for (tenant, ailment) in ill() {
        let broken = ailment.befall(tenant.manifests(), tenant, &scenario.authority)?;
        put(&scenario.config(), tenant, &broken)?;
    }
    for (tenant, ailment) in ill() {
        let place = || format!("{}: {ailment:?}", tenant.name);
        until(TIMEOUT, || shows(&client, tenant, ailment.symptom())).with_context(place)?;
        until(TIMEOUT, || tells(agent, tenant, *ailment)).with_context(place)?;
    }
    for tenant in patients.iter().rev() {
        put(&scenario.config(), tenant, &tenant.manifests())?;
    }
    patients.iter().try_for_each(|tenant| recovers(&client, tenant))
}

/// Replaces a tenant's file as an editor does.
fn put(config: &Path, tenant: &Tenant, manifests: &Manifests) -> Result<()> {
    let partial = config.join(format!(".{}.partial", tenant.name));
    fs::write(&partial, manifests.yaml())?;
    Ok(fs::rename(partial, config.join(format!("{}.yaml", tenant.name)))?)
}

fn recovers(client: &TlsClient, tenant: &Tenant) -> Result<()> {
    until(TIMEOUT, || tenant.is_served(client)).with_context(|| tenant.name.clone())
}

fn shows(client: &TlsClient, tenant: &Tenant, symptom: Symptom) -> Result<()> {
    let seen = match client.connect(tenant::address(), &tenant.host) {
        Ok(mut connection) => Symptom::Answer(connection.get("/")?.status),
        Err(error) => refusal(&error).map(Symptom::Handshake).context(error)?,
    };
    ensure!(seen == symptom, "{seen:?} instead of {symptom:?}");
    Ok(())
}

fn tells(agent: &Agent, tenant: &Tenant, ailment: Ailment) -> Result<()> {
    let Some((kind, reason)) = ailment.told() else { return Ok(()) };
    let status = agent.status(kind, &tenant.name, "web")?;
    if !status.contains(&format!("reason: {reason}\n")) {
        bail!("no {reason} in {status}");
    }
    Ok(())
}

fn statuses(agent: &Agent, tenants: &[Tenant]) -> Result<Vec<String>> {
    let kinds = ["ListenerSet", "HTTPRoute"];
    let status = |tenant: &Tenant, kind| agent.status(kind, &tenant.name, "web");
    tenants.iter().flat_map(|tenant| kinds.map(|kind| status(tenant, kind))).collect()
}
