//! One server, and several clients that share its receives.
//!
//! Without a shared receive queue a server posts receives for each client that may send: a thousand clients of sixteen messages are sixteen
//! thousand buffers. Here sixteen serve all, because each message takes the oldest one, from whichever client it comes. And the server waits
//! for two event dispatchers at once, by a CNO: one for work, and one for clients that come and go.
//!
//! ```text
//! srq_server [TRANSPORT [CLIENTS [QUESTIONS]]]        # shm 4 1000
//! ```
//!
//! Clients are threads here, with an adapter each. In a process of their own they would open it by `Ia::open`, and connect to
//! `ServiceAddress::host`.

use std::collections::HashMap;
use std::error::Error;
use std::time::Duration;

use udeck::NicOptions;
use udeck::via::Deadline;
use udeck::via::auth::Keys;
use udeck_dat::{
    Cno, Connection, Ep, EpAttributes, EpId, Evd, Event, Ia, Lmr, Operation, Psp, Pz, ServiceAddress, Srq,
    Status,
};

type Outcome<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

/// Buffers of the server, for all clients together.
const RECEIVES: usize = 16;
/// A question is a number, and so is its answer.
const LEN: usize = size_of::<u64>();

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(60))
}

fn answer_to(question: u64) -> u64 {
    question.wrapping_mul(question)
}

fn adapter(transport: &str, secret: [u8; 32]) -> Outcome<Ia> {
    let nic = udeck::open_nic(&format!("{transport}0"), &NicOptions::new(Keys::from(secret)))?;
    Ok(Ia::on_nic(&nic)?)
}

struct Server {
    pz: Pz,
    /// Work that is over.
    work: Evd,
    /// Clients that come and go.
    connections: Evd,
    cno: Cno,
    srq: Srq,
    psp: Psp,
    clients: HashMap<EpId, Ep>,
    answered: usize,
}

impl Server {
    fn new(ia: &Ia) -> Outcome<Server> {
        let (work, connections, cno) = (Evd::new(ia, 0), Evd::new(ia, 0), Cno::new(ia));
        work.set_cno(Some(&cno))?;
        connections.set_cno(Some(&cno))?;
        let pz = Pz::new(ia);
        let srq = Srq::new(&pz, RECEIVES)?;
        for _ in 0..RECEIVES {
            srq.post_receive(Lmr::new(&pz, LEN)?, 0).map_err(|(error, _)| error)?;
        }
        let psp = Psp::any(&connections)?;
        Ok(Server { pz, work, connections, cno, srq, psp, clients: HashMap::new(), answered: 0 })
    }

    /// Serves until this many clients have come and gone.
    fn serve(&mut self, clients: usize) -> Outcome {
        let mut gone = 0;
        while gone < clients {
            // The CNO names a dispatcher once, so all of its events are taken.
            if self.cno.wait(soon())? == self.connections.id() {
                while let Some(event) = self.connections.dequeue() {
                    gone += usize::from(self.connection(event)?);
                }
            } else {
                self.work_all()?;
            }
        }
        self.work_all() // work that was under way when the last client went
    }

    fn work_all(&mut self) -> Outcome {
        while let Some(event) = self.work.dequeue() {
            self.work(event)?;
        }
        Ok(())
    }

    /// Handles an event of a connection. Returns whether a client has gone.
    fn connection(&mut self, event: Event) -> Outcome<bool> {
        match event {
            Event::Request(request) => {
                let (evds, attributes) = (&self.connections, EpAttributes::default());
                let ep = Ep::with_srq(&self.pz, &self.work, &self.work, evds, &self.srq, attributes)?;
                ep.accept(request, b"").map_err(|(error, _)| error)?;
                self.clients.insert(ep.id(), ep);
                Ok(false)
            }
            Event::Connection { what: Connection::Established, .. } => Ok(false),
            Event::Connection { ep, .. } => Ok(self.clients.remove(&ep).is_some()),
            other => Err(format!("{other:?} at the dispatcher for connections").into()),
        }
    }

    /// Handles a completion: a question's memory takes the answer, and then the next question of any client.
    fn work(&mut self, event: Event) -> Outcome {
        let Event::Dto(done) = event else {
            return Err(format!("{event:?} at the dispatcher for work").into());
        };
        let is_question = done.operation == Operation::Receive && done.status == Status::Success;
        let client = self.clients.get(&done.ep).filter(|_| is_question);
        let mut memory = done.iov.into_lmr();
        if let Some(client) = client {
            let question = u64::from_le_bytes(memory[..].try_into()?);
            memory.copy_from_slice(&answer_to(question).to_le_bytes());
            self.answered += 1;
            client.post_send(memory, 0).map_err(|(error, _)| error)?;
        } else {
            // The answer was sent, or the client has gone.
            self.srq.post_receive(memory, 0).map_err(|(error, _)| error)?;
        }
        Ok(())
    }
}

/// Asks, and checks each answer.
fn ask(ia: &Ia, server: &ServiceAddress, number: u64, questions: u64) -> Outcome {
    let (pz, evd) = (Pz::new(ia), Evd::new(ia, 0));
    let ep = Ep::new(&pz, &evd, &evd, &evd, EpAttributes::default())?;
    ep.connect(server, Duration::from_secs(60), b"")?;
    match evd.wait(soon())? {
        Event::Connection { what: Connection::Established, .. } => {}
        other => return Err(format!("client {number}: no connection: {other:?}").into()),
    }
    let (mut question, mut answer) = (Lmr::new(&pz, LEN)?, Lmr::new(&pz, LEN)?);
    for nth in 0..questions {
        let asked = number << 32 | nth;
        question.copy_from_slice(&asked.to_le_bytes());
        ep.post_receive(answer, 0).map_err(|(error, _)| error)?;
        ep.post_send(question, 0).map_err(|(error, _)| error)?;
        // Both come back, in the order in which they are over.
        let mut back = [None, None];
        while back.iter().any(Option::is_none) {
            let Event::Dto(done) = evd.wait(soon())? else { return Err("the server has gone".into()) };
            let is_answer = done.operation == Operation::Receive;
            back[usize::from(is_answer)] = Some(done.done().map_err(|done| format!("{done:?}"))?);
        }
        let [sent, received] = back;
        (question, answer) = (sent.ok_or("sent")?, received.ok_or("received")?);
        if answer[..] != answer_to(asked).to_le_bytes() {
            return Err(format!("client {number}: the answer to {asked} is {:?}", &answer[..]).into());
        }
    }
    Ok(ep.disconnect(true)?)
}

/// Runs the server and its clients. Returns how many questions were answered, and how many receives are posted in the end.
pub fn run(transport: &str, clients: usize, questions: u64) -> Outcome<(usize, usize)> {
    let secret = [7; 32];
    let mut server = Server::new(&adapter(transport, secret)?)?;
    let address = server.psp.address();
    let asked: Vec<Outcome> = std::thread::scope(|scope| {
        let address = &address;
        let client = |number| ask(&adapter(transport, secret)?, address, number, questions);
        let asking: Vec<_> = (0..clients).map(|number| scope.spawn(move || client(number as u64))).collect();
        let served = server.serve(clients);
        let mut outcomes: Vec<Outcome> =
            asking.into_iter().map(|thread| thread.join().map_err(|_| "a client has panicked")?).collect();
        outcomes.push(served);
        outcomes
    });
    asked.into_iter().collect::<Outcome>()?;
    Ok((server.answered, server.srq.posted()))
}

fn main() -> Outcome {
    let mut arguments = std::env::args().skip(1);
    let transport = arguments.next().unwrap_or_else(|| "shm".into());
    let mut number = |default: u64| arguments.next().map_or(Ok(default), |number| number.parse());
    let (clients, questions) = (number(4)?, number(1000)?);
    let (answered, receives) = run(&transport, clients as usize, questions)?;
    println!("{answered} questions of {clients} clients over {transport}; {receives} receives served all");
    Ok(())
}
