//! Parser of callgrind's output: the number of runs of each path, and the instructions inside.

use super::record::Paths;
use std::collections::BTreeMap;

/// Instructions per call of each function right in `module`, including its callees, by the function's name.
///
/// A call takes three lines in the caller's block:
///
/// ```text
/// cfn=fast_paths::counted::pack          the callee,
/// calls=4096 48                          number of calls, and the line where the callee begins,
/// 67 1265664                             the calling line, and the instructions until the return
/// ```
pub fn paths(output: &str, module: &str) -> Result<Paths, String> {
    let mut sums: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    let mut callee = "";
    let mut lines = output.lines();
    while let Some(line) = lines.next() {
        if let Some(name) = line.strip_prefix("cfn=") {
            callee = name;
        } else if let Some(calls) = line.strip_prefix("calls=") {
            let cost = lines.next().unwrap_or_default();
            let Some(path) = path(callee, module) else { continue };
            let numbers = calls.split_whitespace().next().zip(cost.split_whitespace().nth(1));
            let numbers = numbers.and_then(|(calls, cost)| Some((calls.parse().ok()?, cost.parse().ok()?)));
            let (calls, cost): (u64, u64) =
                numbers.ok_or_else(|| format!("not a call of {callee}: {line:?}, {cost:?}"))?;
            let sum = sums.entry(path).or_default();
            *sum = (sum.0 + calls, sum.1 + cost);
        }
    }
    sums.retain(|_, (calls, _)| *calls > 0);
    if sums.is_empty() {
        return Err(format!("no call of a function of {module}: was the program stripped of its symbols?"));
    }
    Ok(sums.into_iter().map(|(path, (calls, cost))| (path.to_owned(), cost as f64 / calls as f64)).collect())
}

/// The function's own name, if it stands right in `module`: no closure, and no function of a deeper module.
/// Some compilers append a hash to names.
fn path<'a>(function: &'a str, module: &str) -> Option<&'a str> {
    let name = function.strip_prefix(module)?.strip_prefix("::")?;
    let name = match name.split_once("::h") {
        Some((name, hash)) if hash.chars().all(|c| c.is_ascii_hexdigit()) => name,
        _ => name,
    };
    name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_').then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "\
# callgrind format
events: Ir
summary: 9999

fl=/w/main.rs
fn=fast_paths::main
58 3
cfi=/w/counted.rs
cfn=fast_paths::counted::pack
calls=1 48
58 500
cfn=core::fmt::write
calls=7 1
58 70000
60 16
cfi=/w/counted.rs
cfn=fast_paths::counted::pack
calls=3 48
60 900
cfn=fast_paths::counted::poll::h0123456789abcdef
calls=4 60
61 602

fn=fast_paths::counted::pack
48 900
cfn=fast_paths::counted::pack::{{closure}}
calls=4 50
49 44
";

    #[test]
    fn a_path_costs_what_all_calls_of_it_cost_by_their_number() {
        let paths = paths(OUTPUT, "fast_paths::counted").unwrap();
        let expected = [("pack".to_owned(), 350.0), ("poll".to_owned(), 150.5)];
        assert_eq!(paths.into_iter().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn output_without_the_paths_is_an_error() {
        for output in ["", "fn=main\n1 2\ncfn=other::counted::pack\ncalls=1 1\n1 5\n"] {
            let problem = paths(output, "fast_paths::counted").unwrap_err();
            assert!(problem.contains("fast_paths::counted"), "{problem}");
        }
    }

    #[test]
    fn a_cost_that_is_no_number_is_an_error() {
        for broken in ["calls=x 1\n1 5", "calls=1 1\n1", "calls=1 1"] {
            let problem = paths(&format!("cfn=m::f\n{broken}"), "m").unwrap_err();
            assert!(problem.contains("m::f"), "{problem}");
        }
    }
}
