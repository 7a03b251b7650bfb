use super::*;

/// A machine of two nodes of eight CPUs; CPUs n and n + 16 are threads of one core.
fn machine() -> (tempfile::TempDir, Root) {
    let dir = tempfile::tempdir().unwrap();
    let write = |path: String, text: &str| {
        let path = dir.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    write("sys/devices/system/node/online".into(), "0-1\n");
    write("sys/devices/system/node/node0/cpulist".into(), "0-7\n");
    write("sys/devices/system/node/node1/cpulist".into(), "8-15\n");
    let root = Root::at(dir.path());
    (dir, root)
}

const GOOD: &str = r#"
raw = true
token_file = "/etc/millrace/token"
metrics = "127.0.0.1:9470"
deadline = "20s"

[defaults]
backend = "uring"
fabric = "rdma"
depth = 32
slot_size = "512KiB"
hugepages = "1g"
workers = 3

[[shard]]
name = "node0"
node = 0
listen = "127.0.0.1:4790"
drives = ["/dev/nvme0n1", "0000:5e:00.0"]

[[shard]]
name = "node1"
backend = "mem"
fabric = "tcp"
listen = "127.0.0.1:4791"
drives = ["mem:1MiB", "mem:1MiB"]
cores = "9,11-13"
depth = 8
iopoll = true
"#;

#[test]
fn shards_have_their_own_and_the_defaults() {
    let (_dir, root) = machine();
    let plan = parse("f.toml", GOOD, &root).unwrap();
    plan.check().unwrap();
    assert_eq!((plan.deadline, plan.drain), (Duration::from_secs(20), Duration::from_secs(10)));
    let [a, b] = &plan.shards[..] else { panic!("{plan:?}") };
    assert_eq!(a.cores, [1, 2, 3], "of its node, not CPU 0");
    assert_eq!((a.fabric, a.depth, a.slot_size), (FabricKind::Rdma, 32, 512 << 10));
    assert_eq!(a.origin.as_deref(), Some("f.toml:15"));
    assert_eq!(b.cores, [9, 11, 12], "three of those named");
    assert_eq!((b.fabric, b.depth, b.storage.backend), (FabricKind::Tcp, 8, Backend::Mem));
    assert!(b.storage.iopoll == OnOff::On && a.storage.iopoll == OnOff::Off);
    let shown = plan.show(&root).unwrap();
    assert!(shown.contains("shard node0  (f.toml:15)"), "{shown}");
    assert!(shown.contains("on CPUs 1-3, depth 32"), "{shown}");
    assert!(shown.contains("on CPUs 9,11-12"), "{shown}");
    assert!(shown.contains("3 pages of 1GiB, 0 free"), "{shown}");
    assert!(shown.contains("! too few hugepages"), "{shown}");
}

/// What the file says is wrong when `from` becomes `to`.
fn error(from: &str, to: &str) -> String {
    let (_dir, root) = machine();
    assert!(GOOD.contains(from), "{from}");
    let text = GOOD.replacen(from, to, 1);
    let outcome = parse("f.toml", &text, &root).and_then(|plan| plan.check());
    let error = outcome.expect_err(to);
    assert_eq!(error.kind(), crate::error::Kind::Usage);
    assert!(error.remedy_text().is_some(), "{error}");
    error.report()
}

#[test]
fn errors_name_file_line_value_and_remedy() {
    for (from, to, wanted) in [
        ("depth = 32", "depht = 32", &["f.toml:10", "depht"][..]),
        ("depth = 32", "depth = \"x\"", &["f.toml:10", "depth = \"x\"", "invalid type"]),
        ("depth = 32", "depth = -1", &["f.toml:10", "depth = -1"]),
        ("\"512KiB\"", "\"512 apples\"", &["f.toml:11", "slot_size", "512 apples", "4KiB"]),
        ("\"rdma\"", "\"token ring\"", &["f.toml:9", "fabric", "token ring", "tcp or rdma"]),
        ("\"1g\"", "\"4g\"", &["f.toml:12", "hugepages", "none, 2m or 1g"]),
        ("\"uring\"", "\"aio\"", &["f.toml:8", "backend", "aio", "uring, spdk or mem"]),
        ("\"20s\"", "\"soon\"", &["f.toml:5", "deadline", "soon", "500ms"]),
        ("127.0.0.1:4791", "127.0.0.1", &["f.toml:25", "listen", "port"]),
        ("9,11-13", "9,9", &["f.toml:27", "cores", "twice"]),
        ("workers = 3", "workers = 0", &["f.toml:13", "no worker at all"]),
        ("workers = 3", "workers = 5", &["f.toml:13", "there are 4 CPUs"]),
        ("node = 0", "node = 7", &["f.toml:15", "no NUMA node 7, but 0, 1"]),
        ("node = 0\n", "", &["f.toml:15", "neither cores, nor node and workers"]),
        ("name = \"node1\"", "", &["f.toml:21", "has no name"]),
        ("name = \"node1\"", "name = \"node0\"", &["f.toml:21", "node0", "name is that"]),
        ("listen = \"127.0.0.1:4791\"", "", &["f.toml:21", "\"node1\" has no listen"]),
        ("[\"mem:1MiB\", \"mem:1MiB\"]", "[]", &["f.toml:21", "\"node1\" has no drives"]),
        ("127.0.0.1:4791", "127.0.0.1:4790", &["f.toml:21", "127.0.0.1:4790", "node0"]),
        ("\"mem:1MiB\", \"mem", "\"/dev/nvme0n1\", \"mem", &["f.toml:21", "drive /dev/nvme0n1"]),
        ("\"mem:1MiB\", \"mem", "\"mem:x\", \"mem", &["f.toml:21", "drive mem:x"]),
        ("9,11-13", "2,11-13", &["f.toml:21", "CPU 2", "node0"]),
        ("[[shard]]\nname = \"node1\"", "[[shard]\nname = \"node1\"", &["f.toml:21"]),
        ("[defaults]", "[defaults]\nname = \"x\"", &["f.toml:8", "a name of its own"]),
        ("metrics = \"127.0.0.1:9470\"", "metrics = \"0.0.0.0:9470\"", &["metrics-public"]),
    ] {
        let report = error(from, to);
        for text in wanted {
            assert!(report.contains(text), "{to}: wanted {text} in: {report}");
        }
    }
}

#[test]
fn beyond_loopback_a_token_is_needed() {
    let (_dir, root) = machine();
    let open = GOOD.replace("127.0.0.1:4791", "0.0.0.0:4791");
    parse("f.toml", &open, &root).unwrap().check().unwrap();
    let bare = open.replace("token_file = \"/etc/millrace/token\"\n", "");
    let error = parse("f.toml", &bare, &root).unwrap().check().unwrap_err();
    assert!(error.what().contains("shard \"node1\": 0.0.0.0:4791"), "{error}");
    let insecure = bare.replace("raw = true", "raw = true\ninsecure = true");
    parse("f.toml", &insecure, &root).unwrap().check().unwrap();
}

#[test]
fn a_file_without_shards_is_refused() {
    let (_dir, root) = machine();
    for text in ["", "raw = true\n", "[defaults]\ndepth = 1\n"] {
        let error = parse("f.toml", text, &root).unwrap_err();
        assert!(error.what().contains("describes no shard"), "{error}");
    }
    assert!(read(Path::new("/nonexistent.toml"), &root).unwrap_err().what().contains("nonexist"));
}

/// The file that docs/DEPLOY.md shows is one that this reads.
#[test]
fn the_file_of_the_documentation_is_right() {
    let text = include_str!("../../../../docs/DEPLOY.md");
    let file = text.split("```toml\n").nth(1).unwrap().split("```").next().unwrap();
    let dir = tempfile::tempdir().unwrap();
    for (node, list) in [(0, "0-31"), (1, "32-63")] {
        let folder = dir.path().join(format!("sys/devices/system/node/node{node}"));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("cpulist"), list).unwrap();
    }
    let plan = parse("millrace.toml", file, &Root::at(dir.path())).unwrap();
    plan.check().unwrap();
    assert_eq!(plan.shards.len(), 2);
    for shard in &plan.shards {
        assert_eq!(shard.storage.devices.len(), 8);
        assert_eq!(shard.cores.len(), 8);
    }
}
