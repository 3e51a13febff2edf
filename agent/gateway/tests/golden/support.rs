//! Reading test inputs: YAML documents as objects, in which `file:NAME` stands for a file of
//! `tests/cases/certificates`.

use std::fs;
use std::path::{Path, PathBuf};

use portcullis_api::Object;
use portcullis_gateway::infra::{HostPortRights, Parameters, Pods};
use portcullis_gateway::{EndpointRule, Settings};
use serde_json::Value;

pub(crate) fn cases() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases")
}

pub(crate) fn settings() -> Settings {
    let pods = Some(Pods::new("portcullis.test/portcullis:1"));
    let generated = Parameters { pods, ..Parameters::default() };
    let grants = ["portcullis/infra:80-89", "portcullis/greedy:1-65535"];
    let grants = grants.iter().map(|grant| grant.parse().unwrap()).collect();
    let host_ports = HostPortRights { grants, admin_port: Some(9270), ..HostPortRights::default() };
    let default_addresses = vec!["192.0.2.1".parse().unwrap()];
    let load_balancers = ["203.0.113.0/24", "10.244.0.0/16", "192.0.2.8/30"];
    let load_balancers = load_balancers.iter().map(|range| range.parse().unwrap()).collect();
    let api_server = ["203.0.113.200".parse().unwrap()].into();
    let endpoints = EndpointRule::Foreign { allowed: ["trusted".to_owned()].into() };
    Settings {
        default_addresses,
        generated,
        load_balancers,
        api_server,
        endpoints,
        host_ports,
        ..Settings::default()
    }
}

/// The objects that every case has: a GatewayClass of ours.
pub(crate) fn base() -> Vec<Object> {
    read(&fs::read_to_string(cases().join("base.yaml")).unwrap())
}

pub(crate) fn read(yaml: &str) -> Vec<Object> {
    let documents: Vec<Value> = serde_saphyr::from_multiple(yaml).unwrap_or_else(|error| panic!("{error}"));
    documents.into_iter().map(object).collect()
}

pub(crate) fn object(mut document: Value) -> Object {
    insert_files(&mut document);
    Object::from_json(document).unwrap().expect("a kind that translation uses")
}

pub(crate) fn to_yaml(value: &Value) -> String {
    serde_saphyr::to_string(value).unwrap()
}

fn insert_files(value: &mut Value) {
    match value {
        Value::String(text) => {
            if let Some(name) = text.strip_prefix("file:") {
                *text = fs::read_to_string(cases().join("certificates").join(name)).unwrap();
            }
        }
        Value::Array(list) => list.iter_mut().for_each(insert_files),
        Value::Object(map) => map.values_mut().for_each(insert_files),
        _ => {}
    }
}
