//! Pictures of a page, for the documents.

use std::{fs, path::Path};

use serde_json::json;

use crate::{Folder, browser::Browser};

/// Width, dark scheme, element where the picture begins, and height.
const PICTURES: [(u32, bool, &str, u64); 4] = [
    (1400, false, "body", 1330),
    (1400, true, "table.compared", 1330),
    (390, false, "body", 1330),
    (390, true, "#run-0", 1330),
];

/// Takes pictures of parts of a page, and of the whole page as it is printed.
pub fn take(program: &Path, page: &Path, to: &Path) {
    let folder = Folder::new("pictures");
    let browser = Browser::start(program, &folder.0);
    let page = fs::canonicalize(page).expect("a page");
    for (width, dark, from, height) in PICTURES {
        browser.open(&page, width, dark);
        let sought = format!(
            "(one => Math.max(0, (one.closest('section') || one).getBoundingClientRect().top + scrollY))\
             (document.querySelector('{from}') || document.body)"
        );
        let clip =
            json!({ "x": 0, "y": browser.evaluate(&sought), "width": width, "height": height, "scale": 1 });
        let asked = json!({ "format": "png", "captureBeyondViewport": true, "clip": clip });
        let picture = browser.call("Page.captureScreenshot", asked);
        let bytes = base64(picture["data"].as_str().expect("a picture"));
        let name = format!("report-{width}-{}.png", if dark { "dark" } else { "light" });
        fs::write(to.join(name), bytes).expect("a picture");
    }
    let paper = json!({ "printBackground": true, "paperWidth": 8.27, "paperHeight": 11.69 });
    let document = browser.call("Page.printToPDF", paper);
    fs::write(to.join("report.pdf"), base64(document["data"].as_str().expect("a document")))
        .expect("a document");
}

/// Decodes Base64, the protocol's only form of bytes.
fn base64(text: &str) -> Vec<u8> {
    let value = |letter: u8| match letter {
        b'A'..=b'Z' => Some(u32::from(letter - b'A')),
        b'a'..=b'z' => Some(u32::from(letter - b'a') + 26),
        b'0'..=b'9' => Some(u32::from(letter - b'0') + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    };
    let (mut bytes, mut bits, mut held) = (Vec::with_capacity(text.len() / 4 * 3), 0, 0);
    for six in text.bytes().filter_map(value) {
        (bits, held) = ((bits << 6 | six) & 0xffff, held + 6);
        if held >= 8 {
            held -= 8;
            bytes.push((bits >> held & 0xff) as u8);
        }
    }
    bytes
}
