//! What system tests share: the built program as a server, files of seeded data, and skips that
//! are seen.

#![allow(dead_code, unused_imports, reason = "each test program uses a part")]

pub mod reader;
mod skip;

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

#[allow(unused_imports, reason = "each test program uses a part")]
pub use skip::*;

/// The built program.
pub fn millrace() -> Command {
    Command::new(env!("CARGO_BIN_EXE_millrace"))
}

/// Runs `command` to its end, at most `limit`.
pub fn run_within(mut command: Command, limit: Duration) -> Output {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let drain = |mut from: Box<dyn Read + Send>| {
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            from.read_to_end(&mut bytes).expect("a pipe can be read");
            bytes
        })
    };
    let stdout = drain(Box::new(child.stdout.take().expect("piped")));
    let stderr = drain(Box::new(child.stderr.take().expect("piped")));
    let give_up = Instant::now() + limit;
    let status = loop {
        if let Some(status) = child.try_wait().expect("a child can be waited for") {
            break status;
        }
        if Instant::now() > give_up {
            child.kill().expect("a child can be killed");
            child.wait().expect("a killed child ends");
            panic!("{command:?} did not end within {limit:?}");
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    let join = |thread: std::thread::JoinHandle<Vec<u8>>| thread.join().expect("no panic");
    Output { status, stdout: join(stdout), stderr: join(stderr) }
}

/// Runs the program with these arguments; gives exit code, standard output and standard error.
pub fn run(args: &[&str]) -> (i32, String, String) {
    let mut command = millrace();
    command.args(args);
    let output = run_within(command, Duration::from_secs(60));
    (
        output.status.code().unwrap_or(-1),
        String::from_utf8_lossy(&output.stdout).into_owned(),
        String::from_utf8_lossy(&output.stderr).into_owned(),
    )
}

/// A running `millrace serve`; killed when it is dropped.
pub struct Server {
    child: Child,
    /// Its address, as `bench --connect` takes it.
    pub address: String,
    log: PathBuf,
    _dir: tempfile::TempDir,
}

impl Server {
    /// Starts `millrace serve --raw --listen 127.0.0.1:0 ARGS...` and waits until it listens.
    pub fn start(args: &[&str]) -> Self {
        Self::start_command(millrace(), args)
    }

    /// Starts `millrace serve --listen 127.0.0.1:0 ARGS...` for the objects of a store.
    pub fn start_store(args: &[&str]) -> Self {
        Self::start_serve(millrace(), args)
    }

    /// Serves ranges with a command that is prepared already (environment, limits, wrapper).
    pub fn start_command(command: Command, args: &[&str]) -> Self {
        Self::start_serve(command, &[&["--raw"], args].concat())
    }

    fn start_serve(mut command: Command, args: &[&str]) -> Self {
        let dir = tempfile::tempdir().expect("a folder for the log");
        let log = dir.path().join("log");
        command.arg("serve");
        if !args.contains(&"--listen") {
            command.args(["--listen", "127.0.0.1:0"]);
        }
        let mut child = command
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(std::fs::File::create(&log).expect("a log file"))
            .spawn()
            .expect("the server starts");
        let mut line = String::new();
        let stdout = child.stdout.take().expect("piped");
        BufReader::new(stdout).read_line(&mut line).expect("a pipe can be read");
        let Some(address) = line.trim().strip_prefix("listening on ") else {
            let status = child.wait().expect("it has ended");
            let log = std::fs::read_to_string(&log).unwrap_or_default();
            panic!("the server did not start: {status}, {line:?}, {log}");
        };
        Self { child, address: address.to_owned(), log, _dir: dir }
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it has logged so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).expect("the log is there")
    }

    /// Thread ids of its workers.
    pub fn worker_tids(&self) -> Vec<u32> {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.pid())).expect("it runs");
        tasks
            .filter_map(|task| {
                let path = task.ok()?.path();
                let name = std::fs::read_to_string(path.join("comm")).ok()?;
                let tid = path.file_name()?.to_str()?.parse().ok()?;
                name.starts_with("worker-").then_some(tid)
            })
            .collect()
    }

    /// Resident memory in bytes.
    pub fn resident(&self) -> u64 {
        let status =
            std::fs::read_to_string(format!("/proc/{}/status", self.pid())).expect("it runs");
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("a VmRSS line");
        line.split_whitespace().nth(1).expect("a figure").parse::<u64>().expect("a number") << 10
    }

    /// Asks it to stop, waits, and gives exit code and log.
    pub fn stop(mut self) -> (i32, String) {
        signal(self.pid(), "TERM");
        let give_up = Instant::now() + Duration::from_secs(30);
        while Instant::now() < give_up {
            if let Some(status) = self.child.try_wait().expect("it can be waited for") {
                return (status.code().unwrap_or(-1), self.log());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("the server did not stop: {}", self.log());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have been stopped already.
        if self.child.try_wait().ok().flatten().is_none() {
            self.child.kill().expect("the server can be killed");
            self.child.wait().expect("a killed server ends");
        }
    }
}

/// Sends a signal to a process.
pub fn signal(pid: u32, name: &str) {
    let sent = Command::new("kill").args([&format!("-{name}"), &pid.to_string()]).status();
    assert!(sent.expect("kill can be run").success(), "signal {name} to {pid}");
}

/// `millrace bench --raw` on a server: exit code and, if it ended well, its JSON.
pub fn bench(address: &str, args: &[&str]) -> (i32, serde_json::Value, String) {
    let mut all = vec!["bench", "--raw", "--connect", address, "--json", "-"];
    all.extend(args);
    let (code, stdout, stderr) = run(&all);
    let json = serde_json::from_str(&stdout).unwrap_or(serde_json::Value::Null);
    (code, json, stderr)
}

/// Fills a file with `len` bytes that differ from block to block, by a fixed seed.
pub fn seeded_file(path: &Path, len: usize) -> Vec<u8> {
    let mut state = 0x243F_6A88_85A3_08D3u64;
    let mut bytes = Vec::with_capacity(len);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend(state.to_le_bytes());
    }
    bytes.truncate(len);
    std::fs::write(path, &bytes).expect("the file can be written");
    bytes
}

/// A folder on a disk filesystem (O_DIRECT works there), below the build's own.
pub fn disk_dir() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder in the target folder")
}

/// A folder in memory, where the kernel has O_DIRECT there (Linux 6.6 and later) and room; else as
/// [`disk_dir`]. For tests of many durable writes that are not about a loss of power.
pub fn fast_dir() -> tempfile::TempDir {
    use std::os::unix::fs::OpenOptionsExt;
    const O_DIRECT: i32 = 0o40000;
    let memory = tempfile::tempdir_in("/dev/shm").ok().filter(|dir| {
        let mut open = std::fs::OpenOptions::new();
        open.write(true).create(true).custom_flags(O_DIRECT);
        open.open(dir.path().join("probe")).is_ok()
    });
    memory.unwrap_or_else(disk_dir)
}

/// True where a program of this name can be run.
pub fn have(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
}
