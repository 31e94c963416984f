use super::*;

fn list(text: &str) -> Vec<(String, u32)> {
    entries(Hosts::parse(text).unwrap())
}

fn file(text: &str) -> Vec<(String, u32)> {
    entries(Hosts::parse_file("f", text).unwrap())
}

fn entries(hosts: Hosts) -> Vec<(String, u32)> {
    hosts.entries.into_iter().map(|entry| (entry.name, entry.slots)).collect()
}

fn named(wanted: &[(&str, u32)]) -> Vec<(String, u32)> {
    wanted.iter().map(|(name, slots)| ((*name).to_string(), *slots)).collect()
}

#[test]
fn lists_have_names_and_slots() {
    assert_eq!(list("a:2,b:2,c"), named(&[("a", 2), ("b", 2), ("c", 1)]));
    assert_eq!(list("a:2, b ,a:3"), named(&[("a", 5), ("b", 1)]));
    assert_eq!(
        list("[2001:db8::1]:2,[::1],10.0.0.1:4,me@x.org:1"),
        named(&[("2001:db8::1", 2), ("::1", 1), ("10.0.0.1", 4), ("me@x.org", 1)])
    );
}

#[test]
fn files_have_lines_and_comments() {
    let text = "# all\na slots=2\n\n  b:3  # the big one\nc\n[::1] slots=2\n";
    assert_eq!(file(text), named(&[("a", 2), ("b", 3), ("c", 1), ("::1", 2)]));
}

#[test]
fn what_is_wrong_is_said_with_its_place_and_what_is_possible() {
    let lists = [
        ("", "column 1: ``: a host's name is missing"),
        ("a,,b", "column 3: ``: a host's name is missing"),
        ("a:2,b:x", "column 5: `x` is no number of slots: 1 to 4096"),
        ("a:0", "column 1: `0` is no number"),
        ("a: 2", "column 1: ` 2` is no number"),
        ("a:4097", "is no number of slots"),
        ("a:4000,b:97", "column 8: with `b` there are 4097 slots: at most 4096"),
        ("::1", "column 1: `::1`: an IPv6 address stands in brackets"),
        ("[::1", "the bracket is not closed"),
        ("[a]:2", "`a` is no IPv6 address"),
        ("[::1]2", "`2`: behind the bracket only :N"),
        ("a, -oProxyCommand=x", "column 4: `-oProxyCommand=x`: a host's name must not begin with `-`"),
        ("a;b", "has letters, digits"),
    ];
    for (text, wanted) in lists {
        let said = Hosts::parse(text).unwrap_err().to_string();
        assert!(said.contains(wanted), "{text:?}: {said}");
    }
    let files = [
        ("", "f, line 1, column 1: no host in this file"),
        ("a\n b cores=2", "f, line 2, column 4: `cores=2`: behind a host only slots=N"),
        ("a slots=two", "f, line 1, column 3: `two` is no number of slots"),
        ("a:2 slots=2", "column 5: `a:2` has its number of slots already"),
        ("a slots=2 b", "column 11: `b`: one host a line"),
    ];
    for (text, wanted) in files {
        let said = Hosts::parse_file("f", text).unwrap_err().to_string();
        assert!(said.contains(wanted), "{text:?}: {said}");
    }
}

#[test]
fn ranks_fill_host_by_host() {
    let place = |text: &str, ranks| Hosts::parse(text).unwrap().place(ranks, |name| name.starts_with('h'));
    let shares = |text, ranks| -> Vec<(String, u32, u32, bool)> {
        let shares = place(text, ranks).unwrap();
        shares.into_iter().map(|s| (s.host, s.first, s.count, s.here)).collect()
    };
    let share = |host: &str, first, count, here| (host.to_string(), first, count, here);
    assert_eq!(shares("a:2,b:3", None), [share("a", 0, 2, false), share("b", 2, 3, false)]);
    assert_eq!(shares("a:2,b:3,c", Some(3)), [share("a", 0, 2, false), share("b", 2, 1, false)]);
    assert_eq!(
        shares("a,h1:2,b,h2", None),
        [share("a", 0, 1, false), share("h1", 1, 3, true), share("b", 4, 1, false)]
    );
    let error = place("a:2,[::1]:3", Some(6)).unwrap_err().to_string();
    assert!(
        error.contains("6 ranks") && error.contains("5 slots") && error.contains("a:2,[::1]:3"),
        "{error}"
    );
}

#[test]
fn own_names_mean_this_host() {
    let is_own = own_names();
    assert!(is_own("localhost") && is_own("127.0.0.1") && is_own("127.9.9.9") && is_own("::1"));
    assert!(!is_own("host.invalid") && !is_own("192.0.2.77"));
}
