//! Regular expressions of users: RE2-like syntax without look-around and back-references, matched
//! in linear time, anchored at both ends, and limited in compiled size: each, and all of a route.
//! As in RE2, `\d`, `\w` and `\s` know ASCII only: with all of Unicode, `\w{8}` takes 470 KB.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::HashMap;

use portcullis_model::Pattern;
use regex::{Regex, RegexBuilder, bytes};
use regex_syntax::ParserBuilder;
use regex_syntax::ast::ErrorKind;
use regex_syntax::ast::parse::Parser as AstParser;
use regex_syntax::hir::{Class, Hir, HirKind};

use crate::Fault;

/// Of the compiled program, in bytes. A bomb such as `((a{100}){100}){100}` needs gigabytes; real
/// expressions stay below 16 kB, and one with all letters of Unicode below this. Where the library
/// has to take its slowest way, it is 10 µs for each byte that is looked at, on a core that all
/// tenants share.
const PROGRAM_BYTES: usize = 64 * 1024;
/// The least that an expression counts as, in bytes: small programs come with more than themselves.
const LEAST_BYTES: usize = 16 * 1024;
/// Of the lazily built automaton, in bytes and per thread; beyond it, matching is slower, not
/// wrong.
const CACHE_BYTES: usize = 256 * 1024;
/// The same for expressions with groups, whose text takes longer to find: in a path of 8 KiB, 2 ms
/// at worst. With 32 KiB, the library has to take its slowest way, and `/(.*)(.*)…` takes 110 ms of
/// a core that all tenants share.
const GROUPED_BYTES: usize = 8 * 1024;
/// The least that one of these counts as, in bytes.
const LEAST_GROUPED_BYTES: usize = 4 * 1024;
/// Of the different expressions of a route in all, in bytes: 256 ordinary ones.
const ROUTE_BYTES: usize = 4 * 1024 * 1024;
/// The same of a parent route with one of its children.
const PAIR_BYTES: usize = 2 * ROUTE_BYTES;

/// Expressions that were compiled already, and what further ones may take.
struct Compiled {
    text: HashMap<String, Expression<Pattern<Regex>>>,
    octets: HashMap<String, Expression<Pattern<bytes::Regex>>>,
    budget: Budget,
}

#[derive(Clone)]
struct Expression<R> {
    regex: R,
    bytes: usize,
    /// The last budget that it was taken from: equal expressions count once.
    counted: Option<usize>,
}

#[derive(Clone, Copy)]
struct Budget {
    number: usize,
    whole: usize,
    left: usize,
}

thread_local! {
    /// Set while [`compiling_once`] runs.
    static COMPILED: RefCell<Option<Compiled>> = const { RefCell::new(None) };
}

/// Compiles equal expressions once while `run` runs, and lets them share their memory; different
/// ones may take as much as those of one route. One rule of a parent route and one of a child have
/// the same ones in each of thousands of combinations.
pub(crate) fn compiling_once<T>(run: impl FnOnce() -> T) -> T {
    let budget = Budget { number: 0, whole: ROUTE_BYTES, left: ROUTE_BYTES };
    COMPILED.set(Some(Compiled { text: HashMap::new(), octets: HashMap::new(), budget }));
    let result = run();
    COMPILED.set(None);
    result
}

/// Begins a pair of a parent route and a child: what it may take does not depend on other pairs.
pub(crate) fn begin_pair() {
    COMPILED.with_borrow_mut(|compiled| {
        if let Some(Compiled { budget, .. }) = compiled {
            *budget = Budget { number: budget.number + 1, whole: PAIR_BYTES, left: PAIR_BYTES };
        }
    });
}

/// The refusal of all further expressions, if there were too many.
pub(crate) fn used_up() -> Option<Fault> {
    COMPILED.with_borrow(|compiled| {
        let budget = compiled.as_ref()?.budget;
        (budget.left == 0).then(|| budget.refusal())
    })
}

pub(crate) fn text(pattern: &str) -> Result<Pattern<Regex>, Fault> {
    once(
        pattern,
        |compiled| (&mut compiled.text, &mut compiled.budget),
        |bytes| {
            let regex = compile(&anchored(&in_ascii(pattern)), bytes)?;
            Ok(Pattern { written: pattern.into(), regex })
        },
    )
}

pub(crate) fn octets(pattern: &str) -> Result<Pattern<bytes::Regex>, Fault> {
    once(
        pattern,
        |compiled| (&mut compiled.octets, &mut compiled.budget),
        |bytes| {
            let anchored = anchored(&in_ascii(pattern));
            let mut builder = bytes::RegexBuilder::new(&anchored);
            let regex = builder.size_limit(bytes).dfa_size_limit(CACHE_BYTES).build()?;
            Ok(Pattern { written: pattern.into(), regex })
        },
    )
}

/// Refuses what is no expression by itself: `a)|(b` would be one between parentheses.
pub(crate) fn check(pattern: &str) -> Result<(), Fault> {
    match used_up() {
        Some(refusal) => Err(refusal),
        None => {
            let compiled = parse(pattern).and_then(|()| compile(&in_ascii(pattern), PROGRAM_BYTES));
            compiled.map(drop).map_err(|error| refusal(pattern, &error))
        }
    }
}

/// An expression with groups for whole paths, and the bytes that it counts as. Paths are ASCII, and
/// begin with a slash; an expression that never does would be without effect.
pub(crate) fn whole_path(pattern: &str) -> Result<(bytes::Regex, usize), Fault> {
    let compile = |pattern: &str, bytes| {
        let mut builder = bytes::RegexBuilder::new(pattern);
        builder.unicode(false).size_limit(bytes).dfa_size_limit(CACHE_BYTES).build()
    };
    let pattern_itself = in_ascii(pattern);
    let whole = anchored(&pattern_itself);
    let compiled = parse(pattern)
        .and_then(|()| compile(&pattern_itself, GROUPED_BYTES))
        .and_then(|_| sized(LEAST_GROUPED_BYTES, GROUPED_BYTES, |bytes| compile(&whole, bytes)))
        .map_err(|error| refusal(pattern, &error))?;
    let parsed = ParserBuilder::new().unicode(false).utf8(false).build().parse(&pattern_itself);
    match parsed {
        Ok(parsed) if !can_begin_with_slash(&parsed) => Err(Fault::unsupported(format!(
            "regular expression {:?} matches no path: paths begin with /",
            shown(pattern)
        ))),
        Ok(_) | Err(_) => Ok((compiled.regex, compiled.bytes)),
    }
}

type List<'c, R> = (&'c mut HashMap<String, Expression<R>>, &'c mut Budget);

fn once<R: Clone>(
    pattern: &str,
    list: fn(&mut Compiled) -> List<'_, R>,
    compile: impl Fn(usize) -> Result<R, regex::Error>,
) -> Result<R, Fault> {
    let known = COMPILED.with_borrow_mut(|compiled| {
        let (known, budget) = compiled.as_mut().map(list)?;
        known.get_mut(pattern).map(|known| budget.take(known))
    });
    if let Some(known) = known {
        return known;
    }
    let new = check(pattern)
        .and_then(|()| sized(LEAST_BYTES, PROGRAM_BYTES, compile).map_err(|error| refusal(pattern, &error)));
    COMPILED.with_borrow_mut(|compiled| match (compiled.as_mut().map(list), new) {
        (Some((known, budget)), Ok(new)) => budget.take(known.entry(pattern.to_owned()).or_insert(new)),
        (Some((_, budget)), Err(fault)) => {
            budget.left = budget.left.saturating_sub(PROGRAM_BYTES);
            Err(fault)
        }
        (None, new) => new.map(|new| new.regex),
    })
}

/// With the smallest of a few limits that it stays below: the library does not tell sizes.
fn sized<R>(
    least: usize,
    most: usize,
    compile: impl Fn(usize) -> Result<R, regex::Error>,
) -> Result<Expression<R>, regex::Error> {
    let mut bytes = least;
    loop {
        match compile(bytes) {
            Err(regex::Error::CompiledTooBig(_)) if bytes < most => bytes *= 2,
            result => return result.map(|regex| Expression { regex, bytes, counted: None }),
        }
    }
}

// === impl Budget ===

impl Budget {
    /// One that does not fit takes all the rest: a route of nothing but bombs must not cost the
    /// time to compile each of them.
    fn take<R: Clone>(&mut self, expression: &mut Expression<R>) -> Result<R, Fault> {
        if expression.counted == Some(self.number) {
            return Ok(expression.regex.clone());
        }
        if expression.bytes > self.left {
            self.left = 0;
            return Err(self.refusal());
        }
        self.left -= expression.bytes;
        expression.counted = Some(self.number);
        Ok(expression.regex.clone())
    }

    fn refusal(self) -> Fault {
        Fault::unsupported(format!(
            "too many regular expressions: all different ones together may compile to {} MiB, where each counts as \
             {} KiB at least; use fewer or smaller ones, or several routes",
            self.whole / (1024 * 1024),
            LEAST_BYTES / 1024
        ))
    }
}

// === compiling ===

/// Refuses a class as the end of a range, as RE2 does: `[+-\d]`. Written in brackets, the class
/// would end where its inner brackets do. As the begin of one, as in `[\w-.]`, it is none, and the
/// hyphen itself is meant.
fn parse(pattern: &str) -> Result<(), regex::Error> {
    let mut pattern = Cow::Borrowed(pattern);
    loop {
        let Err(error) = AstParser::new().parse(&pattern) else { return Ok(()) };
        let (begin, end) = (error.span().start.offset, error.span().end.offset);
        let is_class = matches!(&pattern[begin..end], r"\d" | r"\D" | r"\w" | r"\W" | r"\s" | r"\S");
        let behind = &pattern[end..];
        let blanks = behind.len() - behind.trim_start().len();
        match error.kind() {
            ErrorKind::ClassRangeLiteral if is_class && behind[blanks..].starts_with('-') => {
                pattern.to_mut().insert(end + blanks, '\\');
            }
            _ => return Err(regex::Error::Syntax(error.to_string())),
        }
    }
}

fn anchored(pattern: &str) -> String {
    format!("^(?:{pattern})$")
}

/// With Perl's classes as sets of ASCII characters, which may stand in brackets, too. Their
/// complements hold all other characters.
fn in_ascii(pattern: &str) -> String {
    let mut written = String::with_capacity(pattern.len());
    let mut characters = pattern.chars();
    while let Some(character) = characters.next() {
        if character != '\\' {
            written.push(character);
            continue;
        }
        match characters.next() {
            Some('d') => written.push_str("[0-9]"),
            Some('D') => written.push_str("[^0-9]"),
            Some('w') => written.push_str("[0-9A-Za-z_]"),
            Some('W') => written.push_str("[^0-9A-Za-z_]"),
            Some('s') => written.push_str(r"[\t\n\v\f\r\x20]"),
            Some('S') => written.push_str(r"[^\t\n\v\f\r\x20]"),
            other => written.extend(std::iter::once('\\').chain(other)),
        }
    }
    written
}

fn compile(pattern: &str, bytes: usize) -> Result<Regex, regex::Error> {
    RegexBuilder::new(pattern).size_limit(bytes).dfa_size_limit(CACHE_BYTES).build()
}

/// False if no text that the expression matches begins with a slash. True may be wrong, where that
/// depends on more than the first character.
fn can_begin_with_slash(expression: &Hir) -> bool {
    match expression.kind() {
        HirKind::Empty | HirKind::Look(_) => false,
        HirKind::Literal(literal) => literal.0.first() == Some(&b'/'),
        HirKind::Class(Class::Bytes(class)) => {
            class.ranges().iter().any(|range| (range.start()..=range.end()).contains(&b'/'))
        }
        HirKind::Class(Class::Unicode(class)) => {
            class.ranges().iter().any(|range| (range.start()..=range.end()).contains(&'/'))
        }
        HirKind::Repetition(repeated) => repeated.max != Some(0) && can_begin_with_slash(&repeated.sub),
        HirKind::Capture(group) => can_begin_with_slash(&group.sub),
        HirKind::Alternation(all) => all.iter().any(can_begin_with_slash),
        HirKind::Concat(parts) => {
            let is_empty = |part: &Hir| part.properties().minimum_len() == Some(0);
            let first = parts.iter().position(|part| !is_empty(part)).unwrap_or(parts.len());
            parts.iter().take(first + 1).any(can_begin_with_slash)
        }
    }
}

fn shown(pattern: &str) -> String {
    pattern.chars().take(60).collect()
}

fn refusal(pattern: &str, error: &regex::Error) -> Fault {
    let shown = shown(pattern);
    Fault::unsupported(match error {
        regex::Error::CompiledTooBig(limit) => format!(
            "regular expression {shown:?} is too complex: it compiles to more than {} KiB; use fewer or smaller repetitions",
            limit / 1024
        ),
        // The parser's message draws the expression over several lines; its last line says what is
        // wrong.
        other => format!("regular expression {shown:?} cannot be used: {}", last_line(&other.to_string())),
    })
}

fn last_line(message: &str) -> &str {
    message.lines().last().unwrap_or(message).trim().trim_start_matches("error: ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_match_as_a_whole() {
        let regex = text("/a|/b+").unwrap().regex;
        assert!(regex.is_match("/a") && regex.is_match("/bbb"));
        assert!(!regex.is_match("/ab") && !regex.is_match("x/a"));
        assert!(
            octets("v[0-9]").unwrap().regex.is_match(b"v2")
                && !octets("v[0-9]").unwrap().regex.is_match(b"v22")
        );
    }

    #[test]
    fn classes_are_those_of_ascii() {
        for (pattern, matching, others) in [
            (r"\d+", "42", ["4a", "٤"]),
            (r"\w+", "a_1", ["a-1", "é"]),
            (r"[\w.-]+", "a-1.b", ["a b", "é"]),
            (r"[^\d/]+", "aé", ["1", "a/b"]),
            (r"\D\W\S", "aéb", ["a1b", "1-b"]),
            (r"a\sb", "a\tb", ["a\u{a0}b", "ab"]),
            (r"(?x) a \s b", "a b", ["a", "ab"]),
            (r"\\d\.\p{L}", r"\d.é", [r"\1.é", "1.a"]),
        ] {
            let (text, octets) = (text(pattern).unwrap(), octets(pattern).unwrap());
            assert!(text.regex.is_match(matching) && octets.regex.is_match(matching.as_bytes()), "{pattern}");
            for other in others {
                let matches = text.regex.is_match(other) || octets.regex.is_match(other.as_bytes());
                assert!(!matches, "{pattern} {other}");
            }
        }
        assert!(text(r"\").is_err() && text(r"[\d").is_err());
    }

    #[test]
    fn classes_do_not_end_ranges() {
        for pattern in [r"/[+-\d]", r"[a-z0-\w]+", r"(?x)[ ! - \S ]", r"[\w-.!-\d]"] {
            assert!(text(pattern).is_err() && octets(pattern).is_err(), "{pattern}");
            assert!(whole_path(&format!("/{pattern}")).is_err(), "{pattern}");
        }
        for (pattern, matching) in [
            (r"[\w-.]+", "a-."),
            (r"[\d-\w]+", "1-a"),
            (r"[-\d]+", "1-"),
            (r"[a-z-\d]+", "1-b"),
            (r"[!\-\d]+", "1-!"),
            (r"\d{2}-\d", "12-3"),
        ] {
            assert!(text(pattern).unwrap().regex.is_match(matching), "{pattern}");
        }
    }

    /// With classes of all of Unicode, 32 of these were more than a route may have.
    #[test]
    fn a_route_may_have_as_many_ordinary_expressions_as_it_has_room_for() {
        let ordinary = |at: usize| match at % 4 {
            0 => format!(r"/v{at}/users/\d+"),
            1 => format!(r"/v{at}/[\w.-]+/items/\w+"),
            2 => format!(r"/{at}/\d{{4}}-\d{{2}}-\d{{2}}/\S+"),
            _ => format!(r"(?i)/{at}/[\w-]{{8}}-[\w-]{{4}}/.*\.(png|jpe?g)"),
        };
        let all = compiling_once(|| (0..1000).take_while(|at| text(&ordinary(*at)).is_ok()).count());
        assert_eq!(all, ROUTE_BYTES / LEAST_BYTES);
        let unicode = |at: usize| format!(r"/v{at}/\p{{Letter}}");
        let few = compiling_once(|| (0..1000).take_while(|at| text(&unicode(*at)).is_ok()).count());
        assert_eq!(few, ROUTE_BYTES / PROGRAM_BYTES, "hostile ones stay bounded");
    }

    #[test]
    fn equal_expressions_are_compiled_once_where_that_is_asked_for() {
        let count = || {
            COMPILED.with_borrow(|compiled| compiled.as_ref().map_or(0, |it| it.text.len() + it.octets.len()))
        };
        let compile = || {
            assert!(
                text("/a+").unwrap().regex.is_match("/aa") && octets("a+").unwrap().regex.is_match(b"aa")
            );
            assert!(text("(").is_err());
            count()
        };
        assert_eq!(compiling_once(|| [compile(), compile()]), [2, 2]);
        assert_eq!((compile(), count()), (0, 0));
    }

    #[test]
    fn the_different_expressions_of_a_route_are_limited_in_all() {
        let big = |at: usize| format!("(x{{1,60}}y?){{1,8}}.*{at}");
        let small = |at: usize| format!("/v{at}/[0-9]+");
        let fitting = |of: &dyn Fn(usize) -> String| {
            compiling_once(|| (0..1000).take_while(|at| octets(&of(*at)).is_ok()).count())
        };
        assert_eq!(
            (fitting(&big), fitting(&small)),
            (ROUTE_BYTES / PROGRAM_BYTES, ROUTE_BYTES / LEAST_BYTES)
        );
        compiling_once(|| {
            let refused = (0..1000).find_map(|at| octets(&big(at % 65)).err()).unwrap();
            assert!(refused.message.contains("compile to 4 MiB"), "{}", refused.message);
            assert!(octets(&big(0)).is_ok() && octets("a+").is_err() && check("a+").is_err());
            begin_pair();
            assert!(octets("a+").is_ok() && used_up().is_none());
        });
    }

    #[test]
    fn refused_expressions_use_up_what_a_route_may_take() {
        let bomb = |at: usize| text(&format!("(((a{{99}}){{99}}){{99}}){at}")).unwrap_err().message;
        let messages: Vec<_> = compiling_once(|| (0..65).map(bomb).collect());
        assert!(messages[..64].iter().all(|message| message.contains("too complex")), "{messages:?}");
        assert!(messages[64].contains("too many"), "{messages:?}");
    }

    #[test]
    fn expressions_that_match_no_path_are_found() {
        for pattern in [
            "foo",
            "^foo",
            "",
            "$",
            "(?i)api/.*",
            "[a-z]+/(.*)",
            "(a|b)?c/",
            r"\w*x/.*",
            "a*b/",
            "(?:/){0}a",
            r"\bfoo",
            "[^/].*",
            r"(^|a)b",
        ] {
            let refused = whole_path(pattern).map(|_| ()).unwrap_err();
            assert!(refused.message.contains("matches no path: paths begin with /"), "{}", refused.message);
        }
        for pattern in [
            "/",
            "^/foo",
            ".*",
            "(a|/b)",
            "a*/b",
            "(?:a/)?/b",
            "[^a]x",
            "(?s).foo",
            r"[\x00-\x7f]",
            "(?P<a>/.*)",
            r"\B/",
            r"\W.*",
            "(?x) / a",
            // More than the first character would have to be looked at.
            "/^a",
        ] {
            assert!(whole_path(pattern).is_ok(), "{pattern}");
        }
    }

    #[test]
    fn what_cannot_be_used_says_why() {
        for (pattern, part) in [
            ("a)|(b", "unopened group"),
            ("(a", "unclosed group"),
            ("((((a{99}){99}){99}){99})", "too complex"),
            ("(?=a)", "look-around"),
            ("(?m)^a", ""),
        ] {
            match text(pattern) {
                Err(fault) => {
                    assert!(!part.is_empty() && fault.message.contains(part), "{}", fault.message)
                }
                Ok(_) => assert!(part.is_empty(), "{pattern}"),
            }
        }
    }
}
