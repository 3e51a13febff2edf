//! GatewayParameters that an API server refuses, so that no agent ever sees them: by the schema's
//! ranges, and its CEL rules, which a directory of manifests does not have.

use kube::api::{DynamicObject, PostParams};
use serde_json::{Value, json};

use crate::fixture::Fixture;

async fn refusal(fixture: &Fixture, spec: Value) -> Option<String> {
    let metadata = json!({"name": "own", "namespace": fixture.name});
    let object = json!({"apiVersion": "portcullis.dev/v1alpha1", "kind": "GatewayParameters",
        "metadata": metadata, "spec": spec});
    let object: DynamicObject = serde_json::from_value(object).unwrap();
    let dry = PostParams { dry_run: true, ..PostParams::default() };
    fixture.api("GatewayParameters").create(&dry, &object).await.err().map(|error| error.to_string())
}

#[tokio::test]
#[ignore = "needs a cluster: cargo xtask cluster exec"]
async fn the_api_server_refuses_what_no_gateway_can_have() {
    let fixture = Fixture::new().await;
    let rows = [
        (json!({"limits": {"connections": 0}}), "spec.limits.connections"),
        (json!({"limits": {"http2Streams": 10_001}}), "spec.limits.http2Streams"),
        (json!({"limits": {"targetBytes": 255}}), "spec.limits.targetBytes"),
        (json!({"limits": {"headerBytes": 65_537}}), "spec.limits.headerBytes"),
        (json!({"limits": {"bodyBytes": 0}}), "spec.limits.bodyBytes"),
        (json!({"limits": {"headerFields": 9}}), "spec.limits.headerFields"),
        (json!({"limits": {"headerTimeout": "1.5s"}}), "spec.limits.headerTimeout"),
        (json!({"limits": {"headerTimeout": "999ms"}}), "must be 1s to 24h"),
        (json!({"limits": {"tlsHandshakeTimeout": "0s"}}), "must be 1s to 24h"),
        (json!({"limits": {"idleTimeout": "24h1ms"}}), "must be 1s to 24h"),
        (json!({"limits": {"http2IdleTimeout": "99999h"}}), "must be 1s to 24h"),
        (json!({"accessLog": {"format": "XML"}}), "spec.accessLog.format"),
        (json!({"accessLog": {"minimumStatus": 600}}), "spec.accessLog.minimumStatus"),
        (json!({"service": {"loadBalancerClass": "a b"}}), "spec.service.loadBalancerClass"),
        (json!({"infrastructure": {"labels": {"team": "a b"}}}), "spec.infrastructure.labels.team"),
        (json!({"infrastructure": {"labels": {"a b": "team"}}}), "names are like"),
        (json!({"infrastructure": {"annotations": {"a/b/c": ""}}}), "names are like"),
        (
            json!({"dedicated": {"resources": {"limits": {"cpu": "lots"}}}}),
            "spec.dedicated.resources.limits.cpu",
        ),
        (
            json!({"dedicated": {"resources": {"requests": {"cpu": "-1"}}}}),
            "spec.dedicated.resources.requests.cpu",
        ),
    ];
    for (spec, words) in rows {
        let refusal = refusal(&fixture, spec.clone()).await;
        assert!(refusal.as_ref().is_some_and(|refusal| refusal.contains(words)), "{spec}: {refusal:?}");
    }
    let limits = json!({"connections": 1, "headerTimeout": "1s", "idleTimeout": "24h", "http2IdleTimeout": "1h59m59s999ms"});
    let infrastructure =
        json!({"labels": {"example.com/team": "", "a": "b.c"}, "annotations": {"a": "any thing"}});
    let dedicated = json!({"resources": {"limits": {"cpu": "0.5", "memory": "1.5Gi"}, "requests": {"cpu": "5e-1", "memory": ".5G"}}});
    let fine = json!({"accessLog": {"format": "Text", "minimumStatus": 100}, "limits": limits,
        "infrastructure": infrastructure, "dedicated": dedicated, "service": {"loadBalancerClass": "example.com/lb"}});
    assert_eq!(refusal(&fixture, fine).await, None);
    fixture.remove().await;
}
