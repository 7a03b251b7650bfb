use super::*;

#[test]
fn figures_are_per_read_and_what_is_missing_has_a_reason() {
    let mut totals = Totals { seconds: 2.0, ..Totals::default() };
    totals.sums.insert("cycles", Ok(5000.0));
    totals.sums.insert("fget", Err("no".into()));
    totals.plain.insert("mhz", Ok(3000.0));
    totals.limits.insert("cycles", "user mode only".into());
    let counters = totals.per_read(250.0);
    assert_eq!(counters.get("cycles_per_read"), Some(10.0));
    assert_eq!(counters.get("mhz"), Some(3000.0));
    assert_eq!(counters.values["fget_per_read"], None);
    assert_eq!(counters.notes["fget_per_read"], "no");
    assert_eq!(counters.notes["cycles_per_read"], "user mode only");
    assert_eq!(counters.get("unheard of"), None);
}

#[test]
fn every_null_has_its_reason_on_this_machine() {
    // The thread has its name once it runs; it ends when the channel's other end is dropped.
    let (running, started) = std::sync::mpsc::channel();
    let (alive, end) = std::sync::mpsc::channel::<()>();
    let work = move || {
        running.send(()).unwrap();
        while end.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {}
    };
    std::thread::Builder::new().name(format!("{LOAD_THREAD}0")).spawn(work).unwrap();
    started.recv().unwrap();
    let observe = Observe { drives: vec!["mem:1MiB".into()], ..Observe::default() };
    let mut probe = Probe::open(&Root::system(), &observe).unwrap();
    probe.begin().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(100));
    let counters = probe.end().unwrap().per_read(1000.0);
    drop(alive);
    assert!(counters.values.len() > 15, "{counters:?}");
    for (name, value) in &counters.values {
        assert!(value.is_some() || counters.notes.contains_key(name), "{name}");
    }
    assert_eq!(counters.notes["drive_requests_per_read"], "the drive is memory");
    assert!(counters.get("reader_run_share").is_some());
}

#[test]
fn a_process_without_readers_is_refused() {
    let observe = Observe { pid: Some(1), ..Observe::default() };
    let error = Probe::open(&Root::system(), &observe).err().unwrap();
    assert!(error.what().contains("process 1"), "{error}");
}

#[test]
fn the_worst_cpu_stands_for_all_of_them() {
    let dir = tempfile::tempdir().unwrap();
    let put = |path: &str, text: &str| {
        let path = dir.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    let write = |hits: u32, us: u32, busy: u32| {
        put("proc/interrupts", &format!("  CPU1 CPU3\n 24: 1 1 x\nTLB: 7 {hits} TLB\n"));
        put("proc/stat", &format!("cpu 0\ncpu1 0 0 0 0 0 0 0 0\ncpu3 {busy} 0 0 0 0 0 0 0\n"));
        let idle = "sys/devices/system/cpu/cpu3/cpuidle/state2";
        for (file, value) in [("name", "C6"), ("latency", "133"), ("usage", "1"), ("disable", "0")]
        {
            put(&format!("{idle}/{file}"), value);
        }
        put(&format!("{idle}/time"), &us.to_string());
    };
    let root = Root::at(dir.path());
    write(100, 1000, 0);
    let mut cpus = cpus::Cpus::open(vec![1, 3], Vec::new());
    cpus.begin(&root);
    write(150, 1_001_000, 100);
    let mut totals = Totals { seconds: 2.0, ..Totals::default() };
    // Of the second that CPU 3 was busy, half was the observed process's.
    cpus.end(&root, &mut totals, &BTreeMap::from([(3, 500_000_000)]));
    assert_eq!(totals.plain["tlb_shootdowns_per_sec"], Ok(25.0));
    assert_eq!(totals.plain["slow_idle_share"], Ok(0.5));
    assert_eq!(totals.plain["others_share"], Ok(0.25));
    assert_eq!(totals.cpus[1].idle["C6"], 0.5);
    assert!(totals.plain["mhz"].is_err());
}

#[test]
fn counters_of_rdma_devices_are_added_up() {
    let dir = tempfile::tempdir().unwrap();
    let root = Root::at(dir.path());
    let mut none = nics::Nics::default();
    none.begin(&root);
    let mut totals = Totals::default();
    none.end(&root, &mut totals);
    assert_eq!(totals.sums["rdma_retries"], Err("there is no RDMA device".into()));

    let write = |device: &str, file: &str, value: u32| {
        let folder = dir.path().join(format!("sys/class/infiniband/{device}/ports/1/hw_counters"));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join(file), value.to_string()).unwrap();
    };
    write("rxe0", "completer_retry_err", 4);
    write("mlx5_0", "local_ack_timeout_err", 10);
    let mut nics = nics::Nics::default();
    nics.begin(&root);
    write("mlx5_0", "local_ack_timeout_err", 13);
    let mut totals = Totals::default();
    nics.end(&root, &mut totals);
    assert_eq!(totals.sums["rdma_retries"], Ok(3.0));
    assert!(totals.sums["rdma_not_ready"].is_err());
}
