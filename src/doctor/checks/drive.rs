//! The drives: whether they are there, whose they are, and what their queues take.

use super::Family;
use crate::doctor::case::Case;
use crate::doctor::check::Check;
use crate::doctor::ruling::{Ruling, Weight, do_it, run};
use crate::host::block;
use crate::host::drive::Drive;
use crate::host::split::{Buffer, Limits, Split, split};
use crate::units::format_size;

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "drive-found",
        family: Family::Drive,
        why: "A drive that is not there cannot be served.",
        rule: found,
    },
    Check {
        id: "drive-driver",
        family: Family::Drive,
        why: "Each path needs its own driver: nvme for io_uring, vfio-pci for SPDK.",
        rule: driver,
    },
    Check {
        id: "drive-in-use",
        family: Family::Drive,
        why: "A drive that is mounted or part of an array must not leave the kernel's driver.",
        rule: in_use,
    },
    Check {
        id: "drive-override",
        family: Family::Drive,
        why: "A driver_override that a tool left behind keeps every other driver from the drive.",
        rule: leftover,
    },
    Check {
        id: "drive-state",
        family: Family::Drive,
        why: "A controller that resets or is dead answers nothing.",
        rule: state,
    },
    Check {
        id: "drive-metadata",
        family: Family::Drive,
        why: "Blocks with metadata are not what a server of plain blocks reads.",
        rule: metadata,
    },
    Check {
        id: "drive-block",
        family: Family::Drive,
        why: "Reads are whole logical blocks, and fast in whole physical ones.",
        rule: blocks,
    },
    Check {
        id: "drive-poll",
        family: Family::Drive,
        why: "Without poll queues a polled read only spins until the interrupt comes.",
        rule: poll,
    },
    Check {
        id: "drive-temperature",
        family: Family::Drive,
        why: "A drive that is too hot slows down by itself, and in the end switches off.",
        rule: temperature,
    },
    Check {
        id: "drive-scheduler",
        family: Family::Drive,
        why: "An I/O scheduler sorts and locks what the drive could take in any order.",
        rule: scheduler,
    },
    Check {
        id: "drive-requests",
        family: Family::Drive,
        why: "A read that is cut into several requests costs the kernel and the drive more, and is \
              submitted by a kernel thread.",
        rule: requests,
    },
    Check {
        id: "drive-max-sectors",
        family: Family::Drive,
        why: "The kernel may be set to smaller requests than the drive takes.",
        rule: max_sectors,
    },
    Check {
        id: "drive-emulated",
        family: Family::Drive,
        why: "An emulated or network drive measures its host, not NVMe.",
        rule: emulated,
    },
    Check {
        id: "drive-multipath",
        family: Family::Drive,
        why: "Under native multipath the head device counts no I/O; its paths do.",
        rule: multipath,
    },
    Check {
        id: "drive-stacked",
        family: Family::Drive,
        why: "A layer over drives adds a driver to each read, and cannot be polled.",
        rule: stacked,
    },
    Check {
        id: "drive-power",
        family: Family::Drive,
        why: "A drive that may be suspended wakes up within the first read.",
        rule: power,
    },
];

fn file_of(drive: &Drive) -> String {
    match (&drive.disk, &drive.function) {
        (Some(disk), _) => format!("/sys/block/{disk}"),
        (None, Some(function)) => format!("/sys/bus/pci/devices/{}", function.address),
        (None, None) => drive.name.clone(),
    }
}

fn found(case: &Case) -> Ruling {
    if case.drives.is_empty() {
        return Ruling::skip("no drive was named, and there is no NVMe drive");
    }
    let mut ruling = Ruling::new();
    for drive in &case.drives {
        match &drive.missing {
            Some(fault) => ruling.stops_by(&drive.name, "not there", fault),
            None => ruling.fine(file_of(drive), &drive.name),
        }
    }
    ruling
}

fn driver(case: &Case) -> Ruling {
    let mut ruling = Ruling::new();
    for (drive, function) in case.functions() {
        ruling.note(&function.driver);
        let name = function.driver.as_deref();
        let file = &function.driver.path;
        let shown = name.unwrap_or("none");
        match (case.job.uring, case.job.spdk, name) {
            // Any disk that the kernel shows is good enough for io_uring.
            (true, false, _) if drive.disk.is_some() => ruling.fine(file, shown),
            (true, false, other) => {
                ruling.stops(file, shown, &block::elsewhere(function.address, other));
            }
            (_, true, Some("vfio-pci")) => ruling.fine(file, "vfio-pci"),
            (_, true, Some("nvme")) => ruling.fine(file, "nvme; millrace device bind moves it"),
            (_, true, other) => {
                let what = format!(
                    "{} is neither on vfio-pci nor on nvme, from which it can be moved there",
                    function.address
                );
                let mends = vec![run(format!("millrace device restore {}", function.address))];
                ruling.loses(0.9, file, other.unwrap_or("none"), what, mends);
            }
            (false, false, _) => ruling.fine(file, shown),
        }
    }
    ruling
}

fn in_use(case: &Case) -> Ruling {
    if !case.job.spdk {
        return Ruling::skip("only for --for spdk: io_uring reads beside other users");
    }
    let mut ruling = Ruling::new();
    // Uses are looked up among the mounts first of all.
    ruling.note(&case.machine.process.mounts);
    for drive in case.drives.iter().filter(|drive| drive.missing.is_none()) {
        if drive.uses.is_empty() {
            ruling.fine(file_of(drive), "not in use");
        }
        for used in &drive.uses {
            let what = used.describe();
            let mends = vec![do_it(used.release())];
            ruling.hit(Weight::Stops, file_of(drive), "in use", what, mends);
        }
    }
    ruling
}

fn leftover(case: &Case) -> Ruling {
    let mut ruling = Ruling::new();
    for (drive, function) in case.functions() {
        match ruling.read(&function.driver_override) {
            Some(Some(name)) => {
                let file = &function.driver_override.path;
                // Ours says where the drive is. Another says where it may not leave from.
                if Some(name.as_str()) == function.driver.as_deref() {
                    ruling.fine(file, name);
                    continue;
                }
                let what = format!(
                    "driver_override of {} says {name}, so no other driver can have it",
                    drive.title()
                );
                let mends = vec![run(format!("millrace device restore {}", function.address))];
                let lost = if function.driver.get().is_none() { 0.9 } else { 0.1 };
                ruling.loses(lost, file, name, what, mends);
            }
            Some(None) => ruling.fine(&function.driver_override.path, "(null)"),
            None => {}
        }
    }
    ruling
}

fn state(case: &Case) -> Ruling {
    let mut ruling = Ruling::new();
    for drive in &case.drives {
        let Some(controller) = &drive.controller else { continue };
        let fact = &controller.state;
        match ruling.read(fact).map(String::as_str) {
            Some("live") => ruling.fine(&fact.path, "live"),
            Some(state) => {
                let what = format!("the controller of {} is {state}, not live", drive.title());
                let mends = vec![do_it(format!("dmesg | grep {} says why", controller.name))];
                let passing = matches!(state, "new" | "resetting" | "connecting");
                ruling.loses(if passing { 0.2 } else { 0.9 }, &fact.path, state, what, mends);
            }
            None => {}
        }
    }
    ruling
}

fn metadata(case: &Case) -> Ruling {
    let mut ruling = Ruling::new();
    for drive in &case.drives {
        let Some(queue) = &drive.queue else { continue };
        match ruling.read(&queue.metadata) {
            Some(0) => ruling.fine(&queue.metadata.path, 0),
            Some(bytes) => {
                let what = format!(
                    "{} is formatted with {bytes} bytes of metadata for each block; millrace \
                     serves blocks without metadata only",
                    drive.title()
                );
                let mends = vec![do_it(
                    "use another namespace; a reformat (nvme format --lbaf) would erase this one",
                )];
                let weight = if case.job.spdk { Weight::Stops } else { Weight::Loses(0.1) };
                ruling.hit(weight, &queue.metadata.path, bytes, what, mends);
            }
            None => {}
        }
    }
    ruling
}

fn blocks(case: &Case) -> Ruling {
    let mut ruling = Ruling::new();
    let size = case.job.io_size;
    for drive in &case.drives {
        let Some(queue) = &drive.queue else { continue };
        let Some(logical) = ruling.read(&queue.logical_block).copied() else { continue };
        let physical = ruling.read(&queue.physical_block).copied().unwrap_or(logical);
        let mends = |block: u64| {
            vec![do_it(format!("choose --io-size as a multiple of {}", format_size(block)))]
        };
        let name = drive.title();
        if logical > 4096 || !size.is_multiple_of(logical.max(1)) {
            let what =
                format!("{name} has blocks of {logical} bytes: {size} bytes are not whole ones");
            ruling.loses(0.9, &queue.logical_block.path, logical, what, mends(logical));
        } else if !size.is_multiple_of(physical.max(1)) {
            let what = format!("{name} works in {physical} bytes: {size} bytes take more of it");
            ruling.loses(0.1, &queue.physical_block.path, physical, what, mends(physical));
        } else {
            ruling.fine(&queue.logical_block.path, format!("{logical}, physical {physical}"));
        }
    }
    ruling
}

fn poll(case: &Case) -> Ruling {
    if !case.job.iopoll {
        return Ruling::skip("only for --iopoll on");
    }
    let mut ruling = Ruling::new();
    for drive in &case.drives {
        let Some(queue) = &drive.queue else { continue };
        let Some(value) = ruling.read(&queue.poll) else { continue };
        match &drive.not_polled {
            Some(fault) => ruling.stops_by(&queue.poll.path, value, fault),
            None => ruling.fine(&queue.poll.path, value),
        }
    }
    ruling
}

fn temperature(case: &Case) -> Ruling {
    let mut ruling = Ruling::new();
    for drive in &case.drives {
        let Some(controller) = &drive.controller else { continue };
        let Some(now) = ruling.read(&controller.temperature).copied() else { continue };
        let warning = ruling.read(&controller.temperature_warning).copied().filter(|t| *t > 0);
        let critical = ruling.read(&controller.temperature_critical).copied().filter(|t| *t > 0);
        let degrees = |milli: u64| milli / 1000;
        let file = &controller.temperature.path;
        let limit = warning.or(critical);
        let value = match limit {
            Some(limit) => format!("{} C, slows down at {} C", degrees(now), degrees(limit)),
            None => format!("{} C", degrees(now)),
        };
        let what = format!("{} has {value}", drive.title());
        let mends = vec![do_it("check the air flow at the drive")];
        // Drives throttle from their warning temperature on; 5 degrees below it a load gets there.
        if critical.is_some_and(|t| now >= t) {
            ruling.loses(0.6, file, value, what, mends);
        } else if warning.is_some_and(|t| now >= t) {
            ruling.loses(0.3, file, value, what, mends);
        } else if limit.is_some_and(|t| now + 5000 >= t) {
            ruling.loses(0.05, file, value, what, mends);
        } else {
            ruling.fine(file, value);
        }
    }
    ruling
}

fn scheduler(case: &Case) -> Ruling {
    if !case.job.uring {
        return Ruling::skip("only for --for uring");
    }
    let mut ruling = Ruling::new();
    for drive in &case.drives {
        let (Some(queue), Some(disk)) = (&drive.queue, &drive.disk) else { continue };
        match ruling.read(&queue.scheduler).map(String::as_str) {
            // "none" with brackets or without, or no scheduler at all (bio-based drivers).
            Some(name @ ("none" | "")) => ruling.fine(&queue.scheduler.path, name),
            Some(name) => {
                let what = format!("/dev/{disk} has the I/O scheduler {name}");
                let mends = vec![run(format!("echo none > {}", queue.scheduler.path))];
                ruling.loses(0.08, &queue.scheduler.path, name, what, mends);
            }
            None => {}
        }
    }
    ruling
}

/// What a read of the job's size becomes on this drive; `None` where a limit is not known.
pub(in crate::doctor) fn split_of(case: &Case, drive: &Drive) -> Option<(Limits, Buffer, Split)> {
    let limits = Limits::of(drive.queue.as_ref()?)?;
    let buffer = Buffer {
        page: case.page_size()?,
        registered: case.job.registered,
        registered_bytes: case.job.arena_bytes,
    };
    let kernel = case.machine.kernel.version()?;
    Some((limits, buffer, split(case.job.io_size, limits, buffer, kernel)))
}

fn requests(case: &Case) -> Ruling {
    if !case.job.uring {
        return Ruling::skip("only for --for uring");
    }
    let mut ruling = Ruling::new();
    for drive in &case.drives {
        let Some(queue) = &drive.queue else { continue };
        for fact in [&queue.max_segments, &queue.max_kib] {
            ruling.note(fact);
        }
        let Some((limits, buffer, split)) = split_of(case, drive) else { continue };
        let size = format_size(case.job.io_size);
        let pages = format_size(buffer.page);
        let (file, value) = match split.by_segments {
            true => (&queue.max_segments.path, limits.segments),
            false => (&queue.max_kib.path, limits.bytes >> 10),
        };
        if split.most <= 1 {
            ruling.fine(file, format!("{value}: 1 request per read of {size}"));
            continue;
        }
        let count = match split.least == split.most {
            true => split.most.to_string(),
            false => format!("{} to {}", split.least, split.most),
        };
        let what = match split.by_segments {
            true => format!(
                "{size} on {pages} pages gives {} segments, {} takes {}: {count} requests per read",
                split.pieces,
                drive.title(),
                limits.segments
            ),
            false => format!(
                "{size} is more than the {} that {} is sent at once: {count} requests per read",
                format_size(limits.bytes),
                drive.title()
            ),
        };
        let mends = vec![do_it(match (split.by_segments, buffer.page > 4096) {
            (true, false) => "put the slots on hugepages (see hugepages-free)",
            (true, true) => {
                "kernel 6.12 and later join the pages of a registered hugepage; before that, \
                 --regbufs off does"
            }
            (false, _) => "see drive-max-sectors; or read less at once",
        })];
        // Three to five requests a read changed nothing where it was tried.
        let lost = (0.01 * split.most as f64).min(0.1);
        ruling.loses(lost, file, value, what, mends);
    }
    ruling
}

fn max_sectors(case: &Case) -> Ruling {
    if !case.job.uring {
        return Ruling::skip("only for --for uring");
    }
    let mut ruling = Ruling::new();
    let need = case.job.io_size.div_ceil(1024);
    for drive in &case.drives {
        let Some(queue) = &drive.queue else { continue };
        let hardware = ruling.read(&queue.max_hw_kib).copied();
        let (Some(now), Some(best)) = (ruling.read(&queue.max_kib).copied(), hardware) else {
            continue;
        };
        let value = format!("{now} KiB of {best}");
        if now >= need || now >= best {
            ruling.fine(&queue.max_kib.path, value);
            continue;
        }
        let name = drive.title();
        let what = format!("{name} is sent {now} KiB at once, and takes {best} KiB");
        let mends = vec![run(format!("echo {} > {}", need.min(best), queue.max_kib.path))];
        ruling.loses(0.02, &queue.max_kib.path, value, what, mends);
    }
    ruling
}

/// Vendors of emulated and network drives (PCI ID database): Red Hat, whose id QEMU's drive has,
/// Amazon, Google.
const EMULATORS: [u64; 4] = [0x1B36, 0x1AF4, 0x1D0F, 0x1AE0];

fn emulated(case: &Case) -> Ruling {
    let mut ruling = Ruling::new();
    for (drive, function) in case.functions() {
        let Some(vendor) = ruling.read(&function.vendor).copied() else { continue };
        let model = drive.controller.as_ref().and_then(|c| c.model.as_deref());
        let value = format!("{vendor:#06x}, {}", model.unwrap_or("model unknown"));
        let file = &function.vendor.path;
        if EMULATORS.contains(&vendor) || model.is_some_and(|model| model.starts_with("QEMU")) {
            let what = format!("{} is emulated or a network drive ({value})", drive.title());
            let mends = vec![do_it("compare its figures only with its own")];
            ruling.loses(0.02, file, value, what, mends);
        } else {
            ruling.fine(file, value);
        }
    }
    ruling
}

fn multipath(case: &Case) -> Ruling {
    let mut ruling = Ruling::new();
    for drive in &case.drives {
        let Some(paths) = ruling.read(&drive.paths) else { continue };
        let Some(disk) = &drive.disk else { continue };
        if paths.is_empty() {
            ruling.fine(file_of(drive), "no paths");
            continue;
        }
        let paths = paths.join(", ");
        let what = format!("/dev/{disk} is the head of the paths {paths}, which count its I/O");
        let mends = vec![do_it(format!("iostat and rareq-sz: look at {paths}, not at {disk}"))];
        ruling.loses(0.01, file_of(drive), paths, what, mends);
    }
    ruling
}

fn stacked(case: &Case) -> Ruling {
    let mut ruling = Ruling::new();
    for drive in &case.drives {
        let (Some(disk), Some(below)) = (&drive.disk, ruling.read(&drive.slaves)) else { continue };
        if below.is_empty() {
            ruling.fine(&drive.slaves.path, "none");
            continue;
        }
        let below = below.join(", ");
        let what = format!("/dev/{disk} is stacked on {below}");
        let mends = vec![do_it(format!("name the drives themselves: {below}"))];
        ruling.loses(0.1, &drive.slaves.path, below, what, mends);
    }
    ruling
}

fn power(case: &Case) -> Ruling {
    let mut ruling = Ruling::new();
    for (drive, function) in case.functions() {
        let fact = &function.power_control;
        let Some(control) = ruling.read(fact) else { continue };
        let mends = vec![run(format!("echo on > {}", fact.path))];
        if function.asleep {
            let what = format!(
                "{} is suspended; its link and temperature were not read, which would wake it",
                drive.title()
            );
            ruling.loses(0.03, &fact.path, format!("{control}, suspended"), what, mends);
        } else if control == "auto" {
            let what = format!("{} may be suspended when it idles", drive.title());
            ruling.loses(0.01, &fact.path, "auto", what, mends);
        } else {
            ruling.fine(&fact.path, control);
        }
    }
    ruling
}
