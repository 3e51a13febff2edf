//! Modules that are siblings do not import each other in a circle, each taken with everything below
//! it: of two rooms one is the lower, and can be read without the other. A module and its children
//! are one room.

use std::collections::{BTreeMap, BTreeSet};

use super::source::{code, without_tests};
use super::{File, Problem};

/// A module's path in its crate: `["http", "headers"]`; the root's is empty.
type Path = Vec<String>;

#[derive(Default)]
struct Crate {
    modules: BTreeMap<Path, Module>,
}

#[derive(Default)]
struct Module {
    /// Everything that it names by `crate::`, `self::` or `super::`, or imports from a child.
    names: BTreeSet<Path>,
    /// Paths behind the names that it re-exports.
    given_on: BTreeMap<String, Path>,
    /// Children for tests only.
    tests: BTreeSet<String>,
}

pub(super) fn problems(files: &[File]) -> Vec<Problem> {
    let manifests = files.iter().filter_map(|file| file.path.strip_suffix("Cargo.toml"));
    let folders = manifests.map(|folder| format!("{folder}src/"));
    folders.flat_map(|folder| of_crate(&folder, files)).collect()
}

fn of_crate(folder: &str, files: &[File]) -> Vec<Problem> {
    let mut known = Crate::default();
    for file in files {
        let Some(path) = file.path.strip_prefix(folder).and_then(|path| path.strip_suffix(".rs")) else {
            continue;
        };
        let mut path: Path = path.split('/').map(str::to_owned).collect();
        if path.last().is_some_and(|last| ["mod", "lib", "main"].contains(&last.as_str())) {
            path.pop();
        }
        known.modules.entry(path.clone()).or_default().read(&path, &file.text);
    }
    known.circles().iter().map(|circle| Problem(format!("{folder}: {circle} import each other"))).collect()
}

impl Module {
    fn read(&mut self, own: &[String], text: &str) {
        let code = without_tests(&code(text));
        for (at, _) in code.match_indices("#[cfg(test)]") {
            let declared = code[at..].split_once("mod ").and_then(|(_, rest)| rest.split_once(';'));
            self.tests.extend(declared.map(|(name, _)| name.to_owned()));
        }
        for (before, tree) in imports(&code) {
            for (alias, path) in expand(tree) {
                let path = absolute(own, &path);
                if before.starts_with("pub") {
                    self.given_on.insert(alias, path.clone());
                }
                self.names.insert(path);
            }
        }
        for root in ["crate::", "super::"] {
            let found = code.match_indices(root).filter(|(at, _)| !code[..*at].ends_with(is_word));
            let paths = found.map(|(at, _)| code[at..].split(|c| !(is_word(c) || c == ':')).next());
            self.names.extend(paths.flatten().map(|path| absolute(own, &segments(path))));
        }
    }
}

impl Crate {
    /// The deepest module that a path leads into.
    fn module_of(&self, path: &[String]) -> Path {
        let mut found = Path::new();
        for (at, segment) in path.iter().enumerate() {
            let mut next = found.clone();
            next.push(segment.clone());
            if self.modules.contains_key(&next) {
                found = next;
                continue;
            }
            let given_on = self.modules.get(&found).and_then(|module| module.given_on.get(segment));
            return match given_on {
                // Given on by itself, it would lead here for ever.
                Some(target) if target.as_slice() != &path[..=at] => self.module_of(target),
                _ => found,
            };
        }
        found
    }

    /// Siblings that reach each other, the smallest circle of each.
    fn circles(&self) -> Vec<String> {
        let mut edges: BTreeMap<Path, BTreeSet<Path>> = BTreeMap::new();
        for (from, module) in self.modules.iter().filter(|(path, _)| !self.is_for_tests(path)) {
            for to in module.names.iter().map(|name| self.module_of(name)) {
                let common = from.iter().zip(&to).take_while(|(a, b)| a == b).count();
                if from.len() > common && to.len() > common {
                    edges.entry(from[..=common].to_vec()).or_default().insert(to[..=common].to_vec());
                }
            }
        }
        let mut circles = BTreeSet::new();
        for module in edges.keys() {
            let reached = reached(&edges, module);
            if reached.contains(module) {
                let members = reached.iter().filter(|other| self::reached(&edges, other).contains(module));
                circles.insert(members.map(|path: &&Path| path.join("::")).collect::<Vec<_>>().join(", "));
            }
        }
        circles.into_iter().collect()
    }

    fn is_for_tests(&self, path: &[String]) -> bool {
        (0..path.len())
            .any(|at| self.modules.get(&path[..at]).is_some_and(|parent| parent.tests.contains(&path[at])))
    }
}

fn reached<'a>(edges: &'a BTreeMap<Path, BTreeSet<Path>>, from: &'a Path) -> BTreeSet<&'a Path> {
    let mut reached = BTreeSet::new();
    let mut next = vec![from];
    while let Some(at) = next.pop() {
        next.extend(edges.get(at).into_iter().flatten().filter(|to| reached.insert(*to)));
    }
    reached
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn segments(path: &str) -> Path {
    path.split("::").map(|segment| segment.trim().to_owned()).filter(|it| !it.is_empty()).collect()
}

/// From the crate's root. A path that begins elsewhere is a child's, or of another crate, which
/// leads to no module.
fn absolute(own: &[String], path: &[String]) -> Path {
    let mut from: Path = own.to_vec();
    let mut rest = path;
    match path.first().map(String::as_str) {
        Some("crate") => (from, rest) = (Path::new(), &path[1..]),
        Some("self") => rest = &path[1..],
        _ => {
            while let Some(("super", further)) =
                rest.split_first().map(|(first, rest)| (first.as_str(), rest))
            {
                from.pop();
                rest = further;
            }
        }
    }
    from.extend(rest.iter().cloned());
    from
}

/// Each `use` as its visibility and its tree.
fn imports(code: &str) -> impl Iterator<Item = (&str, &str)> {
    let statements = code.split(';');
    statements.filter_map(|statement| {
        let line = statement.trim_start();
        let line = line
            .rsplit_once(['}', ']'])
            .filter(|(_, rest)| rest.trim_start().starts_with(['p', 'u']))
            .map_or(line, |(before, rest)| if before.contains("use ") { line } else { rest.trim_start() });
        let (before, tree) = line.split_once("use ")?;
        (before.is_empty() || before.starts_with("pub")).then_some((before, tree))
    })
}

/// `a::{b, c as d}` → `b` for `a::b`, `d` for `a::c`.
fn expand(tree: &str) -> Vec<(String, Path)> {
    let tree = tree.trim();
    let Some((prefix, group)) = tree.split_once('{') else {
        let (path, alias) = tree.split_once(" as ").map_or((tree, None), |(path, alias)| (path, Some(alias)));
        let path = segments(path);
        let last = path.last().cloned().unwrap_or_default();
        return vec![(alias.map_or(last, |alias| alias.trim().to_owned()), path)];
    };
    let mut parts = Vec::new();
    let (mut depth, mut begin) = (0, 0);
    let group = group.trim_end().strip_suffix('}').unwrap_or(group);
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&group[begin..at]);
                begin = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&group[begin..]);
    let parts = parts.into_iter().filter(|part| !part.trim().is_empty()).flat_map(expand);
    let prefix = segments(prefix);
    parts
        .map(|(alias, path)| {
            let path = path.into_iter().filter(|segment| segment != "self");
            (alias, prefix.iter().cloned().chain(path).collect())
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn circles(files: &[(&str, &str)]) -> Vec<String> {
        let file = |(path, text): &(&str, &str)| File { path: (*path).to_owned(), text: (*text).to_owned() };
        let mut files: Vec<_> = files.iter().map(file).collect();
        files.push(file(&("c/Cargo.toml", "")));
        problems(&files).into_iter().map(|problem| problem.0).collect()
    }

    #[test]
    fn siblings_must_not_import_each_other() {
        let one = ("c/src/one.rs", "use crate::two::Two;");
        let found = circles(&[one, ("c/src/two.rs", "use super::{three::Three, one::{self, One}};")]);
        assert_eq!(found, ["c/src/: one, two import each other"]);
        assert!(
            circles(&[one, ("c/src/two.rs", "#[cfg(test)]\nmod tests { use crate::one::One; }")]).is_empty()
        );
        assert!(
            circles(&[one, ("c/src/two.rs", "// crate::one\nconst A: &str = \"crate::one\";")]).is_empty()
        );
    }

    #[test]
    fn folders_count_with_what_is_in_them() {
        let files = [
            ("c/src/one.rs", "pub(crate) mod a;"),
            ("c/src/one/a.rs", "fn f() { crate::two::b::g() }"),
            ("c/src/two/b.rs", "fn g() {}"),
            ("c/src/two/d.rs", "use crate::Given;"),
            ("c/src/two/mod.rs", ""),
            ("c/src/lib.rs", "pub use one::a::Given;"),
        ];
        assert_eq!(circles(&files), ["c/src/: one, two import each other"]);
    }

    #[test]
    fn a_module_and_its_children_are_one_room() {
        assert!(
            circles(&[("c/src/one.rs", "use self::a::A;"), ("c/src/one/a.rs", "use super::B;")]).is_empty()
        );
    }
}
