use serde_json::{Value, json};

use super::*;

fn own() -> AgentPlace {
    AgentPlace { node: Some("n1".into()), zone: Some("a".into()) }
}

fn endpoint(node: &str, zone: &str, hints: Value) -> Endpoint {
    let [node, zone] = [node, zone].map(|name| Some(name).filter(|name| !name.is_empty()));
    serde_json::from_value(json!({"addresses": [], "nodeName": node, "zone": zone, "hints": hints})).unwrap()
}

/// The ports in their order, with the ends of the preferred groups.
fn order(distribution: &str, endpoints: &[Endpoint], own: &AgentPlace) -> (Vec<u16>, Option<Vec<usize>>) {
    let service = json!({"metadata": {"name": "s"}, "spec": {"trafficDistribution": distribution}});
    let service: Service = serde_json::from_value(service).unwrap();
    let numbered = (1..).zip(endpoints).map(|(port, it)| (SocketAddr::from(([10, 0, 0, 1], port)), it));
    let (addresses, locality) = ordered(numbered.collect(), Some(&service), own);
    let preferred = locality.map(|locality| locality.preferred.to_vec());
    (addresses.iter().map(SocketAddr::port).collect(), preferred)
}

#[test]
fn a_service_prefers_endpoints_for_where_they_are() {
    let endpoints = [
        endpoint("n3", "b", Value::Null),
        endpoint("n2", "a", Value::Null),
        endpoint("n1", "a", Value::Null),
        endpoint("", "", Value::Null),
    ];
    for (distribution, ports, groups) in [
        ("PreferSameNode", [3, 2, 1, 4], &[1, 2][..]),
        ("PreferSameZone", [2, 3, 1, 4], &[2]),
        ("PreferClose", [2, 3, 1, 4], &[2]),
        ("", [1, 2, 3, 4], &[]),
        ("PreferTheMoon", [1, 2, 3, 4], &[]),
    ] {
        assert_eq!(order(distribution, &endpoints, &own()), (ports.into(), Some(groups.into())));
    }
    // Of a zone that is not known nothing follows: neither that its node is all of it.
    let zoneless = AgentPlace { zone: None, ..own() };
    assert_eq!(order("PreferClose", &endpoints, &zoneless), ([1, 2, 3, 4].into(), Some(vec![])));
    assert_eq!(order("PreferSameNode", &endpoints, &zoneless), ([3, 1, 2, 4].into(), Some(vec![1])));
    assert_eq!(order("PreferSameNode", &endpoints, &AgentPlace::default()), ([1, 2, 3, 4].into(), None));
    // Where all are near, and where none is, there is nothing to prefer.
    assert_eq!(order("PreferClose", &endpoints[1..3], &own()), ([1, 2].into(), Some(vec![])));
    assert_eq!(order("PreferSameNode", &endpoints[..1], &own()), ([1].into(), Some(vec![])));
}

#[test]
fn hints_come_before_places_if_all_endpoints_have_them() {
    let zone = |zone: &str| json!({"forZones": [{"name": zone}]});
    let both = |node: &str, zone: &str| json!({"forNodes": [{"name": node}], "forZones": [{"name": zone}]});
    // Written by the controller for zones that have none of their own.
    let lent = [endpoint("n3", "b", zone("a")), endpoint("n1", "a", zone("b"))];
    assert_eq!(order("", &lent, &own()), ([1, 2].into(), Some(vec![1])));
    let half = [endpoint("n3", "b", zone("a")), endpoint("n1", "a", Value::Null)];
    assert_eq!(order("", &half, &own()), ([1, 2].into(), Some(vec![])));
    assert_eq!(order("PreferClose", &half, &own()), ([2, 1].into(), Some(vec![1])));
    let nodes = [
        endpoint("n3", "b", both("n3", "b")),
        endpoint("n2", "a", both("n2", "a")),
        endpoint("n1", "a", both("n1", "a")),
    ];
    assert_eq!(order("PreferSameNode", &nodes, &own()), ([3, 2, 1].into(), Some(vec![1, 2])));
}

/// Slices of a Service may repeat an endpoint while they are rewritten.
#[test]
fn an_endpoint_that_is_listed_twice_is_one() {
    let (near, far) = (endpoint("n1", "a", Value::Null), endpoint("n2", "b", Value::Null));
    let address = SocketAddr::from(([10, 0, 0, 1], 1));
    let (addresses, locality) = ordered(vec![(address, &far), (address, &near)], None, &own());
    assert_eq!((addresses, &*locality.unwrap().places), (vec![address], &[Distance::Node][..]));
}
