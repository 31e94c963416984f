//! A guest: QEMU with a kernel and our files only, and its console.

use super::packages::Cache;
use crate::{child, test_counts::TestCounts};
use std::{
    fs,
    io::{self, BufRead, BufReader, Write},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

/// Lines by which the guest's scripts report and ask (`tests/rdma/init`).
const DONE: &str = "rdma: done";
const CUT: &str = "rdma: cut the link";
const JOIN: &str = "rdma: join the link";

/// A guest's clock counts its instructions: 2^2 ns for each. However slow or busy this machine is, to the
/// guest it is the same machine, and no time limit in it is nearer.
const CLOCK: &str = "shift=2";

/// Options for the kernel: a quick start, little output, and pages cleared only for programs.
const KERNEL_OPTIONS: &str = "console=ttyS0 panic=-1 quiet loglevel=4 apparmor=0 audit=0 nokaslr mitigations=off \
     cryptomgr.notests no_timer_check clocksource=acpi_pm random.trust_cpu=on init_on_alloc=0";
/// All features that QEMU emulates, except those that make the kernel and the C library copy by `rep movsb`: emulated, it copies byte by byte.
const PROCESSOR: &str = "max,-erms,-fsrm";
/// Least memory of a guest, in MiB; more files need more.
const MEMORY_MIB: u64 = 1280;

/// Time limit for an answer of QEMU's.
const MONITOR_LIMIT: Duration = Duration::from_secs(20);

/// A guest to run.
pub struct Guest<'a> {
    pub cache: &'a Cache,
    /// Archive of its files.
    pub image: &'a Path,
    /// Name of the guest in the output.
    pub name: &'static str,
    /// The script of `tests/rdma` that the guest runs.
    pub part: &'static str,
    /// More settings for the script, which finds them in `/proc/cmdline`: `name=value`.
    pub settings: String,
    pub link: Option<Cable>,
    pub limit: Duration,
}

/// An end of a cable between two guests.
pub struct Cable {
    /// Folder of the sockets that are the cable, and of the monitor's.
    pub folder: PathBuf,
    /// 0 or 1.
    pub end: u32,
}

/// Result of a guest.
#[derive(Debug)]
pub struct GuestResult {
    pub name: &'static str,
    pub part: &'static str,
    pub tally: TestCounts,
    /// The reason why the guest did not come to its end.
    pub problem: Option<String>,
    pub took: Duration,
    pub processor_time: Duration,
}

impl Guest<'_> {
    /// Runs the guest to its end, or stops it at its limit. Each line of its console is shown behind the guest's name.
    pub fn run(self) -> GuestResult {
        let (begun, time_before) = (Instant::now(), child::processor_time());
        let mut console = Console::default();
        let ended = self.qemu().and_then(|command| {
            // Allows some seconds more than `timeout` gives QEMU.
            let run = child::run(command, self.limit + Duration::from_secs(10), |line| {
                println!("[{}] {}", self.name, line.trim_end());
                if let (Some(wish), Some(link)) = (console.line(line), &self.link)
                    && let Err(error) = link.set(wish)
                {
                    println!("[{}] the link does not obey: {error}", self.name);
                }
            });
            run.map_err(|error| format!("cannot start QEMU: {error}"))
        });
        let (limit, took) = (self.limit.as_secs(), begun.elapsed());
        let about = |what: String| Some(format!("{what}; the last that it said: {:?}", console.last));
        let problem = match ended {
            _ if console.done => None,
            Ok(_) if took >= self.limit => about(format!("not done after {limit} s, and ended")),
            Ok(None) => about("the guest stopped before its script had ended".into()),
            Ok(Some(how)) => about(format!("QEMU: {how}; the script had not ended")),
            Err(problem) => Some(problem),
        };
        let processor_time = child::processor_time() - time_before;
        GuestResult { name: self.name, part: self.part, tally: console.tally, problem, took, processor_time }
    }

    fn qemu(&self) -> Result<Command, String> {
        let root = &self.cache.root;
        let qemu = root.command("bin/qemu-system-x86_64")?;
        // `timeout` ends QEMU even if this process was killed. It runs in the terminal's group, so that Ctrl-C reaches it.
        let mut command = Command::new("nice");
        // A guest does not depend on its speed, and would take processor time from tests that wait for each other.
        command.args(["-n", "5", "timeout"]);
        command.args(["--foreground", "--signal=KILL", &self.limit.as_secs().to_string()]);
        command.arg(qemu.get_program()).args(qemu.get_args());
        for folder in ["share/qemu", "share/seabios"] {
            command.arg("-L").arg(root.find(folder)?);
        }
        command.env("QEMU_MODULE_DIR", root.find("lib/x86_64-linux-gnu/qemu")?);
        // Emulated even where KVM could be had: the same everywhere, and one processor is slow enough for any race.
        command.args(["-accel", "tcg", "-cpu", PROCESSOR, "-smp", "1"]);
        // While a whole guest waits, its time leaps to the next event. Two joined guests do without that: they have to agree how long a wait is.
        let waiting = if self.link.is_some() { "on" } else { "off" };
        command.args(["-icount", &format!("{CLOCK},sleep={waiting}")]);
        let files =
            self.image.metadata().map_err(|error| format!("{}: {error}", self.image.display()))?.len();
        command.args(["-m", &memory_mib(files).to_string(), "-nodefaults", "-no-user-config", "-no-reboot"]);
        command.args(["-display", "none", "-serial", "stdio"]);
        command.arg("-kernel").arg(self.cache.kernel()).arg("-initrd").arg(self.image);
        command
            .arg("-append")
            .arg(format!("{KERNEL_OPTIONS} name={} part={} {}", self.name, self.part, self.settings));
        if let Some(link) = &self.link {
            command.args(link.options());
        }
        Ok(command)
    }
}

impl Cable {
    /// Makes both ends, in a folder of their own.
    pub fn both(folder: &Path) -> io::Result<[Cable; 2]> {
        // A socket of an earlier run would be in the way.
        let _ = fs::remove_dir_all(folder);
        fs::create_dir_all(folder)?;
        Ok([0, 1].map(|end| Cable { folder: folder.into(), end }))
    }

    /// QEMU's options for this end. Frames are datagrams over Unix sockets.
    fn options(&self) -> Vec<String> {
        let socket = |end| self.folder.join(format!("end{end}")).display().to_string();
        let (end, other) = (self.end, 1 - self.end);
        vec![
            "-netdev".into(),
            format!(
                "dgram,id=link,local.type=unix,local.path={},remote.type=unix,remote.path={}",
                socket(end),
                socket(other)
            ),
            "-device".into(),
            // The card has no boot program.
            format!("virtio-net-pci,netdev=link,mac=52:54:00:99:00:0{end},romfile="),
            "-qmp".into(),
            format!("unix:{},server=on,wait=off", self.monitor(end).display()),
        ]
    }

    fn monitor(&self, end: u32) -> PathBuf {
        self.folder.join(format!("monitor{end}"))
    }

    /// Pulls the cable at the other end, or puts it in again. This end gets no frames any more, and no notice of that. Blocks until
    /// QEMU says that it is done.
    fn set(&self, wish: Wish) -> io::Result<()> {
        let stream = UnixStream::connect(self.monitor(1 - self.end))?;
        stream.set_read_timeout(Some(MONITOR_LIMIT))?;
        let up = wish == Wish::Join;
        let command = r#"{"execute": "set_link", "arguments": {"name": "link", "up": UP}}"#;
        // The first command makes the monitor listen.
        let commands = [r#"{"execute": "qmp_capabilities"}"#.into(), command.replace("UP", &up.to_string())];
        (&stream).write_all(commands.join("\n").as_bytes())?;
        let mut answers = 0;
        for line in BufReader::new(stream).lines() {
            let line = line?;
            if line.starts_with(r#"{"error""#) {
                return Err(io::Error::other(line));
            }
            answers += usize::from(line.starts_with(r#"{"return""#));
            if answers == commands.len() {
                return Ok(());
            }
        }
        Err(io::ErrorKind::UnexpectedEof.into())
    }
}

/// Requests of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wish {
    Cut,
    Join,
}

/// Results read from a console so far.
#[derive(Debug, Default)]
struct Console {
    tally: TestCounts,
    done: bool,
    last: String,
}

impl Console {
    /// Takes the next line; a serial console ends each with a carriage return.
    fn line(&mut self, line: &str) -> Option<Wish> {
        let line = line.trim_end();
        self.tally.line(line);
        self.done |= line == DONE;
        if !line.is_empty() {
            line.clone_into(&mut self.last);
        }
        match line {
            CUT => Some(Wish::Cut),
            JOIN => Some(Wish::Join),
            _ => None,
        }
    }
}

/// Memory for a guest, in MiB. Its files lie in it twice while they are unpacked, and the unpacked ones may take half of the memory beside the
/// archive.
fn memory_mib(files: u64) -> u64 {
    MEMORY_MIB.max((files >> 20) * 7 / 2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_counts::Counts;

    /// With 1280 MiB, 404 MiB of files were "Initramfs unpacking failed: write error".
    #[test]
    fn more_files_need_more_memory() {
        let room = |memory: u64, files: u64| (memory - files - 64) / 2;
        for files in [64, 300, 404, 600] {
            let memory = memory_mib(files << 20);
            assert!(memory >= MEMORY_MIB && room(memory, files) > files + files / 20, "{files}: {memory}");
        }
    }

    #[test]
    fn a_console_is_counted_and_asks_for_what_it_wants() {
        let mut console = Console::default();
        let mut wishes = Vec::new();
        let text = "     Running jobs (jobs-0)\r\ntest a ... ok\r\ntest b ... FAILED\r\nrdma: cut the link\r\nrdma: join the link\r\n\
                    test result: FAILED. 1 passed; 1 failed; 0 ignored\r\n";
        for line in text.lines() {
            wishes.extend(console.line(line));
        }
        assert_eq!((wishes, console.done), (vec![Wish::Cut, Wish::Join], false));
        assert_eq!(console.tally.total(), Counts { passed: 1, failed: 1, skipped: 0 });
        let failed: Vec<_> = console.tally.failed.iter().map(ToString::to_string).collect();
        assert_eq!(failed, ["jobs: b"]);
        console.line("rdma: done\r");
        assert!(console.done);
    }

    #[test]
    fn words_of_a_program_are_no_wish() {
        let mut console = Console::default();
        assert_eq!(console.line("it said rdma: cut the link"), None);
        console.line("rdma: done?");
        assert!(!console.done);
    }

    #[test]
    fn the_ends_of_a_link_name_each_other() {
        let options = |end| Cable { folder: "/l".into(), end }.options()[1].clone();
        assert!(options(0).contains("local.path=/l/end0,remote.type=unix,remote.path=/l/end1"));
        assert!(options(1).contains("local.path=/l/end1,remote.type=unix,remote.path=/l/end0"));
    }
}
