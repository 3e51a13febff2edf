//! The quickstart, seen by a client on another machine.
#![cfg(test)]

use portcullis_netns_tests::Scenario;

#[test]
fn http_and_https_over_the_vip() {
    let scenario = Scenario::new("protocols").unwrap();
    let agent = scenario.start_agent().unwrap();
    assert!(agent.log().contains("steer on this network namespace"), "{}", agent.log());

    let redirect = scenario.request("http://shop.example.com/cart").send().unwrap();
    assert_eq!(redirect.status, 301, "{redirect:?}");
    for version in ["--http1.1", "--http2"] {
        let answer = scenario.request("https://shop.example.com/cart").with(&[version]).send().unwrap();
        assert_eq!(answer.status, 200, "{answer:?}");
        assert!(answer.text.contains("shop: GET /cart"), "{answer:?}");
        assert!(
            answer.text.contains("client 10.1.0.2 by https"),
            "the client's own address is kept: {answer:?}"
        );
    }
    assert_eq!(scenario.shop.requests(), 2);
}

#[test]
fn the_name_decides_between_listener_sets_on_one_port() {
    let scenario = Scenario::new("names").unwrap();
    let _agent = scenario.start_agent().unwrap();

    let shop = scenario.request("https://shop.example.com/").send().unwrap();
    assert!(shop.text.contains("shop: GET /"), "{shop:?}");
    let blog = scenario.request("https://blog.example.com/posts/1").send().unwrap();
    assert!(blog.text.contains("blog: GET /posts/1"), "{blog:?}");
    let nameless = scenario.request("https://other.example.com/").send().unwrap();
    assert_eq!(nameless.code, Some(35), "a name of no tenant ends in the handshake: {nameless:?}");
}
