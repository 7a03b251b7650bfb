//! SPDK's own target with RAM drives behind vfio-user controllers: real NVMe controllers for the
//! driver, without hardware.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// A RAM drive of a target.
#[derive(Clone, Copy)]
pub struct Drive {
    pub blocks: u64,
    pub block_size: u32,
    /// Bytes of metadata at the end of each block.
    pub metadata: u32,
    pub trouble: Trouble,
}

/// What a drive can be made to do by its target.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Trouble {
    None,
    /// [`Target::hang`]: SPDK's error bdev lies on the RAM.
    Hangs,
    /// [`Target::delay`]: SPDK's delay bdev lies on the RAM, which can abort what it delays.
    Delays,
}

impl Drive {
    pub const fn new(block_size: u32) -> Self {
        // 16 MiB.
        Self {
            blocks: (16 << 20) / block_size as u64,
            block_size,
            metadata: 0,
            trouble: Trouble::None,
        }
    }
}

/// A running target, killed when it is dropped.
pub struct Target {
    child: Child,
    dir: tempfile::TempDir,
}

const BOUND: Duration = Duration::from_secs(30);

/// Hugepages of 2 MiB for the two targets and the arenas of a test; and as many as are to be had
/// for the suite, of which the tests before keep some.
const FREE_PAGES: u32 = 512;
const SUITE_PAGES: u32 = 1024;

fn program() -> String {
    std::env::var("NVMF_TGT").unwrap_or_else(|_| "nvmf_tgt".into())
}

impl Target {
    /// `Err` says what a target lacks on this machine: its program, or memory. With both, that one
    /// does not start is a failure.
    pub fn possible() -> Result<(), String> {
        let program = program();
        let version = Command::new(&program).arg("--version").output();
        version.map_err(|e| {
            format!("{program} (of SPDK; NVMF_TGT names another) does not run: {e}")
        })?;
        let pool = Path::new("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages");
        let free = std::fs::read_to_string(pool).unwrap_or_default();
        let free = free.trim().parse::<u32>().unwrap_or(0);
        if free < FREE_PAGES {
            return Err(format!(
                "{free} free hugepages, not {FREE_PAGES}; scripts/hugepages {SUITE_PAGES}"
            ));
        }
        let mounts = std::fs::read_to_string("/proc/mounts").map_err(|e| e.to_string())?;
        if !mounts.contains(" hugetlbfs ") {
            return Err(format!("no hugetlbfs is mounted; scripts/hugepages {SUITE_PAGES}"));
        }
        Ok(())
    }

    /// Starts a target with one controller for each list of namespaces.
    pub fn start(controllers: &[&[Drive]]) -> Result<Self, String> {
        let dir = tempfile::tempdir().map_err(|e| e.to_string())?;
        let log = std::fs::File::create(dir.path().join("log")).map_err(|e| e.to_string())?;
        // The last CPU: the tests' own threads are on the others, where there are others.
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let child = Command::new(program())
            // SPDK's lock files on CPUs would keep two targets on one machine apart.
            .args(["--disable-cpumask-locks", "-m", &format!("[{}]", cpus - 1)])
            // A killed target would leave its trace in /dev/shm and its memory in hugetlbfs.
            .args(["--num-trace-entries", "0", "--huge-unlink", "-r"])
            .arg(dir.path().join("rpc"))
            // Should it crash, its core goes with it.
            .current_dir(dir.path())
            .stdin(Stdio::null())
            .stdout(log.try_clone().map_err(|e| e.to_string())?)
            .stderr(log)
            .spawn()
            .map_err(|e| format!("{}: {e}", program()))?;
        let mut target = Self { child, dir };
        target.wait()?;
        target.call("nvmf_create_transport", json!({ "trtype": "VFIOUSER" }))?;
        target.call("nvmf_create_transport", json!({ "trtype": "TCP" }))?;
        for (number, drives) in controllers.iter().enumerate() {
            target.add(number, drives)?;
        }
        Ok(target)
    }

    fn add(&mut self, number: usize, drives: &[Drive]) -> Result<(), String> {
        let nqn = nqn(number);
        self.call(
            "nvmf_create_subsystem",
            json!({ "nqn": nqn, "allow_any_host": true,
                "serial_number": format!("MILLRACE{number}"), "model_number": "RAM drive" }),
        )?;
        for (place, drive) in drives.iter().enumerate() {
            let name = malloc(number, place);
            let mut params = json!({ "name": name, "num_blocks": drive.blocks,
                "block_size": drive.block_size });
            if drive.metadata > 0 {
                params["md_size"] = drive.metadata.into();
                params["md_interleave"] = true.into();
            }
            self.call("bdev_malloc_create", params)?;
            match drive.trouble {
                Trouble::None => {}
                Trouble::Hangs => {
                    self.call("bdev_error_create", json!({ "base_name": name }))?;
                }
                Trouble::Delays => {
                    self.call(
                        "bdev_delay_create",
                        json!({ "base_bdev_name": name, "name": drive.bdev(number, place),
                            "avg_read_latency": 0, "p99_read_latency": 0,
                            "avg_write_latency": 0, "p99_write_latency": 0 }),
                    )?;
                }
            }
            self.call(
                "nvmf_subsystem_add_ns",
                json!({ "nqn": nqn, "namespace": { "bdev_name": drive.bdev(number, place) } }),
            )?;
        }
        let folder = self.folder(number);
        std::fs::create_dir(&folder).map_err(|e| e.to_string())?;
        self.call(
            "nvmf_subsystem_add_listener",
            json!({ "nqn": nqn, "listen_address":
                { "trtype": "VFIOUSER", "traddr": folder, "trsvcid": "0" } }),
        )?;
        Ok(())
    }

    fn folder(&self, number: usize) -> PathBuf {
        self.dir.path().join(format!("controller{number}"))
    }

    /// Transport id of controller `number`.
    pub fn id(&self, number: usize) -> String {
        let folder = self.folder(number);
        format!("trtype:VFIOUSER traddr:{} subnqn:{}", folder.display(), nqn(number))
    }

    /// Lets controller `number` be reached by TCP as well; its transport id there.
    pub fn listen(&self, number: usize) -> Result<String, String> {
        // A port that is free now; nobody else takes one that was given away so lately.
        let free = std::net::TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr());
        let port = free.map_err(|e| e.to_string())?.port();
        let nqn = nqn(number);
        self.call(
            "nvmf_subsystem_add_listener",
            json!({ "nqn": nqn, "listen_address": { "trtype": "TCP", "adrfam": "ipv4",
                "traddr": "127.0.0.1", "trsvcid": port.to_string() } }),
        )?;
        Ok(format!("trtype:TCP adrfam:IPv4 traddr:127.0.0.1 trsvcid:{port} subnqn:{nqn}"))
    }

    /// The next `reads` of a drive that [`Trouble::Hangs`] never end.
    pub fn hang(&self, number: usize, place: usize, reads: u32) {
        let params = json!({ "name": format!("EE_{}", malloc(number, place)), "io_type": "read",
            "error_type": "pending", "num": reads });
        self.call("bdev_error_inject_error", params).unwrap();
    }

    /// Reads of a drive that [`Trouble::Delays`] take this long from now on.
    pub fn delay(&self, number: usize, place: usize, time: Duration) {
        for kind in ["avg_read", "p99_read"] {
            let params = json!({ "delay_bdev_name": Trouble::delayed(number, place),
                "latency_type": kind, "latency_us": time.as_micros() as u64 });
            self.call("bdev_delay_update_latency", params).unwrap();
        }
    }

    /// Numbers of the connections' controllers of subsystem `number`, as the target has them: a
    /// host that connects anew has another.
    pub fn controllers(&self, number: usize) -> Vec<u64> {
        let answer = self.call("nvmf_subsystem_get_controllers", json!({ "nqn": nqn(number) }));
        let answer = answer.unwrap();
        let answer = answer.as_array().expect("a list").iter();
        answer.map(|one| one["cntlid"].as_u64().expect("a number")).collect()
    }

    /// Stops it, as a machine that hangs: its sockets stay open and nobody answers.
    pub fn freeze(&self) {
        // SAFETY: a signal to a child that was not waited for.
        assert_eq!(unsafe { libc::kill(self.child.id() as i32, libc::SIGSTOP) }, 0);
    }

    /// Kills it, as a crash would.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    fn wait(&mut self) -> Result<(), String> {
        let deadline = Instant::now() + BOUND;
        while self.call("framework_wait_init", json!({})).is_err() {
            if self.child.try_wait().map_err(|e| e.to_string())?.is_some()
                || Instant::now() > deadline
            {
                let log = std::fs::read_to_string(self.dir.path().join("log"));
                return Err(format!("nvmf_tgt does not start: {}", log.unwrap_or_default()));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    /// Calls a method of the target (JSON-RPC 2.0 over its socket).
    pub fn call(&self, method: &str, params: Value) -> Result<Value, String> {
        let text = |e: std::io::Error| format!("{method}: {e}");
        let mut socket = UnixStream::connect(self.dir.path().join("rpc")).map_err(text)?;
        socket.set_read_timeout(Some(BOUND)).map_err(text)?;
        let mut request = json!({ "jsonrpc": "2.0", "id": 1, "method": method });
        if params.as_object().is_some_and(|params| !params.is_empty()) {
            request["params"] = params;
        }
        socket.write_all(request.to_string().as_bytes()).map_err(text)?;
        let (mut answer, mut buffer) = (Vec::new(), [0; 4096]);
        loop {
            let count = socket.read(&mut buffer).map_err(text)?;
            answer.extend_from_slice(&buffer[..count]);
            // There is no frame: the answer is whole when it parses.
            match serde_json::from_slice::<Value>(&answer) {
                Ok(answer) if answer.get("error").is_some() => {
                    return Err(format!("{method}: {}", answer["error"]));
                }
                Ok(answer) => return Ok(answer["result"].clone()),
                Err(_) if count > 0 => {}
                Err(e) => return Err(format!("{method}: {e}")),
            }
        }
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Drive {
    /// Name of the bdev that is exported.
    fn bdev(&self, number: usize, place: usize) -> String {
        match self.trouble {
            Trouble::None => malloc(number, place),
            // The name that SPDK gives it.
            Trouble::Hangs => format!("EE_{}", malloc(number, place)),
            Trouble::Delays => Trouble::delayed(number, place),
        }
    }
}

impl Trouble {
    fn delayed(number: usize, place: usize) -> String {
        format!("Delay{number}_{place}")
    }
}

fn malloc(number: usize, place: usize) -> String {
    format!("Malloc{number}_{place}")
}

fn nqn(number: usize) -> String {
    format!("nqn.2026-12.io.millrace:test{number}")
}
