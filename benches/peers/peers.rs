//! One run of each program, and its figure.

use std::process::Command;

use serde_json::Value;

use crate::setup::{CLIENT_CPU, OBJECTS, SERVER_CPU, Stage, output};

/// What one run gave.
#[derive(Debug, Clone, Copy)]
pub struct Run {
    /// Reads or bytes per second.
    pub rate: f64,
    /// CPU time per read in nanoseconds, where it is comparable.
    pub cpu_per_op: Option<f64>,
}

impl Run {
    /// Reads of 1 MiB as bytes.
    pub fn as_mib_bytes(self) -> Self {
        Self { rate: self.rate * f64::from(1 << 20), cpu_per_op: None }
    }
}

fn millrace(args: &[&str]) -> Result<Value, String> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_millrace"));
    command.env("RUST_LOG", "warn").args(args).args(["--warmup", "500ms", "--json", "-"]);
    let text = output(&mut command)?;
    serde_json::from_str(&text).map_err(|e| format!("millrace's JSON: {e}"))
}

fn figure(json: &Value, path: &str) -> Result<f64, String> {
    json.pointer(path).and_then(Value::as_f64).ok_or_else(|| format!("no {path} in a result"))
}

/// `millrace local` through io_uring, sleeping for completions as fio does.
pub fn local_uring(stage: &Stage, size: &str, depth: u32, seconds: f64) -> Result<Run, String> {
    counted_uring(stage, size, depth, "off", seconds)
}

/// The same with `--counters` as given.
pub fn counted_uring(
    stage: &Stage,
    size: &str,
    depth: u32,
    counters: &str,
    seconds: f64,
) -> Result<Run, String> {
    let device = stage.device.as_ref().expect("the stage has a device").display().to_string();
    let (depth, duration) = (depth.to_string(), format!("{seconds}s"));
    let json = millrace(&[
        "local",
        "--backend",
        "uring",
        "--device",
        &device,
        "--io-size",
        size,
        "--depth",
        &depth,
        "--duration",
        &duration,
        "--check",
        "none",
        "--hugepages",
        "2m",
        "--cores",
        SERVER_CPU,
        "--wait",
        "block",
        "--counters",
        counters,
    ])?;
    Ok(Run {
        rate: figure(&json, "/summary/iops")?,
        cpu_per_op: Some(figure(&json, "/summary/cpu_ns_per_op")?),
    })
}

/// The restart of a store: headers read and sorted out, on one core.
pub fn scan(stage: &Stage, _seconds: f64) -> Result<Run, String> {
    let device = stage.device.as_ref().expect("the stage has a device").display().to_string();
    let mut command = Command::new(env!("CARGO_BIN_EXE_millrace"));
    command.env("RUST_LOG", "warn").args(["store", "verify", "--json", "--device", &device]);
    command.args(["--depth", "64", "--hugepages", "2m", "--cores", SERVER_CPU]);
    let text = output(&mut command)?;
    let json: Value = serde_json::from_str(&text).map_err(|e| format!("millrace's JSON: {e}"))?;
    Ok(Run { rate: figure(&json, "/scan/headers_per_sec")?, cpu_per_op: None })
}

/// `millrace local` through io_uring, 4 KiB at depth 64, spinning as a scan does.
pub fn local_4k_64(stage: &Stage, seconds: f64) -> Result<Run, String> {
    let device = stage.device.as_ref().expect("the stage has a device").display().to_string();
    let duration = format!("{seconds}s");
    let json = millrace(&[
        "local",
        "--device",
        &device,
        "--io-size",
        "4KiB",
        "--depth",
        "64",
        "--duration",
        &duration,
        "--check",
        "none",
        "--hugepages",
        "2m",
        "--cores",
        SERVER_CPU,
    ])?;
    Ok(Run { rate: figure(&json, "/summary/iops")?, cpu_per_op: None })
}

/// fio with io_uring, registered buffers and files, hugepages, on the same core.
pub fn fio(stage: &Stage, size: &str, depth: u32, seconds: f64) -> Result<Run, String> {
    let device = stage.device.as_ref().expect("the stage has a device").display();
    let text = output(Command::new("fio").args([
        "--name=peer",
        "--ioengine=io_uring",
        "--fixedbufs=1",
        "--registerfiles=1",
        "--direct=1",
        "--rw=randread",
        "--norandommap=1",
        "--randrepeat=0",
        "--iomem=mmaphuge",
        "--time_based=1",
        "--ramp_time=0.5",
        "--output-format=json",
        &format!("--filename={device}"),
        &format!("--bs={size}"),
        &format!("--iodepth={depth}"),
        &format!("--runtime={seconds}"),
        &format!("--cpus_allowed={SERVER_CPU}"),
    ]))?;
    let start = text.find('{').ok_or("fio printed no JSON")?;
    let json: Value = serde_json::from_str(&text[start..]).map_err(|e| format!("fio: {e}"))?;
    let rate = figure(&json, "/jobs/0/read/iops")?;
    let busy = figure(&json, "/jobs/0/usr_cpu")? + figure(&json, "/jobs/0/sys_cpu")?;
    Ok(Run { rate, cpu_per_op: Some(busy / 100.0 * 1e9 / rate) })
}

/// `millrace bench` on the stage's own server.
pub fn bench_tcp(
    stage: &Stage,
    size: &str,
    depth: u32,
    connections: u32,
    seconds: f64,
) -> Result<Run, String> {
    stage.only(0)?;
    let address = stage.address.as_ref().expect("the stage has a server");
    let (depth, connections) = (depth.to_string(), connections.to_string());
    let json = millrace(&[
        "bench",
        "--raw",
        "--connect",
        address,
        "--io-size",
        size,
        "--depth",
        &depth,
        "--connections",
        &connections,
        "--duration",
        &format!("{seconds}s"),
        "--cores",
        CLIENT_CPU,
    ])?;
    Ok(Run { rate: figure(&json, "/summary/iops")?, cpu_per_op: None })
}

/// Gets of 1 MiB objects from the stage's store, checked as `check` says.
pub fn objects(stage: &mut Stage, check: &str, seconds: f64) -> Result<Run, String> {
    stage.serve(&["--check", check])?;
    load_1m(stage, &["--objects", OBJECTS], seconds)
}

/// Reads of 1 MiB from the drive below it.
pub fn ranges(stage: &mut Stage, check: &str, seconds: f64) -> Result<Run, String> {
    stage.serve(&["--raw", "--check", check])?;
    load_1m(stage, &["--raw"], seconds)
}

fn load_1m(stage: &Stage, what: &[&str], seconds: f64) -> Result<Run, String> {
    let address = stage.address.as_ref().expect("the stage has a server");
    let duration = format!("{seconds}s");
    let mut args = vec!["bench", "--connect", address, "--io-size", "1MiB", "--depth", "16"];
    args.extend(["--duration", &duration, "--cores", CLIENT_CPU]);
    args.extend(what);
    Ok(Run { rate: figure(&millrace(&args)?, "/summary/iops")?, cpu_per_op: None })
}

/// spdk_nvme_perf on SPDK's own target, which is server number `target` of the stage.
pub fn spdk_perf(
    stage: &Stage,
    target: usize,
    size: u32,
    depth: u32,
    seconds: f64,
) -> Result<Run, String> {
    stage.only(target)?;
    let transport = stage.transport.as_ref().expect("the stage has a target");
    let text = output(Command::new("spdk_nvme_perf").args([
        "-q",
        &depth.to_string(),
        "-o",
        &size.to_string(),
        "-w",
        "randread",
        "-t",
        &format!("{}", seconds.ceil()),
        "-c",
        &format!("[{CLIENT_CPU}]"),
        // One file for its memory: vfio-user maps few regions.
        "-g",
        "-s",
        "256",
        "-r",
        transport,
    ]))?;
    let total = text
        .lines()
        .find_map(|line| line.trim().strip_prefix("Total"))
        .ok_or("spdk_nvme_perf printed no total")?;
    let rate = total
        .split_whitespace()
        .find_map(|word| word.parse::<f64>().ok())
        .ok_or("spdk_nvme_perf printed no rate")?;
    Ok(Run { rate, cpu_per_op: None })
}

/// `millrace local` through SPDK, on the same target and core.
pub fn local_spdk(
    stage: &Stage,
    size: &str,
    depth: u32,
    check: &str,
    seconds: f64,
) -> Result<Run, String> {
    let transport = stage.transport.as_ref().expect("the stage has a target");
    let (depth, duration) = (depth.to_string(), format!("{seconds}s"));
    let json = millrace(&[
        "local",
        "--backend",
        "spdk",
        "--device",
        transport,
        "--io-size",
        size,
        "--depth",
        &depth,
        "--duration",
        &duration,
        "--check",
        check,
        "--cores",
        CLIENT_CPU,
    ])?;
    Ok(Run { rate: figure(&json, "/summary/iops")?, cpu_per_op: None })
}

/// CRC-64/NVME of 1 MiB buffers on the same core: what a checking reader cannot exceed.
pub fn crc_alone(_stage: &mut Stage, seconds: f64) -> Result<Run, String> {
    let measure = move || -> Result<f64, String> {
        let core = CLIENT_CPU.parse().map_err(|e| format!("{e}"))?;
        millrace::host::affinity::pin(core).map_err(|e| e.report())?;
        // As many buffers as `local` has slots at depth 16, so that the caches are as warm.
        let buffers: Vec<Vec<u8>> = (0..16).map(|n| vec![n; 1 << 20]).collect();
        let (start, mut count) = (std::time::Instant::now(), 0u64);
        while start.elapsed().as_secs_f64() < seconds {
            for buffer in &buffers {
                std::hint::black_box(millrace::check::crc(buffer));
            }
            count += buffers.len() as u64;
        }
        Ok(count as f64 / start.elapsed().as_secs_f64())
    };
    let rate = std::thread::spawn(measure).join().map_err(|_| "the CRC thread panicked")??;
    Ok(Run { rate, cpu_per_op: None })
}

/// One stream of iperf3.
pub fn iperf3(stage: &mut Stage, seconds: f64) -> Result<Run, String> {
    stage.only(1)?;
    let text = output(Command::new("iperf3").args([
        "-c",
        "127.0.0.1",
        "-p",
        "5299",
        "-J",
        "-A",
        CLIENT_CPU,
        "-t",
        &format!("{}", seconds.ceil()),
    ]))?;
    let json: Value = serde_json::from_str(&text).map_err(|e| format!("iperf3: {e}"))?;
    let rate = figure(&json, "/end/sum_received/bits_per_second")? / 8.0;
    Ok(Run { rate, cpu_per_op: None })
}
