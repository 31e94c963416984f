//! Ranks of the tests over several hosts that talk to their launcher only; and, as an agent, an intruder at the root's
//! port.

use std::{
    env,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    process::{Command, ExitCode},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use udeck_boot::{Client, Event};

/// Deadline of every call: it only ends a hang.
const LONG: Duration = Duration::from_secs(120);

fn main() -> ExitCode {
    let mut arguments = env::args().skip(1);
    let part = arguments.next().unwrap_or_default();
    if part == "intrude" {
        return intrude(arguments.collect());
    }
    let client = Client::from_env().expect("a launcher that speaks").expect("a launcher");
    match part.as_str() {
        "meet" => meet(&client),
        "wait" => wait(&client, arguments.next().and_then(|count| count.parse().ok()).unwrap_or(usize::MAX)),
        "rounds" => rounds(&client),
        other => panic!("no part is named {other:?}"),
    }
    ExitCode::SUCCESS
}

fn soon() -> Instant {
    Instant::now() + LONG
}

/// Prints a line in one write, so that ranks' lines stay whole.
fn say(line: &str) {
    std::io::stdout().write_all(format!("{line}\n").as_bytes()).expect("somebody reads");
}

/// Each rank finds all others, and can listen at the address that it was given.
fn meet(client: &Client) {
    let welcome = client.welcome();
    let (me, size) = (welcome.rank, welcome.size);
    let address = welcome.address.expect("an address in a job over several hosts");
    let listener = TcpListener::bind((address, 0)).expect("an address of this host");
    let at = listener.local_addr().expect("it listens").to_string();
    client.register(&format!("box{me}"), at.as_bytes(), soon()).expect("a free name");
    client.put(&format!("key{me}"), &me.to_le_bytes(), soon()).expect("a key is stored");
    client.fence(soon()).expect("all come");
    // A rank checks all others in a small job, and some in a large one.
    for step in (0..).map(|power| 1 << power).take_while(|step| *step < size) {
        let peer = (me + step) % size;
        let found = client.lookup(&format!("box{peer}"), false, soon()).expect("it was registered");
        assert_eq!(found.owner, peer);
        let stored = client.get(&format!("key{peer}"), false, soon()).expect("it was stored");
        assert_eq!(stored, peer.to_le_bytes());
        let address = String::from_utf8(found.value).expect("an address");
        TcpStream::connect(&address).unwrap_or_else(|error| panic!("rank {peer} at {address}: {error}"));
    }
    let host = welcome.placement.host_of(me).expect("a host");
    // No rank leaves before all have connected.
    client.fence(soon()).expect("all come");
    client.finish(soon()).expect("goodbye");
    say(&format!("rank {me} of {size} on host {host} of {} at {address}", welcome.placement.hosts().len()));
}

/// Prints each lost rank, until `count` ranks have been lost.
fn wait(client: &Client, count: usize) {
    let me = client.welcome().rank;
    let (sender, news) = mpsc::channel();
    client.on_event(Box::new(move |event| {
        let _ = sender.send(event.clone());
    }));
    client.fence(soon()).expect("all come");
    say(&format!("rank {me} pid {} ready", std::process::id()));
    let mut lost = 0;
    while lost < count {
        match news.recv_timeout(LONG).expect("news") {
            Event::RankLost { rank, how } => {
                say(&format!("rank {me} lost {rank}: {how}"));
                lost += 1;
            }
            Event::LauncherGone => return,
            _ => {}
        }
    }
    client.finish(soon()).expect("goodbye");
}

/// Meets the other ranks repeatedly for some seconds.
fn rounds(client: &Client) {
    let me = client.welcome().rank;
    client.fence(soon()).expect("all come");
    say(&format!("rank {me} pid {} ready", std::process::id()));
    for _ in 0..40 {
        client.fence(soon()).expect("all come");
        thread::sleep(Duration::from_millis(50));
    }
    client.finish(soon()).expect("goodbye");
    say(&format!("rank {me} is through"));
}

/// `intrude COMMAND.. --node ADDRESS/..`: disturbs the listener at this address, and then runs the command.
fn intrude(command: Vec<String>) -> ExitCode {
    let argument = command.last().expect("a node's argument");
    let root = argument.split('/').next().expect("an address");
    let mut hello = *b"uDECKrun\0\0\0\0\0\0\0\0 a nonce of thirty-two bytes ...";
    let connect = || TcpStream::connect(root).expect("the root listens");
    // The connections stay open over the start. They send bytes of no protocol, half a record, nothing, and a
    // false proof.
    let mut held: Vec<TcpStream> = (0..8).map(|_| connect()).collect();
    held[0].write_all(&[0xFF; 4096]).expect("a fresh connection takes it");
    held[1].write_all(&hello[..20]).expect("a fresh connection takes it");
    let mut asked = connect();
    asked.write_all(&hello).expect("a fresh connection takes it");
    let mut answer = [0; 48 + 20];
    asked.read_exact(&mut answer[..48]).expect("the root tells its version");
    hello[8..12].copy_from_slice(&answer[8..12]);
    let mut liar = connect();
    liar.write_all(&hello).expect("a fresh connection takes it");
    liar.read_exact(&mut answer).expect("the root answers a right hello");
    liar.write_all(&answer[48..]).expect("a fresh connection takes it");
    assert_eq!(liar.read(&mut [0]).unwrap_or(0), 0, "the root talks to a liar");
    let status = Command::new(&command[0]).args(&command[1..]).status().expect("the command runs");
    drop(held);
    ExitCode::from(status.code().unwrap_or(1) as u8)
}
