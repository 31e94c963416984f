//! Cost of many connections on which little happens.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use udeck_session::nap;
use udeck_via::{Cq, Nic, Receive, Vi, ViAttributes};

use super::{check, listen, nic, options, pair, soon};
use crate::device;

/// Directory of the NIC's helper thread in /proc.
fn helper(nic: &Nic) -> PathBuf {
    let address = String::from_utf8(nic.attributes().address.clone()).unwrap();
    let name = format!("deck-tcp-{}", address.rsplit(':').next().unwrap());
    let is_it =
        |task: &PathBuf| std::fs::read_to_string(task.join("comm")).is_ok_and(|found| found.trim() == name);
    let deadline = soon();
    loop {
        let tasks = std::fs::read_dir("/proc/self/task").expect("a mounted /proc");
        // The list may leave out some threads while others end.
        if let Some(helper) = tasks.map(|task| task.unwrap().path()).find(is_it) {
            return helper;
        }
        assert!(!deadline.passed(), "no thread is named {name}");
    }
}

/// How often the helper has gone to sleep.
fn sleeps(helper: &Path) -> usize {
    let status = std::fs::read_to_string(helper.join("status")).expect("it runs");
    let line = status.lines().find(|line| line.starts_with("voluntary_ctxt_switches")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// An idle helper checks every two seconds for hosts that may have died. It sleeps in between, whether or not the
/// owner sleeps too.
#[test]
fn an_idle_helper_sleeps() {
    let (a, b) = (nic(), nic());
    let (mut left, mut right) = pair(&a, &b);
    check(&mut left, &mut right);
    while left.cq.poll().is_some() {}
    std::thread::sleep(Duration::from_millis(100));
    let helpers = [&a, &b].map(helper);
    let before = helpers.each_ref().map(|helper| sleeps(helper));
    assert!(left.cq.wait(udeck_via::Deadline::after(Duration::from_secs(3)), || false).is_none());
    for (helper, before) in helpers.iter().zip(before) {
        let slept = sleeps(helper) - before;
        assert!(slept <= 10, "{slept} times in three seconds");
    }
    check(&mut left, &mut right);
}

/// The helper's naps grow: otherwise 16 ranks that wait for each other on two processors would wake helpers 16,000
/// times a second.
#[test]
fn a_helper_leaves_an_owner_that_looks_alone() {
    let (a, b) = (nic(), nic());
    let (mut left, mut right) = pair(&a, &b);
    check(&mut left, &mut right);
    let helper = helper(&a);
    // The helper has served the arrival, and the owner has polled since.
    std::thread::sleep(Duration::from_millis(100));
    while left.cq.poll().is_some() {}
    let (told, deadline) = (sleeps(&helper), soon());
    right.vi.send_inline(Some(9), b"", b"a first arrival").unwrap();
    while sleeps(&helper) == told {
        assert!(!deadline.passed(), "the helper is not told of the first arrival");
    }
    let (before, start) = (sleeps(&helper), Instant::now());
    while start.elapsed() < Duration::from_millis(500) {
        left.cq.poll();
        std::thread::yield_now();
    }
    let (slept, looked) = (sleeps(&helper) - before, start.elapsed());
    let most = 16 + 2 * looked.as_millis() / nap::LONGEST.as_millis();
    assert!(slept as u128 <= most, "{slept} naps in {looked:?}");
}

/// The helper may have taken the processor from the thread at work there, and would wait for it in a circle.
#[test]
fn a_helper_that_meets_somebody_at_work_sleeps() {
    let device = device::open(&options()).unwrap();
    let (a, b) = (Nic::new(device.clone()), nic());
    let (mut left, mut right) = pair(&a, &b);
    check(&mut left, &mut right);
    let [link] = &device.network().links()[..] else { panic!("one link") };
    let helper = helper(&a);
    link.with(|_, _| {
        let (before, deadline) = (sleeps(&helper), soon());
        right.vi.send_inline(Some(9), b"", b"meanwhile").unwrap();
        while sleeps(&helper) < before + 20 {
            assert!(!deadline.passed(), "it does not sleep");
            std::thread::sleep(Duration::from_millis(5));
        }
    });
    assert_eq!(left.arrival().unwrap().immediate, Some(9));
}

/// The queue hears a thousand VIs, or as many as there are descriptors for.
#[test]
fn a_thousand_vis_on_one_queue_are_heard() {
    const VIS: usize = 1000;
    udeck_sys::make_room_for_descriptors(3000).unwrap();
    let (a, b) = (nic(), nic());
    let (listener, to) = listen(&b);
    let (a_cq, mut b_cq) = (Cq::new(&a).unwrap(), Cq::new(&b).unwrap());
    let (mut senders, mut receivers, asker) = (Vec::new(), Vec::new(), a_cq.handle());
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| {
            for _ in 0..VIS {
                let mut vi = Vi::new(&a, ViAttributes::new(a.ptag())).unwrap();
                vi.connect(&to, &asker, &asker, b"", soon()).unwrap();
                senders.push(vi);
            }
        });
        for context in 0..VIS as u64 {
            let attributes = ViAttributes { receive: Receive::Lent, context, ..ViAttributes::new(b.ptag()) };
            let (mut vi, cq) = (Vi::new(&b, attributes).unwrap(), b_cq.handle());
            listener.wait(soon()).unwrap().accept(&mut vi, &cq, &cq, b"").unwrap();
            receivers.push(vi);
        }
        asking.join().unwrap();
    });
    // The senders post in another order than they were made in.
    (0..VIS).for_each(|at| senders[at * 7 % VIS].send_inline(Some(1), b"", b"here").unwrap());
    let mut heard = 0;
    while heard < VIS {
        let entry = b_cq.wait(soon(), || false).expect("there are more");
        while receivers[entry.context as usize].arrival().unwrap().is_some() {
            heard += 1;
        }
    }
}
