//! SPDK's own target with RAM drives behind vfio-user controllers: real NVMe controllers for the
//! driver, without hardware.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
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
}

impl Drive {
    pub const fn new(block_size: u32) -> Self {
        // 16 MiB.
        Self { blocks: (16 << 20) / block_size as u64, block_size, metadata: 0 }
    }
}

/// A running target, killed when it is dropped.
pub struct Target {
    child: Child,
    dir: tempfile::TempDir,
}

const BOUND: Duration = Duration::from_secs(30);

impl Target {
    /// Starts a target with one controller for each list of namespaces. `Err` says why it cannot
    /// run here.
    pub fn start(controllers: &[&[Drive]]) -> Result<Self, String> {
        let dir = tempfile::tempdir().map_err(|e| e.to_string())?;
        let log = std::fs::File::create(dir.path().join("log")).map_err(|e| e.to_string())?;
        let program = std::env::var("NVMF_TGT").unwrap_or_else(|_| "nvmf_tgt".into());
        // The last CPU: the tests' own threads are on the others, where there are others.
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let child = Command::new(&program)
            // SPDK's lock files on CPUs would keep two targets on one machine apart.
            .args(["--disable-cpumask-locks", "-m", &format!("[{}]", cpus - 1), "-r"])
            .arg(dir.path().join("rpc"))
            .stdin(Stdio::null())
            .stdout(log.try_clone().map_err(|e| e.to_string())?)
            .stderr(log)
            .spawn()
            .map_err(|e| {
                format!("{program} (of SPDK; NVMF_TGT names another) does not run: {e}")
            })?;
        let mut target = Self { child, dir };
        target.wait()?;
        target.call("nvmf_create_transport", json!({ "trtype": "VFIOUSER" }))?;
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
            let name = format!("Malloc{number}_{place}");
            let mut params = json!({ "name": name, "num_blocks": drive.blocks,
                "block_size": drive.block_size });
            if drive.metadata > 0 {
                params["md_size"] = drive.metadata.into();
                params["md_interleave"] = true.into();
            }
            self.call("bdev_malloc_create", params)?;
            self.call(
                "nvmf_subsystem_add_ns",
                json!({ "nqn": nqn, "namespace": { "bdev_name": name } }),
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

fn nqn(number: usize) -> String {
    format!("nqn.2026-12.io.millrace:test{number}")
}
