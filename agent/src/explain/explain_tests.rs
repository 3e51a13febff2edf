use super::*;
use crate::offline::translate_text;

const SHOP: &str = include_str!("../../tests/data/shop.yaml");

fn ask(url: &str, headers: &[&str]) -> String {
    let headers = headers.iter().map(ToString::to_string).collect();
    let question = Question { url: url.to_owned(), method: "GET".to_owned(), headers, all: false };
    explain(&translate_text(SHOP).snapshot, &question).unwrap()
}

#[test]
fn the_winner_and_the_losers_are_named() {
    let text = ask("http://shop.example:8080/cart/items", &[]);
    assert_eq!(text, "");
}
