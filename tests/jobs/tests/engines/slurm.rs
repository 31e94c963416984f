//! The tests' own Slurm, run by `slurm.sh`: started when the first case needs it, and used by all.

use std::{
    io::{BufRead, BufReader, Read},
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::{Mutex, MutexGuard, PoisonError},
};

/// Number of attempts: another process may take a port between its choice and its use.
const ATTEMPTS: usize = 3;

static SLURM: Mutex<Option<Slurm>> = Mutex::new(None);

struct Slurm {
    /// Value for `SLURM_CONF`.
    configuration: String,
    /// Input of the script, which waits for its end.
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

/// Value of `SLURM_CONF` for `srun`. Starts Slurm if it is not running: the script reports success or failure within a
/// minute.
///
/// # Panics
/// Panics if Slurm cannot be started.
pub fn configuration() -> String {
    let mut slurm = lock();
    if slurm.is_none() {
        *slurm = Some(started());
    }
    slurm.as_ref().expect("it was started").configuration.clone()
}

/// Ends Slurm, if it is running, and waits for its end.
pub fn stop() {
    if let Some(Slurm { input, mut output, .. }) = lock().take() {
        drop(input);
        // The script ends when nothing is left.
        let _ = output.read_to_end(&mut Vec::new());
    }
}

fn lock() -> MutexGuard<'static, Option<Slurm>> {
    SLURM.lock().unwrap_or_else(PoisonError::into_inner)
}

fn started() -> Slurm {
    let mut problems = Vec::new();
    for _ in 0..ATTEMPTS {
        match try_start() {
            Ok(slurm) => return slurm,
            Err(said) => problems.push(said),
        }
    }
    panic!("Slurm does not start:\n{}", problems.join("\n"));
}

fn try_start() -> Result<Slurm, String> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("engines/slurm.sh");
    // The script is no child of this process: if all children are killed, the script survives, and ends Slurm.
    let mut child: Child = Command::new("setsid")
        .args(["--fork", "bash"])
        .arg(script)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| format!("setsid: {error}"))?;
    let (input, output) = (child.stdin.take(), child.stdout.take());
    let (input, output) = (input.expect("it is piped"), output.expect("it is piped"));
    let mut output = BufReader::new(output);
    // Setsid itself ends at once.
    let _ = child.wait();
    let mut line = String::new();
    output.read_line(&mut line).map_err(|error| error.to_string())?;
    match line.trim_end().strip_prefix("ready ") {
        Some(configuration) => Ok(Slurm { configuration: configuration.to_owned(), input, output }),
        None => {
            let _ = output.read_to_string(&mut line);
            Err(line)
        }
    }
}
