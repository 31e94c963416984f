use proptest::prelude::*;

use super::super::{MAX_ADDRESS, MAX_NICS, MAX_NICS_PER_HOST};
use super::*;

type Hosts = Vec<(String, Vec<Vec<u8>>)>;

fn hosts(table: &HostTable) -> Hosts {
    table.hosts().map(|(name, addresses)| (name.to_owned(), addresses.to_vec())).collect()
}

fn read(text: &str) -> Hosts {
    hosts(&text.parse().unwrap_or_else(|error| panic!("{error}")))
}

#[test]
fn both_forms_of_addresses_comments_and_spaces() {
    let text = "# of two hosts\n\n  b  0x00ff \"a # b\"\t0xAbCd # and so on\r\na \"0x00\"";
    let expected: Hosts = vec![
        ("a".into(), vec![b"0x00".to_vec()]),
        ("b".into(), vec![vec![0, 0xff], b"a # b".to_vec(), vec![0xab, 0xcd]]),
    ];
    assert_eq!(read(text), expected);
    assert_eq!(HostTable::new().to_string(), "");
    assert_eq!(read("# nobody"), Hosts::new());
}

#[test]
fn errors_name_file_line_column_and_what_was_expected() {
    let cases: [(&[u8], usize, usize, &str, &str); 14] = [
        (b"a", 1, 2, "an address of this host's NIC", "the line's end"),
        (b"a 0x00\n\nb # none", 3, 2, "an address of this host's NIC", "the line's end"),
        (b"a nic0", 1, 3, "an address: 0x and hexadecimal digits, or text in double quotes", "\"nic0\""),
        (b"a 0x0", 1, 3, "pairs of hexadecimal digits behind 0x", "\"0x0\""),
        (b"a 0x", 1, 3, "an address of 1 to 108 bytes", "\"0x\""),
        (b"a 0x+f", 1, 3, "pairs of hexadecimal digits behind 0x", "\"0x+f\""),
        (b"a \"x", 1, 3, "an address that ends with the quote", "\"\\\"x\""),
        (b"a \"", 1, 3, "an address that ends with the quote", "\"\\\"\""),
        (b"a \"x\"y", 1, 3, "an address that ends with the quote", "\"\\\"x\\\"y\""),
        ("a 0x01 \"ä\"".as_bytes(), 1, 8, "printable ASCII without quotes", "\"\\\"ä\\\"\""),
        ("ä \"b\"\na\"b\" 0x01".as_bytes(), 2, 1, "a host's name", "\"a\\\"b\\\"\""),
        (b"a 0x01\na 0x02", 2, 1, "a host that has no line yet", "\"a\""),
        (b"a 0x01\nb 0x02 0x01", 2, 8, "another address (the address 0x01 is known already", "\"0x01\""),
        (b"a 0x01\nb \xff", 2, 3, "UTF-8", "the byte 0xff"),
    ];
    for (text, line, column, expected, found) in cases {
        let error = HostTable::parse("vip_hosts", text).unwrap_err();
        let Error::NameService(reason) = &error else { panic!("{error}") };
        let NameError::Syntax(syntax) = &**reason else { panic!("{error}") };
        assert_eq!((syntax.line, syntax.column, &*syntax.found), (line, column, found), "{error}");
        assert!(syntax.expected.starts_with(expected), "{error}");
        assert!(error.to_string().starts_with(&format!("vip_hosts:{line}:{column}: expected ")), "{error}");
    }
}

#[test]
fn what_an_error_repeats_is_short() {
    let error = HostTable::parse("f", format!("a {}", "x".repeat(1000)).as_bytes()).unwrap_err().to_string();
    assert!(error.ends_with(&format!("found \"{}\"...", "x".repeat(SHOWN))), "{error}");
}

#[test]
fn the_text_is_bounded() {
    let mut text = vec![b'#'; MAX_TEXT];
    assert_eq!(hosts(&HostTable::parse("f", &text).unwrap()), Hosts::new());
    text.push(b'#');
    assert!(matches!(HostTable::parse("f", &text), Err(Error::Full { .. })));
    let line: String = (0..=MAX_NICS_PER_HOST).map(|nic| format!(" 0x{nic:02x}")).collect();
    assert!(matches!(format!("a{line}").parse::<HostTable>(), Err(Error::Full { .. })));
}

#[test]
fn the_longest_text_that_is_written_can_be_read() {
    let mut table = HostTable::new();
    for nic in 0..MAX_NICS {
        let mut address = [0xff; MAX_ADDRESS];
        address[..8].copy_from_slice(&nic.to_be_bytes());
        table.add(&format!("{nic:0>200}"), &address).unwrap();
    }
    assert_eq!(read(&table.to_string()), hosts(&table));
}

#[test]
fn a_file_is_read_and_named_in_errors() {
    let path = std::env::temp_dir().join(format!("vip_hosts-{}", std::process::id()));
    std::fs::write(&path, "a 0x01 0x02\n").unwrap();
    let table = HostTable::load(&path);
    std::fs::write(&path, "a 01\n").unwrap();
    let wrong = HostTable::load(&path);
    std::fs::remove_file(&path).unwrap();
    assert_eq!(hosts(&table.unwrap()), [("a".to_owned(), vec![vec![1], vec![2]])]);
    let path = path.display().to_string();
    assert!(wrong.unwrap_err().to_string().starts_with(&format!("{path}:1:3: expected an address")));
    let gone = HostTable::load(path.as_ref()).unwrap_err();
    assert!(matches!(&gone, Error::Os { what, .. } if what.contains(&path)), "{gone}");
}

fn any_address() -> impl Strategy<Value = Vec<u8>> {
    let text = "[ -~]{1,20}".prop_map(String::into_bytes);
    prop_oneof![text, prop::collection::vec(any::<u8>(), 1..=MAX_ADDRESS)]
}

proptest! {
    #[test]
    fn prop_a_written_table_reads_as_the_same(
        nics in prop::collection::vec(("[^\\s\\p{C}\"#]{1,3}", any_address()), 0..40)
    ) {
        let mut table = HostTable::new();
        for (name, address) in &nics {
            // An address that was drawn twice is refused.
            let _ = table.add(name, address);
        }
        prop_assert!(nics.is_empty() || table.hosts().next().is_some());
        prop_assert_eq!(read(&table.to_string()), hosts(&table));
    }

    #[test]
    fn prop_any_bytes_are_a_table_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(table) = HostTable::parse("any", &bytes) {
            prop_assert_eq!(read(&table.to_string()), hosts(&table));
        }
    }

    /// Texts that get further into the parser than any bytes do.
    #[test]
    fn prop_almost_tables_are_tables_or_errors(text in "([abä]{0,2}[ \t\n\r\u{a0}\"#0x1fg]{0,3}){0,30}") {
        if let Ok(table) = text.parse::<HostTable>() {
            prop_assert_eq!(read(&table.to_string()), hosts(&table));
        }
    }
}
