//! The sets that come with the program.

use super::matrix::{Matrix, Variant, loads};
use super::switches::Switches;
use crate::error::Result;

/// io_uring against SPDK on the same drives: the same cores, hugepages, depth and offsets; no
/// check, so that the paths themselves are compared; a sweep of sizes and depths.
pub fn paths(mut matrix: Matrix) -> Result<Matrix> {
    let base = Switches::default().with(&[("hugepages", "2m"), ("check", "none")])?;
    matrix.name = "paths".into();
    if matrix.loads.is_empty() {
        let sizes = ["4KiB", "128KiB", "1MiB"].map(str::to_owned);
        matrix.loads = loads(&sizes, &[1, 4, 16, 64], &None)?;
    }
    matrix.variants = vec![
        Variant { name: "uring".into(), from: None, switches: base.clone() },
        Variant {
            name: "spdk".into(),
            from: Some("uring".into()),
            switches: base.with(&[("backend", "spdk")])?,
        },
    ];
    Ok(matrix)
}

/// A variant: name, what it is compared to, and its switches.
type Line = (&'static str, &'static str, &'static [(&'static str, &'static str)]);

/// From a baseline (registered buffers, files and ring; 4 KiB pages; CRC checked; one worker) one
/// switch at a time.
const ARTICLE: [Line; 13] = [
    ("READ", "baseline", &[("regbufs", "off")]),
    ("no registered files", "baseline", &[("regfiles", "off")]),
    ("no registered ring", "baseline", &[("regring", "off")]),
    ("check touch", "baseline", &[("check", "touch")]),
    ("check none", "baseline", &[("check", "none")]),
    ("2 MiB pages", "baseline", &[("hugepages", "2m")]),
    ("2 MiB pages, READ", "2 MiB pages", &[("regbufs", "off")]),
    ("2 MiB pages, check none", "2 MiB pages", &[("check", "none")]),
    ("1 GiB pages", "baseline", &[("hugepages", "1g")]),
    ("spin", "baseline", &[("wait", "spin")]),
    ("iopoll", "spin", &[("iopoll", "on")]),
    ("sqpoll", "spin", &[("sqpoll", "on")]),
    ("spdk", "spin", &[("backend", "spdk"), ("hugepages", "2m")]),
];

/// The chain of experiments: one switch at a time. Without a fabric, threads sleep for
/// completions, so that CPU time per read is work and not polling; behind one, workers spin.
pub fn article(mut matrix: Matrix) -> Result<Matrix> {
    let local = matrix.fabric == "local";
    let wait = if local { "block" } else { "spin" };
    let base = Switches::default().with(&[("hugepages", "none"), ("wait", wait)])?;
    matrix.name = "article".into();
    if matrix.loads.is_empty() {
        matrix.loads = loads(&["1028KiB".to_owned()], &[16], &None)?;
    }
    matrix.variants = vec![Variant { name: "baseline".into(), from: None, switches: base }];
    for (name, from, changes) in ARTICLE {
        if name == "spin" && !local {
            continue;
        }
        let from = if from == "spin" && !local { "baseline" } else { from };
        let start = &matrix.variant(from).expect("the list is in order").switches;
        let switches = start.with(changes)?;
        matrix.variants.push(Variant { name: name.into(), from: Some(from.into()), switches });
    }
    let (mut workers, mut from) = (2, "baseline".to_owned());
    while workers <= matrix.cores.len() {
        let name = format!("{workers} workers");
        let start = &matrix.variants[0].switches;
        let switches = start.with(&[("workers", &workers.to_string())])?;
        matrix.variants.push(Variant { name: name.clone(), from: Some(from), switches });
        (workers, from) = (workers * 2, name);
    }
    matrix.may_leave_out = true;
    Ok(matrix)
}
