//! Clients of this process; they know each name's certificate.

use std::collections::HashMap;

use anyhow::{Result, ensure};
use portcullis_testbed::TlsClient;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use super::backends::Backends;
use super::in_parallel;
use super::tally::Tally;
use super::world::World;

pub(super) fn run(world: &World, _backends: &Backends, connections: usize) -> Result<Tally> {
    let client = TlsClient::new(&world.authority)?;
    let certificates = world.names.iter().map(|name| {
        let certificate = CertificateDer::from_pem_slice(name.certificate.chain.as_bytes())?;
        Ok((name.host.as_str(), certificate))
    });
    let certificates = certificates.collect::<Result<HashMap<_, _>>>()?;
    let hosts: Vec<_> = world.hosts(connections).collect();
    Ok(in_parallel(&hosts, 1, |hosts| {
        let mut tally = Tally::default();
        for host in hosts {
            let ask = || {
                let mut connection = client.connect(world.address, host)?;
                let shown = connection.certificate() == certificates.get(host).map(AsRef::as_ref);
                ensure!(shown, "another name's certificate");
                Ok(connection.get("/")?.body)
            };
            let answer: Result<String> = ask();
            tally.note(host, answer.as_deref().map_err(|error| error as _));
        }
        tally
    }))
}
