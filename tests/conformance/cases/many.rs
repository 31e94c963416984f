//! Many VIs on one completion queue, and many connections one after another.

use std::mem::replace;

use udeck_via::{ArenaUse, Cq, CqHandle, Error, Nic, Receive, Source, Vi, ViAttributes};

use crate::kit::{Door, Pair, nics, soon, until};
use crate::{Case, Fabric};

const TOPIC: &str = "many";
pub const CASES: &[Case] = &[
    case!(every_vi_of_many_is_served),
    case!(a_flood_is_served_fairly),
    case!(a_quiet_vi_is_heard_in_a_flood),
    case!(a_rhythm_starves_nobody),
    case!(who_looks_at_one_hears_of_the_others),
    case!(connections_leave_nothing_behind),
];

/// VIs that receive lent, on one completion queue per side; the context of each is its index.
struct Crowd {
    senders: Vec<Vi>,
    receivers: Vec<Vi>,
    _send_cq: Cq,
    cq: Cq,
}

impl Crowd {
    fn new(fabric: &dyn Fabric, count: usize) -> Self {
        let (a, b) = nics(fabric);
        let (send_cq, cq) = (Cq::new(&a).unwrap(), Cq::new(&b).unwrap());
        let door = Door::new(&b, b"crowd");
        let (mut senders, mut receivers) = (Vec::new(), Vec::new());
        for context in 0..count as u64 {
            let (left, right) = join(&door, (&a, &send_cq.handle()), (&b, &cq.handle()), context);
            senders.push(left);
            receivers.push(right);
        }
        Crowd { senders, receivers, _send_cq: send_cq, cq }
    }

    /// Sends on one VI until its connection is full. Returns whether there was room: over a network, news of room may
    /// come late.
    fn fill(&mut self, at: usize) -> bool {
        let mut sent = false;
        while self.senders[at].send_inline(None, b"", b"flood").is_ok() {
            sent = true;
        }
        sent
    }

    /// Polls once, and takes one message from the named VI, if it has one.
    fn poll_one(&mut self) -> Option<usize> {
        let entry = self.cq.poll()?;
        let at = entry.context as usize;
        let is_message = entry.source == Source::Receive && self.receivers[at].arrival().unwrap().is_some();
        is_message.then_some(at)
    }

    /// Waits for news and takes one message from the named VI.
    fn serve_one(&mut self) -> usize {
        until("a message", || {
            let entry = self.cq.wait(soon(), || false).expect("there are messages");
            let at = entry.context as usize;
            let is_message =
                entry.source == Source::Receive && self.receivers[at].arrival().unwrap().is_some();
            is_message.then_some(at)
        })
    }
}

fn join(door: &Door, (a, a_cq): (&Nic, &CqHandle), (b, b_cq): (&Nic, &CqHandle), context: u64) -> (Vi, Vi) {
    let vi = |nic: &Nic| {
        let attributes = ViAttributes { receive: Receive::Lent, context, ..ViAttributes::new(nic.ptag()) };
        Vi::new(nic, attributes).unwrap()
    };
    let (mut left, mut right) = (vi(a), vi(b));
    std::thread::scope(|scope| {
        let asker = scope.spawn(|| left.connect(&door.address, a_cq, a_cq, b"", soon()));
        let request = door.listener.wait(soon()).unwrap();
        request.accept(&mut right, b_cq, b_cq, b"").unwrap();
        asker.join().unwrap().unwrap();
    });
    (left, right)
}

/// While a completion queue says that one VI alone is active, nothing else has news: no other VI, no event, no wake-up.
fn who_looks_at_one_hears_of_the_others(fabric: &dyn Fabric) {
    let mut crowd = Crowd::new(fabric, 2);
    let handle = crowd.cq.handle();
    let active = |crowd: &mut Crowd| {
        while crowd.cq.poll().is_some() {}
        for _ in 0..100 {
            until("room", || crowd.senders[0].send_inline(None, b"", b"first").ok());
            assert_eq!(crowd.serve_one(), 0);
            while crowd.cq.poll().is_some() {}
        }
        let sole = crowd.cq.sole_active();
        let sole = sole.map(|entry| (entry.context, entry.source));
        assert!(sole.is_none_or(|sole| sole == (0, Source::Receive)), "{sole:?}");
    };
    active(&mut crowd);
    handle.post_event(77).unwrap();
    assert_eq!(crowd.cq.sole_active(), None, "there is an event");
    active(&mut crowd);
    handle.wake();
    assert_eq!(crowd.cq.sole_active(), None, "there is a wake-up");
    active(&mut crowd);
    until("room", || crowd.senders[1].send_inline(None, b"", b"second").ok());
    // Over a network the message is under way.
    until("the other one is heard of", || crowd.cq.sole_active().is_none().then_some(()));
    assert_eq!(crowd.serve_one(), 1);
}

fn every_vi_of_many_is_served(fabric: &dyn Fabric) {
    const VIS: usize = 200;
    const EACH: u32 = 20;
    let mut crowd = Crowd::new(fabric, VIS);
    let Crowd { senders, receivers, cq, .. } = &mut crowd;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..EACH {
                // Each round has another order.
                for step in 0..VIS {
                    let at = (step * 7 + round as usize * 31) % VIS;
                    until("room", || senders[at].send_inline(Some(round), b"", &[at as u8]).ok());
                }
            }
        });
        let mut next = [0; VIS];
        let mut left = VIS * EACH as usize;
        while left > 0 {
            let entry = cq.wait(soon(), || false).expect("messages are still to come");
            let at = entry.context as usize;
            while let Some(arrival) = receivers[at].arrival().unwrap() {
                assert_eq!(arrival.immediate, Some(next[at]), "in order on each VI");
                next[at] += 1;
                left -= 1;
            }
        }
        assert_eq!(next, [EACH; VIS]);
    });
}

/// Every VI has a message at each poll of the completion queue; the test counts which VIs it names.
fn a_flood_is_served_fairly(fabric: &dyn Fabric) {
    for vis in [2, 5, 12, 40] {
        let mut crowd = Crowd::new(fabric, vis);
        (0..vis).for_each(|at| _ = crowd.fill(at));
        let (mut served, mut dry) = (vec![0usize; vis], Vec::new());
        for _ in 0..vis * 1000 {
            let at = until("a message", || {
                dry.retain(|&at| !crowd.fill(at));
                crowd.poll_one()
            });
            served[at] += 1;
            if !dry.contains(&at) {
                dry.push(at);
            }
        }
        let (least, most) = (served.iter().min().unwrap(), served.iter().max().unwrap());
        assert!(*most <= 8 * least, "of {vis} VIs the most and the least served: {most} and {least}");
    }
}

fn a_quiet_vi_is_heard_in_a_flood(fabric: &dyn Fabric) {
    const VIS: usize = 30;
    let mut crowd = Crowd::new(fabric, VIS);
    let quiet = VIS - 1;
    (0..quiet).for_each(|at| _ = crowd.fill(at));
    for _ in 0..20 {
        crowd.senders[quiet].send_inline(None, b"", b"hear me").unwrap();
        let mut others = 0;
        loop {
            let at = crowd.serve_one();
            if at == quiet {
                break;
            }
            crowd.fill(at);
            others += 1;
            assert!(others < VIS * 200, "served {others} messages of others meanwhile");
        }
    }
}

/// One VI has a message at every fourth poll, a flood goes on beside it, and a third VI has one message. However the
/// rhythm coincides with the turns of the completion queue, that message is found; also when the first VI, which was
/// busy last, has nothing more (the last phase, which never comes up).
fn a_rhythm_starves_nobody(fabric: &dyn Fabric) {
    const VIS: usize = 12;
    const PERIOD: usize = 4;
    let (rhythmic, quiet, flooding) = (0, 1, VIS - 1);
    for phase in 0..=PERIOD {
        let mut crowd = Crowd::new(fabric, VIS);
        for at in 0..VIS {
            crowd.senders[at].send_inline(None, b"", b"first").unwrap();
        }
        (0..VIS).for_each(|_| _ = crowd.serve_one());
        (0..4 * VIS).for_each(|_| _ = crowd.poll_one());
        crowd.fill(flooding);
        crowd.senders[rhythmic].send_inline(None, b"", b"busy last").unwrap();
        until("it is busy", || (crowd.poll_one()? == rhythmic).then_some(()));
        crowd.senders[quiet].send_inline(None, b"", b"hear me").unwrap();
        let mut others = 0;
        for looks in 0.. {
            if looks % PERIOD == phase {
                // Over a network, word of the room may come late: then this beat is missed.
                let sent = crowd.senders[rhythmic].send_inline(None, b"", b"tick");
                assert!(matches!(sent, Ok(()) | Err(Error::Full { .. })), "{sent:?}");
            }
            let at = crowd.poll_one();
            if at == Some(quiet) {
                break;
            }
            crowd.fill(flooding);
            others += usize::from(at.is_some());
            assert!(others < VIS * 40, "phase {phase}: served {others} messages of others meanwhile");
        }
    }
}

/// Number of connections that come and go. `DECK_CONNECTIONS` sets another number, for an emulated machine.
fn connections() -> usize {
    std::env::var("DECK_CONNECTIONS").ok().and_then(|number| number.parse().ok()).unwrap_or(10_000)
}
/// KiB by which the process may have grown after the connections: less than 1 KiB for each.
const GROWTH: usize = 4096;

/// Kernel resources of the process: open descriptors, mappings, threads, and KiB of memory.
struct Holdings {
    descriptors: usize,
    mappings: usize,
    threads: usize,
    memory: usize,
}

impl Holdings {
    fn now() -> Self {
        let read = |name| std::fs::read_to_string(name).expect("a mounted /proc");
        let status = read("/proc/self/status");
        let number = |name: &str| {
            let line = status.lines().find(|line| line.starts_with(name)).expect("the kernel says so");
            line.split_whitespace().nth(1).and_then(|number| number.parse().ok()).expect("a number")
        };
        Holdings {
            descriptors: std::fs::read_dir("/proc/self/fd").expect("a mounted /proc").count(),
            mappings: read("/proc/self/maps").lines().count(),
            threads: number("Threads:"),
            memory: number("VmRSS:"),
        }
    }
}

fn connections_leave_nothing_behind(fabric: &dyn Fabric) {
    let mut pair = Pair::lent(fabric);
    let round = |pair: &mut Pair| {
        let block = pair.a.block(&[1; 5000]);
        pair.a.vi.hand_off(None, b"", block).unwrap();
        drop(pair.b.arrival());
        pair.a.vi.send_inline(None, b"", b"unread").unwrap();
        for _ in 0..2 {
            let unread = pair.a.block(&[2; 5000]);
            pair.a.vi.hand_off(None, b"", unread).unwrap();
        }
        pair.a.vi.disconnect();
        pair.b.vi.disconnect();
        pair.a.drain_news();
        pair.b.drain_news();
        pair.a.nic.reclaim();
        pair.connect();
    };
    // The first rounds let allocators and caches settle.
    (0..500).for_each(|_| round(&mut pair));
    let before = Holdings::now();
    let used = usage(&pair);
    let mut memory = before.memory;
    let mut grows = || {
        (0..connections()).for_each(|_| round(&mut pair));
        await_resources(&pair, &used, &before);
        let then = replace(&mut memory, Holdings::now().memory);
        memory > then + GROWTH
    };
    // Heaps of new threads may settle late, which happens once. Memory that connections leave behind grows each time.
    let always = (0..3).all(|_| grows());
    assert!(!always, "{} KiB before and {memory} KiB after", before.memory);
}

/// Memory in use of the two ends' arenas.
fn usage(pair: &Pair) -> [ArenaUse; 2] {
    [&pair.a, &pair.b].map(|end| end.nic.outbox().usage())
}

/// Waits until arenas are used as before, and descriptors, threads and mappings are back.
fn await_resources(pair: &Pair, used: &[ArenaUse; 2], before: &Holdings) {
    // Over a network, news of the last connections may come late: also of those before the count, so that fewer blocks
    // may be in use now.
    until("all blocks are back", || {
        pair.a.nic.reclaim();
        pair.b.nic.reclaim();
        let is_back = |(now, then): (&ArenaUse, &ArenaUse)| {
            now.used <= then.used && now.blocks <= then.blocks && now.committed == then.committed
        };
        usage(pair).iter().zip(used).all(is_back).then_some(())
    });
    // Threads that end give their stacks back a moment later.
    until("descriptors, threads and mappings are back", || {
        let now = Holdings::now();
        let mapped = now.mappings <= before.mappings + 16;
        (now.descriptors <= before.descriptors && now.threads <= before.threads && mapped).then_some(())
    });
}
