//! What jobs run on: a loop device, servers, targets. Taken down when dropped.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// CPU of servers and targets.
pub const SERVER_CPU: &str = "1";
/// CPU of clients; the storage path alone runs on the server's.
pub const CLIENT_CPU: &str = "0";

/// Objects of 1 MiB that are put where objects are measured.
pub const OBJECTS: &str = "800";

/// Size of the loop device, and of drives in memory.
const SIZE: u64 = 1 << 30;

/// What a job runs on.
#[derive(Default)]
pub struct Stage {
    pub device: Option<PathBuf>,
    pub address: Option<String>,
    /// Transport id of SPDK's target.
    pub transport: Option<String>,
    children: Vec<Child>,
    scratch: Option<tempfile::TempDir>,
    /// Folder of a vfio-user controller.
    controller: Option<tempfile::TempDir>,
}

const NQN: &str = "nqn.2016-06.io.spdk:millrace";

impl Stage {
    /// A loop device on a file of random data on tmpfs.
    pub fn loop_device() -> Result<Self, String> {
        let scratch = tempfile::tempdir_in("/dev/shm").map_err(|e| format!("/dev/shm: {e}"))?;
        let image = scratch.path().join("image");
        output(
            Command::new("dd")
                .args(["if=/dev/urandom", "bs=1M", "status=none"])
                .args([format!("of={}", image.display()), format!("count={}", SIZE >> 20)]),
        )?;
        let device = output(Command::new("losetup").args(["--find", "--show"]).arg(&image))?;
        let mut stage = Self::default();
        stage.device = Some(PathBuf::from(device.trim()));
        stage.scratch = Some(scratch);
        Ok(stage)
    }

    /// An empty store on such a loop device, of slots so small that there are many headers.
    pub fn store() -> Result<Self, String> {
        let stage = Self::loop_device()?;
        let device = stage.device.as_ref().expect("just made");
        output(
            Command::new(env!("CARGO_BIN_EXE_millrace"))
                .args(["store", "create", "--object-size", "4KiB", "--hugepages", "none"])
                .arg("--device")
                .arg(device)
                .arg("--force")
                .arg(device),
        )?;
        Ok(stage)
    }

    /// A store of 1 MiB objects on such a loop device, filled.
    pub fn filled() -> Result<Self, String> {
        let stage = Self::loop_device()?;
        let device = stage.device.as_ref().expect("just made");
        let store = |flags: &[&str]| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_millrace"));
            command.arg("store").args(flags).arg("--device").arg(device);
            if flags[0] == "create" {
                command.arg("--force").arg(device);
            }
            output(&mut command)
        };
        store(&["create", "--object-size", "1MiB", "--hugepages", "none"])?;
        store(&["fill", "--count", OBJECTS, "--hugepages", "none"])?;
        Ok(stage)
    }

    /// Our server on the stage's loop device, in place of the one before.
    pub fn serve(&mut self, flags: &[&str]) -> Result<(), String> {
        for mut child in self.children.drain(..) {
            child.kill().and_then(|()| child.wait()).map_err(|e| format!("millrace serve: {e}"))?;
        }
        let mut command = Command::new(env!("CARGO_BIN_EXE_millrace"));
        command.args(["serve", "--listen", "127.0.0.1:0", "--cores", SERVER_CPU]).args(flags);
        command.arg("--device").arg(self.device.as_ref().expect("the stage has a device"));
        let (child, address) = started(command)?;
        self.children.push(child);
        self.address = Some(address);
        Ok(())
    }

    /// Our server on a drive in memory.
    pub fn millrace_mem() -> Result<Self, String> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_millrace"));
        command
            .args(["serve", "--raw", "--backend", "mem", "--device", "mem:256MiB"])
            // SPDK's target checks nothing either.
            .args(["--listen", "127.0.0.1:0", "--cores", SERVER_CPU, "--check", "none"]);
        let (child, address) = started(command)?;
        let mut stage = Self::default();
        stage.children.push(child);
        stage.address = Some(address);
        Ok(stage)
    }

    /// SPDK's NVMe/TCP target with a malloc bdev, beside what is there. It polls its core all the
    /// time, and so does ours: whichever is not measured is stopped meanwhile.
    pub fn with_spdk_tcp(mut self) -> Result<Self, String> {
        let address = "-f ipv4 -a 127.0.0.1 -s 4420";
        self.spdk_target("TCP", address)?;
        self.transport =
            Some(format!("trtype:TCP adrfam:IPv4 traddr:127.0.0.1 trsvcid:4420 subnqn:{NQN}"));
        Ok(self)
    }

    /// SPDK's target as an NVMe controller over vfio-user, with a malloc bdev.
    pub fn spdk_vfiouser() -> Result<Self, String> {
        let mut stage = Self::default();
        let scratch = tempfile::tempdir().map_err(|e| e.to_string())?;
        let folder = scratch.path().display().to_string();
        stage.controller = Some(scratch);
        stage.spdk_target("VFIOUSER", &format!("-a {folder} -s 0"))?;
        stage.transport = Some(format!("trtype:VFIOUSER traddr:{folder} subnqn:{NQN}"));
        Ok(stage)
    }

    fn spdk_target(&mut self, kind: &str, listener: &str) -> Result<(), String> {
        let scratch = tempfile::tempdir().map_err(|e| e.to_string())?;
        let socket = scratch.path().join("rpc.sock");
        let child = Command::new("nvmf_tgt")
            .args(["-m", &format!("[{SERVER_CPU}]"), "-s", "768"])
            // A killed target would leave its trace in /dev/shm and its memory in hugetlbfs.
            .args(["--num-trace-entries", "0", "--huge-unlink", "-r"])
            .arg(&socket)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|e| format!("nvmf_tgt: {e}"))?;
        self.children.push(child);
        let end = Instant::now() + Duration::from_secs(30);
        while !socket.exists() {
            if Instant::now() > end {
                return Err("nvmf_tgt opened no RPC socket within 30 s".into());
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        for call in [
            format!("nvmf_create_transport -t {kind}"),
            "bdev_malloc_create -b m0 256 512".to_owned(),
            format!("nvmf_create_subsystem {NQN} -a"),
            format!("nvmf_subsystem_add_ns {NQN} m0"),
            format!("nvmf_subsystem_add_listener {NQN} -t {kind} {listener}"),
        ] {
            output(Command::new("spdk-rpc").arg("-s").arg(&socket).args(call.split(' ')))?;
        }
        self.scratch = Some(scratch);
        Ok(())
    }

    /// An iperf3 server on the servers' core.
    pub fn with_iperf3(mut self) -> Result<Self, String> {
        let child = Command::new("iperf3")
            .args(["-s", "-B", "127.0.0.1", "-p", "5299", "-A", SERVER_CPU])
            .stdout(Stdio::null())
            .spawn()
            .map_err(|e| format!("iperf3: {e}"))?;
        self.children.push(child);
        std::thread::sleep(Duration::from_millis(300));
        Ok(self)
    }

    /// Lets only the server with this number run: a polling one takes its whole core.
    pub fn only(&self, number: usize) -> Result<(), String> {
        for (place, child) in self.children.iter().enumerate() {
            let signal = if place == number { "-CONT" } else { "-STOP" };
            output(Command::new("kill").args([signal, &child.id().to_string()]))?;
        }
        Ok(())
    }
}

/// Starts a `millrace serve` and waits for its address.
fn started(mut command: Command) -> Result<(Child, String), String> {
    let mut child = command
        .env("RUST_LOG", "warn")
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|e| format!("millrace serve: {e}"))?;
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("piped"))
        .read_line(&mut line)
        .map_err(|e| format!("millrace serve: {e}"))?;
    match line.trim().strip_prefix("listening on ") {
        Some(address) => Ok((child, address.to_owned())),
        None => Err("millrace serve did not start".into()),
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        for child in &mut self.children {
            if let Err(e) = child.kill().and_then(|()| child.wait().map(drop)) {
                eprintln!("# a server could not be ended: {e}");
            }
        }
        if let Some(device) = &self.device
            && let Err(text) = output(Command::new("losetup").arg("--detach").arg(device))
        {
            eprintln!("# {text}");
        }
    }
}

/// True where a program of this name can be run.
pub fn have(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir: PathBuf| Path::new(&dir).join(program).is_file())
}

/// Standard output of a command that must succeed.
pub fn output(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|e| format!("{command:?}: {e}"))?;
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(stdout);
    }
    // A failing load says the same thing once per command.
    let text = stdout + &String::from_utf8_lossy(&output.stderr);
    let end: Vec<_> = text.lines().rev().take(5).collect();
    let end = end.into_iter().rev().collect::<Vec<_>>().join("\n");
    Err(format!("{command:?}: {}: {end}", output.status))
}
