//! Memory that these tests make and give back, in every order, checked by valgrind: it follows each block that the
//! library has, ours and that of the other side.

use std::process::Command;

/// Tests whose connections transfer and end, in every order of drops, and by failures of the device.
const TESTS: [&str; 3] = [
    "tests::failures::objects_go_in_any_order",
    "tests::failures::a_failed_queue_pair_is_lost_at_both_ends_with_its_reason",
    "tests::failures::a_peer_that_goes_where_it_may_not_is_told_so",
];
/// Exit status of valgrind if it has found something.
const FOUND: i32 = 99;

/// No memory is leaked, and none is used after it was freed. (Memory of threads that remain when the process ends is
/// not leaked: a pointer to it, or to its middle, still exists.)
#[test]
fn nothing_is_lost_in_any_order() {
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--leak-check=full", "--show-leak-kinds=definite,indirect"]);
    valgrind.arg("--errors-for-leak-kinds=definite,indirect").arg(format!("--error-exitcode={FOUND}"));
    valgrind.arg(std::env::current_exe().expect("it runs")).args(TESTS).args(["--exact", "--test-threads=1"]);
    match valgrind.output() {
        Err(why) => println!("skipped: valgrind cannot be started: {why}"),
        Ok(output) => {
            let [out, err] = [&output.stdout, &output.stderr].map(|said| String::from_utf8_lossy(said));
            let said = format!("{out}{err}");
            let ran = said.contains(&format!("{} passed; 0 failed", TESTS.len()));
            assert!(output.status.success() && ran, "{}: {said}", output.status);
        }
    }
}
