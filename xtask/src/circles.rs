//! Check for circles among the files of a crate.
//!
//! A file uses another one when a path in its code leads there: `use` declarations, and paths that begin with `crate`, `self`,
//! `super` or the name of a child module. Declaring a module (`mod x;`) and exporting a name (`pub use`) is not use; nor are
//! tests (`#[cfg(test)]`) and comments. So a child may use its parent's types, as long as the parent does not use the
//! child, and the other way round.
//!
//! Files that use each other in a circle have to be understood together. A circle is allowed only within a module and the
//! modules below it (`x.rs` and `x/…`), which are one unit in several files (`docs/decisions/036`). Other circles are listed in
//! `xtask/src/circles.txt`, by package, with the number of files. The numbers may only decrease: a number that is too large
//! fails, too.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use proc_macro2::{Delimiter, Group, TokenTree};

use crate::rust_text;
use crate::workspace::Workspace;

/// A module, as its path below the crate.
type Module = Vec<String>;

/// A crate's modules, and the files that each file uses.
#[derive(Default)]
struct Crate {
    /// File of each module; for a module in braces, its parent's file.
    files: BTreeMap<Module, String>,
    /// Modules in files of another package, given by `#[path]`.
    elsewhere: BTreeSet<Module>,
    /// Code of each file, by module.
    code: Vec<(Module, Vec<String>)>,
}

/// Packages with more, or fewer, files in circles than the list says.
pub fn violations(workspace: &Workspace) -> Vec<String> {
    let known = include_str!("circles.txt").lines().filter_map(|line| line.split_once(' '));
    let known: BTreeMap<&str, usize> =
        known.filter_map(|(folder, count)| Some((folder, count.trim().parse().ok()?))).collect();
    let read = |path: &str| std::fs::read_to_string(workspace.root.join(path)).ok();
    let mut found = Vec::new();
    for package in &workspace.packages {
        let folder = package.folder.as_str();
        let circles = package.roots.iter().flat_map(|root| circles_of(root, &read));
        let circles: Vec<_> = circles.filter(|circle| !is_one_module(circle)).collect();
        found.extend(compare(folder, &circles, known.get(folder).copied().unwrap_or(0)));
    }
    found
}

/// Whether one of the files belongs to a module, and all others to modules below it.
fn is_one_module(circle: &[String]) -> bool {
    circle.iter().any(|top| {
        let below = |file: &String| {
            let module = top.strip_suffix(".rs").and_then(|module| file.strip_prefix(module));
            module.is_some_and(|rest| rest.starts_with('/'))
        };
        circle.iter().all(|file| file == top || below(file))
    })
}

fn compare(folder: &str, circles: &[Vec<String>], known: usize) -> Option<String> {
    let files: BTreeSet<&String> = circles.iter().flatten().collect();
    match files.len() {
        now if now > known => {
            let circles: Vec<String> = circles.iter().map(|circle| circle.join(", ")).collect();
            Some(format!(
                "{folder}: {now} files are in circles (xtask/src/circles.rs), at most {known} may be. Files that use each \
                 other: {}",
                circles.join("; ")
            ))
        }
        now if now < known => Some(format!(
            "{folder}: {now} files are in circles now: write that into xtask/src/circles.txt, not {known}"
        )),
        _ => None,
    }
}

/// Circles of the crate that begins with the file `root`; none if there is no such file.
fn circles_of(root: &str, read: &dyn Fn(&str) -> Option<String>) -> Vec<Vec<String>> {
    let mut all = Crate::default();
    all.add(Vec::new(), root, read);
    let mut uses: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (module, path) in &all.code {
        let (Some(from), Some(to)) = (all.files.get(module), all.target(module, path)) else { continue };
        if from != to {
            uses.entry(from).or_default().insert(to);
        }
    }
    components(&uses)
}

impl Crate {
    fn add(&mut self, module: Module, file: &str, read: &dyn Fn(&str) -> Option<String>) {
        let Some(text) = read(file) else { return };
        self.files.insert(module.clone(), file.to_owned());
        // The check of `unsafe` reports a file that cannot be read.
        let trees: Vec<_> = rust_text::tokens(&text).into_iter().flatten().collect();
        Reader { file, read, all: self }.code(&module, &trees);
    }

    /// The file to which a path in a module leads, if it belongs to the crate.
    fn target(&self, module: &[String], path: &[String]) -> Option<&String> {
        let mut at: Module = match path.first()?.as_str() {
            "crate" => Vec::new(),
            "self" => module.to_vec(),
            "super" => module[..module.len().checked_sub(1)?].to_vec(),
            child => [module, &[child.to_owned()]].concat(),
        };
        self.files.get(&at)?;
        for name in &path[1..] {
            if name == "super" {
                at.pop()?;
                continue;
            }
            at.push(name.clone());
            if self.elsewhere.contains(&at) {
                return None;
            }
            if !self.files.contains_key(&at) {
                at.pop();
                break;
            }
        }
        self.files.get(&at)
    }
}

/// Reader of one file's tokens.
struct Reader<'a> {
    file: &'a str,
    read: &'a dyn Fn(&str) -> Option<String>,
    all: &'a mut Crate,
}

impl Reader<'_> {
    /// Reads the code of a module, or a part of it in brackets.
    fn code(&mut self, module: &Module, trees: &[TokenTree]) {
        let (mut at, mut is_public) = (0, false);
        while let Some(tree) = trees.get(at) {
            let word = name(Some(tree));
            let next = name(trees.get(at + 1));
            match tree {
                _ if is_punct(Some(tree), '#') && brackets(trees.get(at + 1)).is_some() => {
                    at += 2;
                    if is_for_tests(&trees[at - 1]) {
                        at += item_length(&trees[at..]);
                    }
                    continue;
                }
                _ if word == "pub" => {
                    at += 1 + usize::from(brackets(trees.get(at + 1)).is_some());
                    is_public = true;
                    continue;
                }
                _ if word == "mod" && !next.is_empty() => {
                    self.module(&[module.as_slice(), &[next]].concat(), trees.get(at + 2));
                    at += 3;
                }
                _ if word == "use" && !is_punct(trees.get(at + 1), '<') => {
                    let length = trees[at..].iter().position(|tree| is_punct(Some(tree), ';'));
                    let end = length.map_or(trees.len(), |length| at + length);
                    if !is_public {
                        self.tree(module, &mut Vec::new(), &trees[at + 1..end]);
                    }
                    at = end;
                }
                TokenTree::Ident(_) => {
                    let path = path(&trees[at..]);
                    let before = |back: usize| at.checked_sub(back).and_then(|at| trees.get(at));
                    let in_path = is_punct(before(1), ':') && is_punct(before(2), ':');
                    let is_root = !in_path && !is_punct(before(1), '.');
                    at += 3 * path.len() - 2;
                    if is_root && path.len() > 1 {
                        self.all.code.push((module.clone(), path));
                    }
                }
                TokenTree::Group(group) => {
                    self.code(module, &trees_of(group));
                    at += 1;
                }
                _ => at += 1,
            }
            is_public = false;
        }
    }

    /// Reads a module that is declared with this body: braces, or a semicolon.
    fn module(&mut self, module: &Module, body: Option<&TokenTree>) {
        let (child, parent) = module.split_last().expect("a child's path");
        match body {
            Some(TokenTree::Group(group)) => {
                self.all.files.insert(module.clone(), self.file.to_owned());
                self.code(module, &trees_of(group));
            }
            _ => match self.child_file(parent, child) {
                Some(file) => self.all.add(module.clone(), &file, self.read),
                None => _ = self.all.elsewhere.insert(module.clone()),
            },
        }
    }

    /// Reads the paths of a `use` declaration, or of a part of it, behind `prefix`.
    fn tree(&mut self, module: &Module, prefix: &mut Vec<String>, trees: &[TokenTree]) {
        for part in trees.split(|tree| is_punct(Some(tree), ',')) {
            let depth = prefix.len();
            for tree in part {
                match tree {
                    TokenTree::Group(group) => self.tree(module, prefix, &trees_of(group)),
                    TokenTree::Ident(name) if name == "as" => break,
                    TokenTree::Ident(name) => prefix.push(name.to_string()),
                    _ => {}
                }
            }
            if !matches!(part.last(), None | Some(TokenTree::Group(_))) {
                self.all.code.push((module.clone(), prefix.clone()));
            }
            prefix.truncate(depth);
        }
    }

    fn child_file(&self, module: &[String], name: &str) -> Option<String> {
        let path = Path::new(self.file);
        let folder = path.parent()?;
        // In a crate's first file and in a `mod.rs`, child modules lie in the same folder.
        let is_first = module.is_empty() || path.file_name()? == "mod.rs";
        let folder = if is_first { folder.to_owned() } else { folder.join(path.file_stem()?) };
        let candidates = [folder.join(format!("{name}.rs")), folder.join(name).join("mod.rs")];
        let candidates = candidates.iter().map(|path| path.to_string_lossy().into_owned());
        candidates.into_iter().find(|path| (self.read)(path).is_some())
    }
}

fn trees_of(group: &Group) -> Vec<TokenTree> {
    group.stream().into_iter().collect()
}

/// The token's text, if it is a name or a keyword.
fn name(tree: Option<&TokenTree>) -> String {
    match tree {
        Some(TokenTree::Ident(name)) => name.to_string(),
        _ => String::new(),
    }
}

fn is_punct(tree: Option<&TokenTree>, wanted: char) -> bool {
    matches!(tree, Some(TokenTree::Punct(punct)) if punct.as_char() == wanted)
}

/// The group in an attribute's square brackets, or in a visibility's round ones.
fn brackets(tree: Option<&TokenTree>) -> Option<&Group> {
    match tree {
        Some(TokenTree::Group(group)) if group.delimiter() != Delimiter::Brace => Some(group),
        _ => None,
    }
}

/// Reads the path at the begin of the tokens: names with `::` between them.
fn path(trees: &[TokenTree]) -> Vec<String> {
    let mut path = vec![name(trees.first())];
    for step in trees[1..].chunks_exact(3) {
        let next = name(step.get(2));
        if !is_punct(step.first(), ':') || !is_punct(step.get(1), ':') || next.is_empty() {
            break;
        }
        path.push(next);
    }
    path
}

/// Whether an attribute is `cfg(test)` or `cfg(all(test, …))`, not `cfg(not(test))`.
fn is_for_tests(attribute: &TokenTree) -> bool {
    let text = attribute.to_string();
    let mut words = text.split(|c: char| !(c.is_alphanumeric() || c == '_')).filter(|word| !word.is_empty());
    let conditions: Vec<_> = if words.next() == Some("cfg") { words.collect() } else { Vec::new() };
    conditions.contains(&"test") && !conditions.contains(&"not")
}

/// Number of tokens of the item, field or statement that begins here.
fn item_length(trees: &[TokenTree]) -> usize {
    let (mut depth, mut before) = (0, ' ');
    let is_use = trees.iter().take(4).any(|tree| name(Some(tree)) == "use");
    for (at, tree) in trees.iter().enumerate() {
        match tree {
            TokenTree::Group(group) if group.delimiter() == Delimiter::Brace && !is_use => return at + 1,
            TokenTree::Punct(punct) => {
                match punct.as_char() {
                    ';' => return at + 1,
                    ',' if depth == 0 && !is_use => return at + 1,
                    '<' => depth += 1,
                    '>' if before != '-' && before != '=' => depth -= 1,
                    _ => {}
                }
                before = punct.as_char();
            }
            _ => before = ' ',
        }
    }
    trees.len()
}

/// Sets of files in which each file leads to all others of its set.
fn components(uses: &BTreeMap<&str, BTreeSet<&str>>) -> Vec<Vec<String>> {
    let reach = |from: &str| {
        let (mut seen, mut open) = (BTreeSet::new(), vec![from]);
        while let Some(file) = open.pop() {
            for next in uses.get(file).into_iter().flatten() {
                if seen.insert(*next) {
                    open.push(next);
                }
            }
        }
        seen
    };
    let reached: BTreeMap<&str, BTreeSet<&str>> = uses.keys().map(|file| (*file, reach(file))).collect();
    let (mut found, mut done) = (Vec::new(), BTreeSet::new());
    for (file, there) in &reached {
        if !there.contains(file) || !done.insert(*file) {
            continue;
        }
        let back = |other: &&&str| reached.get(**other).is_some_and(|back| back.contains(file));
        let circle: Vec<&str> = there.iter().filter(back).copied().collect();
        done.extend(circle.iter().copied());
        found.push(circle.into_iter().map(str::to_owned).collect());
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn circles(files: &[(&str, &str)]) -> Vec<Vec<String>> {
        let read =
            |path: &str| files.iter().find(|(name, _)| *name == path).map(|(_, text)| (*text).to_owned());
        circles_of("lib.rs", &read)
    }

    fn pair() -> Vec<Vec<String>> {
        vec![vec!["a.rs".to_owned(), "b.rs".to_owned()]]
    }

    #[test]
    fn files_that_use_each_other_are_found() {
        let lib = ("lib.rs", "mod a;\nmod b;");
        let a = ("a.rs", "use crate::b::B; pub struct A;");
        assert_eq!(circles(&[lib, a, ("b.rs", "pub struct B(crate::a::A);")]), pair());
        assert_eq!(circles(&[lib, a, ("b.rs", "use super::{a::{self as other}};")]), pair());
        assert_eq!(circles(&[lib, a, ("b.rs", "use std::fmt;\nuse crate::{c, a::A};")]), pair());
        assert_eq!(circles(&[lib, a, ("b.rs", "pub struct B; // crate::a::A")]), Vec::<Vec<String>>::new());
    }

    #[test]
    fn a_module_of_another_package_is_not_the_root() {
        let lib = ("lib.rs", "mod a; #[path = \"../other/b.rs\"] mod b;");
        assert!(circles(&[lib, ("a.rs", "use crate::b::B;")]).is_empty());
        let main = ("lib.rs", "mod a; #[path = \"../other/b.rs\"] mod b; fn main() { a::run() }");
        assert!(circles(&[main, ("a.rs", "use crate::b::B;")]).is_empty());
        assert_eq!(circles(&[main, ("a.rs", "use crate::B;")]), [["a.rs", "lib.rs"]]);
    }

    #[test]
    fn a_circle_of_three_is_one() {
        let files = [
            ("lib.rs", "mod a; mod b; mod c; mod d;"),
            ("a.rs", "use crate::b;"),
            ("b.rs", "fn f() { crate::c::g() }"),
            ("c.rs", "use super::a;"),
            ("d.rs", "use super::a;"),
        ];
        assert_eq!(circles(&files), [["a.rs", "b.rs", "c.rs"]]);
    }

    #[test]
    fn a_child_and_its_parent_may_use_each_other_one_way() {
        let lib = ("lib.rs", "mod a;");
        let child = ("a/b.rs", "use super::A; impl A {}");
        assert!(circles(&[lib, ("a.rs", "mod b; pub use b::B; pub struct A;"), child]).is_empty());
        let both = [["a.rs", "a/b.rs"]];
        assert_eq!(circles(&[lib, ("a.rs", "mod b; use b::B; pub struct A;"), child]), both);
        assert_eq!(circles(&[lib, ("a.rs", "mod b; pub struct A(b::B);"), child]), both);
    }

    #[test]
    fn tests_do_not_count() {
        let lib = ("lib.rs", "mod a; mod b;");
        let a = ("a.rs", "use crate::b::B;");
        let none: Vec<Vec<String>> = Vec::new();
        assert_eq!(circles(&[lib, a, ("b.rs", "#[cfg(test)] mod tests { use crate::a; }")]), none);
        assert_eq!(circles(&[lib, a, ("b.rs", "#[cfg(test)] pub fn f() { crate::a::g() }")]), none);
        assert_eq!(circles(&[lib, a, ("b.rs", "#[cfg(not(test))] use crate::a::A;")]), pair());
        assert_eq!(circles(&[lib, a, ("b.rs", "#[cfg(test)] use crate::a::A; use crate::a::C;")]), pair());
    }

    #[test]
    fn modules_in_braces_belong_to_their_file() {
        let lib = ("lib.rs", "mod a; mod b;");
        let a = ("a.rs", "use crate::b::B; mod sealed { pub trait S: super::T {} }");
        assert_eq!(circles(&[lib, a, ("b.rs", "mod inner { use super::super::a::A; }")]), pair());
        assert!(circles(&[lib, a, ("b.rs", "mod inner { use super::super::c; }")]).is_empty());
    }

    #[test]
    fn a_module_and_those_below_it_are_one_thing() {
        let is_one =
            |files: &[&str]| is_one_module(&files.iter().map(|file| (*file).to_owned()).collect::<Vec<_>>());
        assert!(is_one(&["src/a.rs", "src/a/b.rs", "src/a/b/c.rs"]));
        assert!(!is_one(&["src/a/b.rs", "src/a/c.rs"]), "they are beside each other");
        assert!(!is_one(&["src/a.rs", "src/a/b.rs", "src/c.rs"]));
        assert!(!is_one(&["src/a.rs", "src/ab.rs"]));
        assert!(!is_one(&["src/lib.rs", "src/a.rs"]));
    }

    #[test]
    fn the_numbers_get_smaller_only() {
        let circles = pair();
        assert_eq!(compare("src/x", &circles, 2), None);
        let more = compare("src/x", &circles, 1).unwrap();
        assert!(more.starts_with("src/x: 2 files are in circles") && more.contains("a.rs, b.rs"), "{more}");
        let fewer = compare("src/x", &circles, 3).unwrap();
        assert!(fewer.contains("2 files are in circles now") && fewer.contains("not 3"), "{fewer}");
        assert_eq!(compare("src/x", &[], 0), None);
    }
}
