//! `cargo xtask bench credentials`: CPU time of the agent for requests whose credentials it checks
//! itself, next to requests without. A token that comes again is one that the core remembers;
//! distinct ones are more than it remembers, so that each has its signature verified.

mod issuer;
mod load;

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use portcullis_testbed::{Datapath, Launch, command, pin_directory, remove_leftovers, until};
use serde_json::Value;

use self::issuer::{AUDIENCE, Algorithm, ISSUER, Issuer};
use self::load::Load;
use super::document;
use super::peers::Build;
use super::process::{LOAD_CPU, PROXY_CPU, cpu_time, stay_on};
use super::report::machine;
use super::sample::median;
use super::site::HTTP_PORT;

const VIP: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 95));
const BACKEND: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(127, 0, 0, 96)), 9090);
const PURPOSE: &str = "bench-credentials";
/// Twice what a core remembers.
const TOKENS: usize = 4096;
const API_KEY: &str = "7c1f24f0a3be4f6d92b0c4e51a6d8f37";
const START: Duration = Duration::from_secs(30);

#[derive(clap::Args)]
pub(super) struct Args {
    /// Measurements of each kind
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    #[command(flatten)]
    build: Build,
    /// Also write the result into docs/performance.md
    #[arg(long)]
    write: bool,
}

/// The credential of a request.
#[derive(Clone, Copy, Debug)]
enum Kind {
    None,
    ApiKey,
    SameToken(Algorithm),
    DistinctTokens(Algorithm),
}

const KINDS: [Kind; 6] = [
    Kind::None,
    Kind::ApiKey,
    Kind::SameToken(Algorithm::Rs256),
    Kind::SameToken(Algorithm::Es256),
    Kind::DistinctTokens(Algorithm::Rs256),
    Kind::DistinctTokens(Algorithm::Es256),
];

pub(super) fn run(args: &Args) -> Result<()> {
    let scratch = super::scratch()?;
    let binary = args.build.binary()?;
    stay_on(LOAD_CPU)?;
    load::start_backend(BACKEND)?;
    let issuer = Issuer::new()?;
    let config = scratch.path().join("config");
    write_manifests(&config, &issuer.key_set()?)?;
    remove_leftovers(PURPOSE)?;
    let agent = Launch {
        binary,
        config,
        scratch: scratch.path().join("agent"),
        pins: pin_directory(PURPOSE),
        datapath: Datapath::Userspace,
        interface: "none".to_owned(),
        arguments: ["--cores", "1", "--log", "warn", "--beside-others"].map(Into::into).to_vec(),
        through: ["taskset", "--cpu-list", PROXY_CPU].map(Into::into).to_vec(),
    };
    let agent = agent.start()?;
    println!("bench: signing {} tokens", 2 * TOKENS);
    let requests = KINDS.map(|kind| kind.heads(&issuer));
    let requests = requests.into_iter().collect::<Result<Vec<_>>>()?;
    let mut load = Load::connect(SocketAddr::new(VIP, HTTP_PORT))?;
    // The first of each kind make connections to the backend, and fill what is remembered.
    until(START, || load.ask(&requests[0][..load::AT_ONCE]))?;
    requests.iter().try_for_each(|heads| load.ask(heads))?;
    let mut samples = KINDS.map(|_| Vec::new());
    for round in 0..args.rounds {
        println!("bench: round {} of {}", round + 1, args.rounds);
        for (heads, samples) in requests.iter().zip(&mut samples) {
            let before = cpu_time(agent.pid())?;
            load.ask(heads)?;
            let spent = cpu_time(agent.pid())?.saturating_sub(before);
            samples.push(spent.as_secs_f64() * 1e6 / heads.len() as f64);
        }
    }
    let mut text = format!(
        "{}, {}; {} rounds of {TOKENS} requests of each kind, medians.\n\n",
        command::ask("date", &["-u", "+%F"]).unwrap_or_default(),
        machine(),
        args.rounds
    );
    text +=
        "| credential | µs CPU/request | for the credential | requests/s of a core |\n|---|---|---|---|\n";
    for (kind, of_kind) in KINDS.iter().zip(&samples) {
        let added = median(of_kind.iter().zip(&samples[0]).map(|(with, without)| with - without).collect());
        let whole = median(of_kind.clone());
        text += &format!("| {} | {whole:.1} | {added:.1} | {:.0} |\n", kind.title(), 1e6 / whole);
    }
    println!("\n{text}");
    if args.write { document::replace("credentials", &text) } else { Ok(()) }
}

impl Kind {
    fn title(self) -> String {
        match self {
            Self::None => "none, and no policy".to_owned(),
            Self::ApiKey => "API key, one of 1,000".to_owned(),
            Self::SameToken(algorithm) => format!("token of {}, the same", algorithm.name()),
            Self::DistinctTokens(algorithm) => format!("token of {}, distinct ones", algorithm.name()),
        }
    }

    /// The heads of as many requests as there are tokens.
    fn heads(self, issuer: &Issuer) -> Result<Vec<String>> {
        let head = |path: &str, credential: &str| {
            format!("GET {path} HTTP/1.1\r\nHost: one.example.com\r\n{credential}\r\n")
        };
        let bearer = |token: String| head("/token", &format!("Authorization: Bearer {token}\r\n"));
        Ok(match self {
            Self::None => vec![head("/none", ""); TOKENS],
            Self::ApiKey => vec![head("/key", &format!("X-Api-Key: {API_KEY}\r\n")); TOKENS],
            Self::SameToken(algorithm) => vec![bearer(issuer.token(algorithm, 0)?); TOKENS],
            Self::DistinctTokens(algorithm) => {
                let tokens = (0..TOKENS).map(|number| issuer.token(algorithm, number));
                tokens.map(|token| Ok(bearer(token?))).collect::<Result<_>>()?
            }
        })
    }
}

/// A Gateway with a rule of each kind.
fn write_manifests(directory: &Path, key_set: &Value) -> Result<()> {
    fs::create_dir_all(directory)?;
    let (backend, port) = (BACKEND.ip(), BACKEND.port());
    let rule = |name: &str| {
        format!(
            "{{name: {name}, matches: [{{path: {{value: /{name}}}}}], backendRefs: [{{name: web, port: {port}}}]}}"
        )
    };
    let policy = |rule: &str, terms: &str| {
        format!(
            "---\napiVersion: portcullis.dev/v1alpha1\nkind: TrafficPolicy\nmetadata: {{name: {rule}}}\nspec:\n  \
             targetRefs: [{{group: gateway.networking.k8s.io, kind: HTTPRoute, name: web, sectionName: {rule}}}]\n  \
             {terms}\n"
        )
    };
    let gateway = format!(
        "apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {{name: edge}}\nspec:\n  \
         gatewayClassName: portcullis\n  addresses: [{{type: IPAddress, value: {VIP}}}]\n  \
         listeners: [{{name: http, port: {HTTP_PORT}, protocol: HTTP}}]\n\
         ---\napiVersion: v1\nkind: Service\nmetadata: {{name: web}}\nspec: {{ports: [{{port: {port}}}]}}\n\
         ---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\naddressType: IPv4\n\
         metadata: {{name: web-1, labels: {{kubernetes.io/service-name: web}}}}\n\
         ports: [{{port: {port}}}]\nendpoints: [{{addresses: [{backend}]}}]\n\
         ---\napiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata: {{name: web}}\nspec:\n  \
         parentRefs: [{{name: edge}}]\n  rules: [{}]\n",
        ["none", "key", "token"].map(rule).join(", ")
    );
    let others: String =
        (1..1000).map(|client| format!("  client-{client}: key-of-client-{client}\n")).collect();
    let credentials = format!(
        "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {{name: login}}\ndata: {{jwks.json: '{key_set}'}}\n\
         ---\napiVersion: v1\nkind: Secret\nmetadata: {{name: clients}}\nstringData:\n  shop: {API_KEY}\n{others}"
    );
    let key = policy("key", "apiKeys: {secretRefs: [{name: clients}], clientHeader: x-client}");
    let token = format!(
        "jwt: {{providers: [{{name: login, issuer: '{ISSUER}', audiences: [{AUDIENCE}], \
         jwks: {{kind: ConfigMap, name: login}}, claimsToHeaders: [{{claim: sub, header: x-user}}]}}]}}"
    );
    let text = [gateway, credentials, key, policy("token", &token)].concat();
    Ok(fs::write(directory.join("site.yaml"), text)?)
}
