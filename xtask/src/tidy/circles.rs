//! Modules that are siblings do not import each other in a circle, each taken with everything below
//! it: of two rooms one is the lower, and can be read without the other. A module and its children
//! are one room.

use std::collections::{BTreeMap, BTreeSet};

use super::source::{code, test_items, without_tests};
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
    /// Paths behind the names that it imports: children name them by it, and others what it
    /// re-exports.
    imported: BTreeMap<String, Path>,
    /// Modules of which it imports all.
    globs: BTreeSet<Path>,
    /// Items of its own.
    defined: BTreeSet<String>,
    /// Children for tests only.
    tests: BTreeSet<String>,
}

/// No name is re-exported by more modules in a row.
const STEPS: usize = 8;

const ITEMS: &[&str] =
    &["fn", "struct", "enum", "trait", "type", "const", "static", "union", "mod", "macro_rules"];

pub(super) fn problems(files: &[File]) -> Vec<Problem> {
    let manifests = files.iter().filter_map(|file| file.path.strip_suffix("Cargo.toml"));
    let folders = manifests.map(|folder| format!("{folder}src/"));
    folders.flat_map(|folder| of_crate(&folder, files)).collect()
}

fn of_crate(folder: &str, files: &[File]) -> Vec<Problem> {
    let of_crate = |file: &&File| file.path.starts_with(folder) && file.path.ends_with(".rs");
    let placed: BTreeMap<String, Path> =
        files.iter().filter(of_crate).flat_map(|file| placed_by(folder, file)).collect();
    let mut known = Crate::default();
    for file in files.iter().filter(of_crate) {
        let path = placed.get(&file.path).cloned().unwrap_or_else(|| module_of_file(folder, &file.path));
        known.modules.entry(path.clone()).or_default().read(&path, &file.text);
    }
    known.circles().iter().map(|circle| Problem(format!("{folder}: {circle} import each other"))).collect()
}

/// The module of a file that no `#[path]` puts elsewhere.
fn module_of_file(folder: &str, path: &str) -> Path {
    let path = path.strip_prefix(folder).and_then(|path| path.strip_suffix(".rs")).unwrap_or(path);
    let mut path: Path = path.split('/').map(str::to_owned).collect();
    if path.last().is_some_and(|last| ["mod", "lib", "main"].contains(&last.as_str())) {
        path.pop();
    }
    path
}

/// Files whose modules this file declares by `#[path = "…"]`.
fn placed_by(folder: &str, file: &File) -> Vec<(String, Path)> {
    let code = code(&file.text);
    let lines: Vec<_> = file.text.lines().zip(code.lines()).collect();
    let directory = file.path.rsplit_once('/').map_or("", |(directory, _)| directory);
    let placed = lines.iter().enumerate().filter(|(_, (_, code))| code.trim_start().starts_with("#[path"));
    let placed = placed.filter_map(|(at, (text, _))| {
        let name = text.split('"').nth(1)?;
        let declared = lines[at..].iter().find_map(|(_, code)| code.trim().strip_suffix(';'))?;
        let mut module = module_of_file(folder, &file.path);
        module.push(declared.rsplit_once("mod ")?.1.to_owned());
        Some((format!("{directory}/{name}"), module))
    });
    placed.collect()
}

impl Module {
    fn read(&mut self, own: &[String], text: &str) {
        let code = code(text);
        self.tests.extend(test_items(&code).into_iter().filter_map(|item| declared(&code[item])));
        let code = without_tests(&code);
        for (alias, path) in imports(&code).flat_map(expand) {
            let path = absolute(own, &path);
            match path.split_last() {
                Some((last, module)) if last == "*" => {
                    self.globs.insert(module.to_vec());
                    self.names.insert(module.to_vec());
                }
                _ => {
                    self.imported.insert(alias, path.clone());
                    self.names.insert(path);
                }
            }
        }
        for root in ["crate::", "super::"] {
            let found = code.match_indices(root).filter(|(at, _)| !code[..*at].ends_with(is_word));
            let paths = found.map(|(at, _)| code[at..].split(|c| !(is_word(c) || c == ':')).next());
            self.names.extend(paths.flatten().map(|path| absolute(own, &segments(path))));
        }
        let mut before = "";
        for word in code.split(|c| !is_word(c)).filter(|word| !word.is_empty()) {
            if ITEMS.contains(&before) {
                self.defined.insert(word.to_owned());
            }
            before = word;
        }
    }
}

impl Crate {
    /// The deepest module that a path leads into.
    fn module_of(&self, path: &[String]) -> Path {
        self.follow(path, STEPS)
    }

    fn follow(&self, path: &[String], steps: usize) -> Path {
        let mut found = Path::new();
        for (at, segment) in path.iter().enumerate() {
            let next = joined(&found, std::slice::from_ref(segment));
            if self.modules.contains_key(&next) {
                found = next;
                continue;
            }
            let imported = self.modules.get(&found).and_then(|module| self.imported(module, segment, steps));
            return match imported {
                Some(target) => self.follow(&joined(&target, &path[at + 1..]), steps - 1),
                None => found,
            };
        }
        found
    }

    /// The path behind a name that a module imports.
    fn imported(&self, module: &Module, name: &str, steps: usize) -> Option<Path> {
        if steps == 0 || module.defined.contains(name) {
            return None;
        }
        let by_glob = |glob: &Path| {
            let path = self.follow(glob, steps - 1);
            let target = self.modules.get(&path)?;
            let in_it = joined(&path, &[name.to_owned()]);
            let has = target.defined.contains(name)
                || self.modules.contains_key(&in_it)
                || self.imported(target, name, steps - 1).is_some();
            has.then_some(in_it)
        };
        module.imported.get(name).cloned().or_else(|| module.globs.iter().find_map(by_glob))
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

fn joined(path: &[String], rest: &[String]) -> Path {
    [path, rest].concat()
}

/// The module that an item declares: `tests` of `#[cfg(test)] mod tests;`.
fn declared(item: &str) -> Option<String> {
    let mut words = item.strip_suffix(';')?.split_whitespace().rev();
    let name = words.next()?;
    (words.next() == Some("mod")).then(|| name.to_owned())
}

/// The tree of each `use`, wherever it stands.
fn imports(code: &str) -> impl Iterator<Item = &str> {
    let keywords = code.match_indices("use").filter(|(at, _)| {
        let rest = &code[at + "use".len()..];
        !code[..*at].ends_with(is_word) && rest.starts_with(char::is_whitespace)
    });
    keywords.filter_map(|(at, keyword)| code[at + keyword.len()..].split(';').next())
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
    fn imports_are_found_wherever_they_stand() {
        let one = ("c/src/one.rs", "use crate::two::Two;");
        for two in [
            "#[allow(unused)]\nuse super::{one::One};",
            "struct A {}\npub(crate) use crate::{one::One};",
            "fn f() { use super::{a, one::One}; }",
            "#[cfg(test)]\nuse std::env;\nfn f() { super::one::g() }",
            "#[cfg(test)]\nfn f() { g(); }\nmod tests {}\nuse super::one::One;",
        ] {
            assert_eq!(
                circles(&[one, ("c/src/two.rs", two)]),
                ["c/src/: one, two import each other"],
                "{two}"
            );
        }
        let two = "#[cfg(test)]\nuse super::one::One;\n#[cfg(test)]\nfn f() { super::one::g() }";
        assert!(circles(&[one, ("c/src/two.rs", two)]).is_empty());
    }

    #[test]
    fn names_lead_to_where_they_are_defined() {
        let one = ("c/src/one.rs", "use super::Two;");
        let two = ("c/src/two.rs", "use super::one::One;\npub struct Two;");
        for root in ["use two::Two;", "pub use two::*;", "pub use given::*;"] {
            let given = ("c/src/given.rs", "pub use super::two::*;");
            let found = circles(&[one, two, given, ("c/src/lib.rs", root)]);
            assert!(found.len() == 1 && found[0].contains("one, two import each other"), "{root}: {found:?}");
        }
        assert!(circles(&[one, two, ("c/src/lib.rs", "pub use two::*;\nstruct Two;")]).is_empty());
    }

    #[test]
    fn modules_are_where_they_are_declared() {
        let one = ("c/src/one.rs", "use crate::two::a::A;");
        let three = ("c/src/three.rs", "use crate::one::One;");
        let two = |declared: &'static str| ("c/src/two.rs", declared);
        let found = circles(&[one, three, two("#[path = \"three.rs\"]\nmod a;")]);
        assert_eq!(found, ["c/src/: one, two import each other"]);
        assert!(circles(&[one, three, two("#[cfg(test)]\n#[path = \"three.rs\"]\nmod a;")]).is_empty());
    }

    #[test]
    fn a_module_and_its_children_are_one_room() {
        assert!(
            circles(&[("c/src/one.rs", "use self::a::A;"), ("c/src/one/a.rs", "use super::B;")]).is_empty()
        );
    }
}
