//! Runs: this program again, as a process of its own. So each variant begins alike, SPDK's
//! environment is set up once in each process, and what the kernel counts for a process is the
//! variant's.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde::Deserialize;

use super::matrix::{LoadPoint, Matrix, Variant};
use crate::bench::{Counters, Summary};
use crate::error::{Context, Error, Kind, Result};
use crate::host::affinity;
use crate::host::child::{die_with_us, signal};
use crate::units::format_size;

/// What a run gave: the parts of the JSON of `local` and `bench` that a comparison uses.
#[derive(Debug, Deserialize)]
pub struct Output {
    /// Its figures.
    pub summary: Summary,
    /// What was counted.
    pub counters: Option<Counters>,
    config: Config,
}

#[derive(Debug, Deserialize)]
struct Config {
    arena: Option<String>,
}

impl Output {
    /// The memory in words.
    pub fn arena(&self) -> Option<String> {
        self.config.arena.clone()
    }
}

/// How one run differs from the next.
#[derive(Debug, Clone, Copy)]
pub struct RunOf<'a> {
    /// The variant.
    pub variant: &'a Variant,
    /// The load.
    pub load: LoadPoint,
    /// Seconds measured, and before.
    pub seconds: (f64, f64),
    /// `off`, `on` or `traced`.
    pub counters: &'a str,
}

/// Starts runs of a matrix.
pub struct Children<'a> {
    /// This program.
    pub program: PathBuf,
    /// What is compared.
    pub matrix: &'a Matrix,
    /// Where servers listen; its port may be 0 for TCP.
    pub listen: String,
    /// Becomes true when the user wants to stop.
    pub stop: &'a AtomicBool,
    /// Folder for what runs say on standard error.
    pub logs: PathBuf,
}

/// Time that a run may take beyond what it measures: to start, to map memory, to end.
const GRACE: Duration = Duration::from_secs(90);

impl Children<'_> {
    /// One run.
    ///
    /// # Errors
    ///
    /// `Interrupted` as [`Kind::Busy`] once `stop` is set; what the run said if it failed.
    pub fn run(&self, run: RunOf<'_>) -> Result<Output> {
        let text = match self.matrix.fabric.as_str() {
            "local" => self.local(&run)?,
            _ => self.served(&run)?,
        };
        serde_json::from_str(&text).map_err(|e| {
            Error::new(Kind::Data, "the result of a run is not what this program writes")
                .caused_by(e)
        })
    }

    fn local(&self, run: &RunOf<'_>) -> Result<String> {
        let mut command = self.command("local");
        self.storage(&mut command, run, true);
        self.load(&mut command, run);
        self.finish(command, run, "local")
    }

    fn served(&self, run: &RunOf<'_>) -> Result<String> {
        let matrix = self.matrix;
        let mut command = self.command("serve");
        self.storage(&mut command, run, false);
        let slot = u64::from(run.load.io_size).next_multiple_of(4096);
        // A worker's depth on its drives: all that the clients can ask of it at once.
        let depth = (run.load.depth as usize * matrix.connections)
            .div_ceil(run.variant.switches.workers())
            .clamp(1, 1024);
        command.args(["--raw", "--insecure", "--fabric", &matrix.fabric]);
        command.args(["--listen", &self.listen, "--slot-size", &format_size(slot)]);
        command.args(["--depth", &depth.to_string()]);
        command.args(["--credits", &run.load.depth.max(1).to_string()]);
        let (mut child, log) = self.spawn(command, "serve")?;
        let stdout = child.stdout.take().expect("piped");
        let server = Running { child, log };
        let line = self.first_line(stdout, &server)?;
        let Some(address) = line.trim().strip_prefix("listening on ") else {
            return Err(server.failed("serve"));
        };
        let mut command = self.command("bench");
        command.args(["--raw", "--connect", address]);
        command.args(["--connections", &matrix.connections.to_string()]);
        command.args(["--observe", &server.child.id().to_string()]);
        if !matrix.client_cores.is_empty() {
            command.args(["--threads", &matrix.client_cores.len().to_string()]);
            command.args(["--cores", &list(&matrix.client_cores)]);
        }
        self.load(&mut command, run);
        let text = self.finish(command, run, "bench")?;
        server.stop()?;
        Ok(text)
    }

    /// The line that a server prints once it listens; empty where it ended before.
    fn first_line(&self, stdout: ChildStdout, server: &Running) -> Result<String> {
        let (send, receive) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let mut line = String::new();
            let read = BufReader::new(stdout).read_line(&mut line).map(|_| line);
            // Nobody listens any more where the run was given up.
            drop(send.send(read));
        });
        let give_up = Instant::now() + GRACE;
        loop {
            match receive.recv_timeout(Duration::from_millis(20)) {
                Ok(line) => return line.context(|| "cannot read what the server says".into()),
                Err(_) if self.stop.load(Ordering::Relaxed) => return Err(stopped()),
                Err(_) if Instant::now() > give_up => return Err(server.failed("serve")),
                Err(_) => {}
            }
        }
    }

    fn command(&self, name: &str) -> Command {
        let mut command = Command::new(&self.program);
        command.arg(name);
        command
    }

    fn storage(&self, command: &mut Command, run: &RunOf<'_>, local: bool) {
        command.args(run.variant.switches.flags(local));
        for device in &self.matrix.devices {
            command.args(["--device", device]);
        }
        let cores = &self.matrix.cores[..run.variant.switches.workers()];
        command.args(["--cores", &list(cores)]);
    }

    fn load(&self, command: &mut Command, run: &RunOf<'_>) {
        let matrix = self.matrix;
        command.args(["--io-size", &run.load.io_size.to_string()]);
        command.args(["--depth", &run.load.depth.to_string()]);
        command.args(["--duration", &run.seconds.0.to_string()]);
        command.args(["--warmup", &run.seconds.1.to_string()]);
        command.args(["--rounds", "1", "--seed", &matrix.seed.to_string()]);
        command.args(["--counters", run.counters, "--json", "-"]);
        if let Some(rate) = run.load.rate {
            command.args(["--rate", &rate.to_string()]);
        }
    }

    fn spawn(&self, mut command: Command, name: &str) -> Result<(Child, PathBuf)> {
        let log = self.logs.join(format!("{name}.log"));
        let file = File::create(&log).context(|| format!("cannot write {}", log.display()))?;
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(file);
        die_with_us(&mut command);
        let child =
            command.spawn().context(|| format!("cannot start {} again", self.program.display()))?;
        Ok((child, log))
    }

    /// Starts what ends by itself, and gives what it wrote.
    fn finish(&self, command: Command, run: &RunOf<'_>, name: &str) -> Result<String> {
        let (mut child, log) = self.spawn(command, name)?;
        let mut stdout = child.stdout.take().expect("piped");
        let reader = std::thread::spawn(move || {
            let mut text = String::new();
            stdout.read_to_string(&mut text).map(|_| text)
        });
        let mut running = Running { child, log };
        let limit = Duration::from_secs_f64(run.seconds.0 + run.seconds.1) + GRACE;
        let give_up = Instant::now() + limit;
        let status = loop {
            let ended = running.child.try_wait().context(|| "cannot wait for a run".into())?;
            if let Some(status) = ended {
                break status;
            }
            if self.stop.load(Ordering::Relaxed) {
                return Err(stopped());
            }
            if Instant::now() > give_up {
                let what = format!("a run of {name} did not end within {limit:?}");
                return Err(Error::new(Kind::Device, what)
                    .remedy(format!("see what it said: {}", running.log.display())));
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        let text = reader
            .join()
            .expect("a thread that reads a pipe does not panic")
            .context(|| "cannot read a run's result".into())?;
        match status.success() {
            true => Ok(text),
            false if self.stop.load(Ordering::Relaxed) => Err(stopped()),
            false => Err(running.failed(name)),
        }
    }
}

/// The error of a comparison that the user ended.
pub fn stopped() -> Error {
    Error::new(Kind::Busy, "stopped; finished rounds are kept")
        .remedy("run the same command again to go on with it")
}

fn list(cores: &[usize]) -> String {
    cores.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

/// CPUs for the workers and for the client: as they were asked for, or chosen so that they share
/// none where there are enough.
pub fn choose_cores(
    workers: Option<&str>,
    client: Option<&str>,
    has_client: bool,
) -> Result<(Vec<usize>, Vec<usize>)> {
    let client = client.map(affinity::parse_list).transpose()?;
    if let Some(list) = workers {
        return Ok((affinity::parse_list(list)?, client.unwrap_or_default()));
    }
    let mut all = affinity::choose(affinity::allowed()?.len())?;
    let taken = |cpu: &usize| client.as_ref().is_some_and(|client| client.contains(cpu));
    all.retain(|cpu| !taken(cpu));
    if has_client && client.is_none() && all.len() > 1 {
        // CPU 0 comes last, and is the client's.
        let own = all.split_off(all.len() - 1);
        return Ok((all, own));
    }
    Ok((all, client.unwrap_or_default()))
}

/// A process that ends when this is dropped.
struct Running {
    child: Child,
    log: PathBuf,
}

impl Running {
    /// Asks it to stop, and waits.
    fn stop(mut self) -> Result<()> {
        signal(&self.child, libc::SIGTERM).context(|| "cannot stop the server".into())?;
        let give_up = Instant::now() + GRACE;
        while Instant::now() < give_up {
            match self.child.try_wait().context(|| "cannot wait for the server".into())? {
                Some(status) if status.success() => return Ok(()),
                Some(_) => return Err(self.failed("serve")),
                None => std::thread::sleep(Duration::from_millis(10)),
            }
        }
        Err(Error::new(Kind::Device, format!("the server did not stop within {GRACE:?}")))
    }

    /// The error of a run that has failed: the end of what it said.
    fn failed(&self, name: &str) -> Error {
        let said = last_lines(&self.log);
        Error::new(Kind::Device, format!("a run of millrace {name} failed:\n{said}"))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            // It may end in between; there is nothing to be done about a process that is gone.
            drop(self.child.kill());
            drop(self.child.wait());
        }
    }
}

fn last_lines(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(6)..].join("\n")
}
