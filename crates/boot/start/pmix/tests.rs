//! Choice of the library, and treatment of a server's good and bad answers. Tests with whole jobs have real
//! servers.

use std::path::PathBuf;
use std::time::Duration;

use super::ffi::fake::{self, Gives};
use super::*;

/// A deadline for calls that end by themselves.
fn long() -> Deadline {
    Deadline::after(Duration::from_secs(60))
}

/// A deadline for calls that would not end otherwise.
fn short() -> Deadline {
    Deadline::after(Duration::from_millis(20))
}

fn fake_job(name: &str) -> Option<String> {
    match name {
        "PMIX_NAMESPACE" => Some(fake::JOB.into()),
        "PMIX_RANK" => Some(fake::RANK.to_string()),
        "OMPI_COMM_WORLD_SIZE" => Some(fake::SIZE.to_string()),
        _ => None,
    }
}

/// Makes a session as of a process of its own.
fn session() -> &'static Session {
    Box::leak(Box::new(Session::new()))
}

fn joined(library: Library) -> Pmix {
    Pmix::with(library, session(), &fake_job, long()).unwrap()
}

fn why_not(library: Library) -> String {
    why(Pmix::with(library, session(), &fake_job, long()))
}

fn why<T: std::fmt::Debug>(answer: Result<T, StartError>) -> String {
    answer.unwrap_err().to_string()
}

#[test]
fn a_rank_reads_what_was_put_before_the_fence() {
    let mut pmix = joined(Library::good());
    assert_eq!((pmix.rank(), pmix.size()), (fake::RANK, fake::SIZE));
    assert_eq!(pmix.title(), "PMIx 4.2.2rc2 (Open MPI)");
    pmix.put("good", "a-value", long()).unwrap();
    pmix.fence(long()).unwrap();
    assert_eq!(pmix.get(fake::RANK, "good", long()).unwrap(), "a-value");
    let missing = why(pmix.get(0, "good", long()));
    assert_eq!(missing, "PMIx 4.2.2rc2 (Open MPI): reading `good` of rank 0: PMIX_ERR_NOT_FOUND (-46)");
    pmix.finalize(long()).unwrap();
}

#[test]
fn values_that_cannot_be_sent_are_refused() {
    let mut pmix = joined(Library::good());
    pmix.put("longest", &"x".repeat(pmix.longest_value()), long()).unwrap();
    assert_eq!(pmix.get(fake::RANK, "longest", long()).unwrap().len(), pmix.longest_value());
    let long_one = why(pmix.put("long", &"x".repeat(pmix.longest_value() + 1), long()));
    assert!(long_one.ends_with("putting `long`: its 4097 bytes are too many"), "{long_one}");
    assert!(why(pmix.put("zero", "a\0b", long())).ends_with("it has a zero byte"));
    assert!(why(pmix.get(0, "a\0b", long())).ends_with("it has a zero byte"));
}

#[test]
fn a_value_that_is_not_committed_is_not_put() {
    let mut pmix = joined(Library::refusing_to_commit());
    assert!(why(pmix.put("lost", "value", long())).ends_with("putting `lost`: PMIX_ERROR (-1)"));
}

#[test]
fn an_abort_takes_its_code_and_reason_along() {
    let mut pmix = joined(Library::good());
    pmix.abort(77, "with\0a reason", long()).unwrap();
    assert!(fake::ABORTED.lock().contains(&(77, c"with a reason".into())));
}

#[test]
fn every_call_tells_of_a_server_that_has_ended() {
    let mut pmix = joined(Library::good());
    pmix.joined.library = Library::lost();
    let answers = [
        ("putting `key`", why(pmix.put("key", "value", long()))),
        ("waiting for all ranks", why(pmix.fence(long()))),
        ("reading `key` of rank 1", why(pmix.get(1, "key", long()))),
        ("ending the job", why(pmix.abort(1, "", long()))),
    ];
    for (doing, answer) in answers {
        let reason = "PMIX_ERR_LOST_CONNECTION (-61): the launcher's daemon on this host cannot be reached, or has ended";
        assert_eq!(answer, format!("PMIx 4.2.2rc2 (Open MPI): {doing}: {reason}"));
    }
}

#[test]
fn a_server_that_cannot_be_reached_is_told_with_what_was_found_and_what_to_type() {
    assert_eq!(
        why_not(Library::unreachable()),
        "this process was started by Open MPI (PMIX_NAMESPACE=fake-job, PMIX_RANK=2), but PMIx_Init fails: PMIX_ERR_UNREACH (-25): \
         the launcher's daemon on this host cannot be reached, or has ended (fake). Start it by its launcher as a rank, or \
         by deckrun"
    );
}

#[test]
fn a_job_of_this_process_alone_is_not_the_job() {
    let alone = why_not(Library::alone());
    assert!(alone.contains("PMIx_Init makes it rank 0 of singleton (fake)"), "{alone}");
    let endless = why_not(Library::endless_name());
    assert!(endless.contains(&format!("rank 2 of {}", "x".repeat(256))), "{endless}");
}

#[test]
fn nonsense_instead_of_a_value_is_an_error() {
    for (gives, words) in [
        (Gives::OtherType, "a value of type 26 instead of 3"),
        (Gives::NoBytes, "a text without bytes"),
        (Gives::Huge, "a text of more than 4096 bytes"),
        (Gives::NoUtf8, "a text that is not UTF-8"),
    ] {
        let read = joined(Library::giving(gives)).get(1, "key", long());
        assert_eq!(why(read), format!("PMIx 4.2.2rc2 (Open MPI): reading `key` of rank 1: {words}"));
    }
}

#[test]
fn nonsense_instead_of_the_jobs_size_is_an_error() {
    let nothing = why_not(Library::giving(Gives::Nothing));
    assert!(
        nothing.contains("the job's size is not known: PMIx_Get succeeds without a value (fake)"),
        "{nothing}"
    );
    let small = why_not(Library::giving(Gives::SmallJob));
    assert!(small.contains("it is rank 2 of 2 (fake)"), "{small}");
}

#[test]
fn a_library_without_words_has_numbers() {
    let words = why_not(Library::without_words());
    assert!(words.contains("PMIx_Init fails: an error without a name (-25)"), "{words}");
    assert_eq!(title("", "Slurm"), "PMIx (Slurm)");
}

#[test]
fn a_server_that_hangs_at_the_beginning_ends_with_the_deadline() {
    let late = Pmix::with(Library::hanging_in_init(), session(), &fake_job, short()).unwrap_err();
    assert!(matches!(late, StartError::Late { .. }), "{late}");
    assert!(
        late.to_string().starts_with("PMIx 4.2.2rc2 (Open MPI): joining the job: no answer within "),
        "{late}"
    );
}

#[test]
fn after_a_call_that_never_returns_the_job_can_still_be_ended() {
    let mut pmix = joined(Library::hanging_in_fence());
    let late = pmix.fence(short()).unwrap_err();
    assert!(matches!(late, StartError::Late { .. }), "{late}");
    let next = why(pmix.get(0, "key", long()));
    assert!(next.ends_with("reading `key` of rank 0: waiting for all ranks has not returned yet"), "{next}");
    pmix.abort(78, "hangs", long()).unwrap();
    assert!(fake::ABORTED.lock().contains(&(78, c"hangs".into())));
}

#[test]
fn the_job_is_joined_once_and_left_when_the_process_exits_in_order() {
    let session = session();
    let open = |library| Pmix::with(library, session, &fake_job, long());
    let left = fake::LEFT.lock().len();
    let mut first = open(Library::counted()).unwrap();
    session.leave(long());
    assert_eq!(fake::LEFT.lock().len(), left, "the rank has not ended");
    first.finalize(long()).unwrap();
    let mut second = open(Library::unreachable()).expect("the library is not called again");
    session.leave(long());
    assert_eq!(fake::LEFT.lock().len(), left, "the second one has not ended");
    second.finalize(long()).unwrap();
    session.leave(long());
    session.leave(long());
    assert_eq!(fake::LEFT.lock().len(), left + 1);
    assert!(why(open(Library::good())).contains("another thread joins the job, or the process exits"));
}

#[test]
fn worlds_that_follow_each_other_do_not_read_each_others_values() {
    let session = session();
    let open = || Pmix::with(Library::good(), session, &fake_job, long()).unwrap();
    let mut first = open();
    first.put("followed", "first", long()).unwrap();
    first.finalize(long()).unwrap();
    let mut second = open();
    assert!(why(second.get(fake::RANK, "followed", long())).ends_with("PMIX_ERR_NOT_FOUND (-46)"));
    second.put("followed", "second", long()).unwrap();
    assert_eq!(second.get(fake::RANK, "followed", long()).unwrap(), "second");
}

#[test]
fn a_failure_to_join_is_final() {
    let session = session();
    let first = why(Pmix::with(Library::unreachable(), session, &fake_job, long()));
    assert_eq!(why(Pmix::with(Library::good(), session, &fake_job, long())), first);
}

#[test]
fn an_exit_waits_for_no_server_that_hangs() {
    let hanging = session();
    let mut pmix = Pmix::with(Library::hanging_in_finalize(), hanging, &fake_job, long()).unwrap();
    pmix.finalize(long()).unwrap();
    hanging.leave(short());
    let stuck = session();
    let mut pmix = Pmix::with(Library::hanging_in_both(), stuck, &fake_job, long()).unwrap();
    assert!(matches!(pmix.fence(short()), Err(StartError::Late { .. })));
    pmix.finalize(long()).unwrap();
    // The call would never end, if it called the library.
    stuck.leave(Deadline::after(Duration::from_secs(1 << 20)));
}

#[test]
fn a_call_that_panics_is_an_error_with_its_words() {
    let panicked = ask(long(), || -> u8 { panic!("no {}", "luck") });
    assert_eq!(panicked, Err(NoAnswer::Failed("no luck".into())));
}

#[test]
fn without_a_job_nothing_is_loaded() {
    let none = why(Pmix::open(&|_| None, long()));
    let found = "this process was started by a launcher with PMIx (no PMIX_NAMESPACE, no PMIX_RANK), but there is no job to join. ";
    assert!(none.starts_with(found), "{none}");
}

#[test]
fn a_library_that_the_user_names_is_the_only_one_that_is_tried() {
    let named = |file: &'static str| {
        let vars = move |name: &str| match name {
            "DECK_PMIX_LIBRARY" => Some(file.into()),
            "PMIX_NAMESPACE" => Some("slurm.pmix.7.0".into()),
            name => fake_job(name),
        };
        why(Pmix::open(&vars, long()))
    };
    let missing = named("/nowhere/libpmix.so.2");
    assert!(missing.contains("started by Slurm (PMIX_NAMESPACE=slurm.pmix.7.0, PMIX_RANK=2)"), "{missing}");
    assert!(
        missing.contains("DECK_PMIX_LIBRARY=/nowhere/libpmix.so.2 cannot be used: /nowhere/"),
        "{missing}"
    );
    let advice = "Install libpmix2, or say by DECK_PMIX_LIBRARY where libpmix.so.2 lies, or start the program by `srun --mpi=pmi2`";
    assert!(missing.ends_with(advice), "{missing}");
    let other = named("libc.so.6");
    assert!(other.contains("libc.so.6 is not PMIx: it has no PMIx_Init"), "{other}");
}

#[test]
fn the_launchers_variables_say_where_its_library_may_lie() {
    let vars = |name: &str| match name {
        "PMIX_PREFIX" | "OPAL_PREFIX" => Some("/opt/mpi".into()),
        "OMPI_LIBDIR_LOC" => Some("/opt/mpi/libs".into()),
        "PRTE_PREFIX" => Some("relative".into()),
        _ => None,
    };
    let expected = [
        "/opt/mpi/lib/libpmix.so.2",
        "/opt/mpi/lib/openmpi/libpmix.so.2",
        "/opt/mpi/lib64/libpmix.so.2",
        "/opt/mpi/lib64/openmpi/libpmix.so.2",
        "/opt/mpi/libs/libpmix.so.2",
        "/opt/mpi/libs/openmpi/libpmix.so.2",
    ];
    assert_eq!(find::places(&vars), expected.map(PathBuf::from));
    assert_eq!(find::places(&|_| None), Vec::<PathBuf>::new());
}

#[test]
fn the_launchers_mappings_say_which_library_it_has() {
    let folder = std::env::temp_dir().join(format!("udeck-pmix-maps-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("libpmix.so.2.6.2");
    std::fs::write(&file, "").unwrap();
    let maps = format!(
        "00400000-00401000 r--p 00000000 fd:00 1 /usr/bin/prterun\n7f00-7f01 rw-p 00000000 00:00 0 [heap]\n\
         7f01-7f02 r-xp 00000000 fd:00 2 /gone/libpmix.so.2\n7f02-7f03 r-xp 00000000 fd:00 2 {}\n",
        file.display()
    );
    assert_eq!(find::mapped(&maps), Some(file));
    let _ = std::fs::remove_dir_all(&folder);
    assert_eq!(find::mapped(&maps), None);
}

#[test]
fn the_launcher_is_told_by_its_variables() {
    let by = |set: &[(&str, &str)]| {
        let vars =
            |name: &str| set.iter().find(|(set, _)| *set == name).map(|(_, value)| (*value).to_owned());
        find::launcher(&vars)
    };
    let allocation = ("SLURM_JOB_ID", "1");
    assert_eq!(by(&[allocation, ("PMIX_NAMESPACE", "slurm.pmix.1.0")]), "Slurm");
    assert_eq!(
        by(&[allocation, ("PMIX_NAMESPACE", "1564475393"), ("OMPI_COMM_WORLD_SIZE", "2")]),
        "Open MPI"
    );
    assert_eq!(by(&[("PMIX_NAMESPACE", "prterun-vm-15655@1"), ("PRTE_LAUNCHED", "1")]), "PRRTE");
    assert_eq!(by(&[("PMIX_NAMESPACE", "prte-dvm-3@1")]), "PRRTE");
    assert_eq!(by(&[("PMIX_NAMESPACE", "other")]), "a launcher with PMIx");
}
