use std::{fs::File, io::Write};

use rustix::pipe::pipe;

use super::*;

const TAGGED: OutputForm = OutputForm { tagged: true, joined: false, watched: [false; 2] };
const PLAIN: OutputForm = OutputForm { tagged: false, joined: false, watched: [true, false] };

fn source(rank: u32, pipe: OwnedFd, form: &OutputForm) -> OutputPipe {
    OutputPipe::new(rank, pipe, Sink::Stdout, form, false)
}

fn tagged(reads: &[&[u8]]) -> (Vec<u8>, Vec<u8>) {
    let mut source = source(7, pipe().unwrap().0, &TAGGED);
    let mut out = Vec::new();
    for read in reads {
        source.split(read, &mut out, Instant::now());
    }
    let kept = source.line.clone();
    (out, kept)
}

#[test]
fn lines_are_tagged_whole_however_they_arrive() {
    assert_eq!(tagged(&[b"a\nb", b"c\n\nd"]), (b"[7] a\n[7] bc\n[7] \n".to_vec(), b"d".to_vec()));
    assert_eq!(tagged(&[b"\xff\xfe\n"]), (b"[7] \xff\xfe\n".to_vec(), vec![]));
}

#[test]
fn a_long_line_is_passed_on_without_a_break_and_without_being_kept() {
    let long = vec![b'x'; 2 * MAX_LINE + 5];
    let (out, rest) = tagged(&[&long, b"yz", b"\nnext\n"]);
    assert_eq!(out, [b"[7] ", &long[..], b"yz\n[7] next\n"].concat());
    assert!(rest.is_empty());
    let mut source = source(7, pipe().unwrap().0, &TAGGED);
    let mut out = Vec::new();
    source.split(&long, &mut out, Instant::now());
    source.finish(&mut out);
    assert!(out.ends_with(b"x\n"), "the end of the pipe is the end of the line");
}

#[test]
fn others_wait_for_the_end_of_a_long_line_and_break_it_when_its_rest_does_not_come() {
    let ((a, to_a), (b, to_b)) = (pipe().unwrap(), pipe().unwrap());
    let (mut to_a, mut to_b) = (File::from(to_a), File::from(to_b));
    let sources = vec![source(0, a, &TAGGED), source(1, b, &TAGGED)];
    let mut gather = Gather::new(sources);
    let (mut scratch, mut now) = (vec![0; MAX_LINE], Instant::now());
    let mut step = |gather: &mut Gather, index, now| {
        let text = gather.read(index, &mut scratch, now).1;
        gather.written(Sink::Stdout, text.len());
        text
    };
    to_a.write_all(&[b'a'; MAX_LINE]).unwrap();
    to_b.write_all(b"b\n").unwrap();
    assert_eq!(step(&mut gather, 0, now).len(), b"[0] ".len() + MAX_LINE);
    assert_eq!(gather.open(now).map(|(index, _)| index).collect::<Vec<_>>(), [0]);
    assert!(step(&mut gather, 1, now).is_empty(), "it is not the other's turn");
    to_a.write_all(b"dot").unwrap();
    assert_eq!(step(&mut gather, 0, now), b"dot");
    now = gather.due(now).unwrap();
    assert_eq!(gather.open(now).count(), 2);
    assert_eq!(step(&mut gather, 1, now), b"\n[1] b\n");
    to_a.write_all(b"end\nnext\n").unwrap();
    assert_eq!(step(&mut gather, 0, now), b"[0]+ end\n[0] next\n");
    assert!(gather.due(now).is_none());
    drop(to_a);
    assert!(step(&mut gather, 0, now).is_empty());
    assert_eq!(gather.open(now).map(|(index, _)| index).collect::<Vec<_>>(), [1], "the other one has ended");
    gather.tidy();
    assert_eq!(gather.open(now).map(|(index, _)| index).collect::<Vec<_>>(), [0]);
}

/// Two ranks whose text is passed on at once.
struct Two {
    gather: Gather,
    writers: [Option<File>; 2],
    now: Instant,
}

impl Two {
    fn new(form: &OutputForm) -> Two {
        let ((a, to_a), (b, to_b)) = (pipe().unwrap(), pipe().unwrap());
        let gather = Gather::new(vec![source(0, a, form), source(1, b, form)]);
        let writers = [to_a, to_b].map(|writer| Some(File::from(writer)));
        Two { gather, writers, now: Instant::now() }
    }

    /// Returns the text that is passed on when this rank writes `text`, or, with `None`, when it ends.
    fn after(&mut self, rank: usize, text: Option<&str>) -> String {
        match text {
            Some(text) => self.writers[rank].as_mut().unwrap().write_all(text.as_bytes()).unwrap(),
            None => drop(self.writers[rank].take()),
        }
        let text = self.gather.read(rank, &mut [0; 100], self.now).1;
        self.passed(text)
    }

    /// Returns the text that is passed on when this time has passed.
    fn later(&mut self, time: Duration) -> String {
        self.now += time;
        let texts = self.gather.overdue(self.now);
        self.passed(texts.into_iter().flat_map(|(_, text)| text).collect())
    }

    fn passed(&mut self, text: Vec<u8>) -> String {
        self.gather.written(Sink::Stdout, text.len());
        String::from_utf8(text).unwrap()
    }
}

#[test]
fn plain_lines_are_whole_and_no_byte_is_added_to_the_last() {
    let mut two = Two::new(&PLAIN);
    assert_eq!(two.after(0, Some("Error: ")), "");
    assert_eq!(two.after(1, Some("Error: ")), "");
    assert_eq!(two.after(0, Some("a\nrest")), "Error: a\n");
    assert_eq!(two.after(0, None), "rest");
    assert_eq!(two.after(1, Some("b\nlast")), "\nError: b\n", "not in the line of one that has ended");
    assert_eq!(two.after(1, None), "last");
}

#[test]
fn an_unfinished_line_is_kept_for_a_while_where_somebody_may_wait_for_it() {
    let mut two = Two::new(&PLAIN);
    assert_eq!(two.after(0, Some("name? ")), "");
    assert_eq!(two.gather.due(two.now), Some(two.now + HOLD));
    assert_eq!(two.later(HOLD / 2), "");
    assert_eq!(two.later(HOLD / 2), "name? ");
    assert_eq!(two.after(1, Some("b\n")), "\nb\n", "nobody waits for its rest");
    for _ in 0..3 {
        assert_eq!(two.after(0, Some(".")), "");
        assert_eq!(two.later(HOLD), ".");
        assert_eq!(two.after(1, Some("c\n")), "\nc\n", "nor for the next dot");
    }
    assert_eq!(two.after(0, Some("\n")), "", "the line has its end already");
    assert_eq!(two.after(0, Some("dots")), "");
    assert_eq!(two.later(HOLD), "dots");
    assert_eq!(two.after(0, Some("..\n")), "..\n");
    let mut in_file = Two::new(&OutputForm { watched: [false; 2], ..PLAIN });
    assert_eq!(in_file.after(0, Some("12")), "");
    assert_eq!((in_file.gather.due(in_file.now), in_file.later(10 * HOLD)), (None, String::new()));
    assert_eq!(in_file.after(0, Some("34\n")), "1234\n");
}

#[test]
fn a_progress_bar_is_passed_on_and_keeps_nobody_waiting() {
    for (form, a, again, b) in [(PLAIN, "", "", ""), (TAGGED, "[0] ", "[0]+ ", "[1] ")] {
        let mut two = Two::new(&form);
        assert_eq!(two.after(0, Some("10%\r")), "", "the line's end may come");
        assert_eq!(two.after(0, Some("20%\r30%\r4")), format!("{a}10%\r20%\r30%\r"));
        assert_eq!(two.after(0, Some("0%\r")), "");
        assert_eq!(two.after(1, Some("b\r\n")), format!("\n{b}b\r\n"));
        assert_eq!(two.after(0, Some("50%\r")), format!("{again}40%\r"));
        assert_eq!(two.after(0, Some("\n")), "50%\r\n");
    }
}

#[test]
fn what_is_kept_of_a_rank_that_has_ended_is_passed_on() {
    let mut two = Two::new(&TAGGED);
    two.writers[0].as_mut().unwrap().write_all(b"last").unwrap();
    assert!(two.gather.has_unread_of(&[0]) && !two.gather.has_unread_of(&[1]));
    assert_eq!(two.after(0, Some(" words")), "");
    assert!(!two.gather.has_unread_of(&[0, 1]));
    assert!(two.gather.kept_of(&[1], two.now).is_empty());
    assert_eq!(two.gather.kept_of(&[0], two.now), [(Sink::Stdout, b"[0] last words".to_vec())]);
}

#[test]
fn each_source_has_its_turn() {
    let (pipes, writers): (Vec<_>, Vec<_>) = (0..3).map(|_| pipe().unwrap()).unzip();
    let sources = (0..).zip(pipes).map(|(rank, pipe)| source(rank, pipe, &TAGGED));
    let mut gather = Gather::new(sources.collect());
    writers.iter().for_each(|writer| assert_eq!(rustix::io::write(writer, b"x\n"), Ok(2)));
    let now = Instant::now();
    let order = |gather: &Gather| gather.open(now).map(|(index, _)| index).collect::<Vec<_>>();
    assert_eq!(order(&gather), [0, 1, 2]);
    for (index, then) in [(0, [1, 2, 0]), (2, [0, 1, 2]), (1, [2, 0, 1])] {
        gather.read(index, &mut [0; 10], now);
        assert_eq!(order(&gather), then);
    }
}

#[test]
fn what_is_not_written_is_not_read() {
    let (pipe, writer) = pipe().unwrap();
    File::from(writer).write_all(&[b'x'; 100]).unwrap();
    let mut gather = Gather::new(vec![OutputPipe::new(0, pipe, Sink::Stderr, &PLAIN, false)]);
    let now = Instant::now();
    gather.unwritten[Sink::Stderr as usize] = WINDOW;
    assert_eq!((gather.open(now).count(), gather.close_silent(now).len()), (0, 0));
    gather.written(Sink::Stderr, 1);
    assert_eq!(gather.open(now).count(), 1);
    gather.unread(Sink::Stderr);
    assert_eq!(gather.open(now).count(), 0);
    gather.tidy();
    assert!(gather.is_empty());
}
