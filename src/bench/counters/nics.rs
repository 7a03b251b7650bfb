//! What RDMA devices counted: Documentation of the kernel's rdma core,
//! /sys/class/infiniband/DEVICE/ports/PORT/hw_counters, whose names differ by driver.

use std::collections::BTreeMap;

use super::Totals;
use crate::host::Root;

/// Names by driver (mlx5, irdma, bnxt_re, rxe) of retransmissions.
const RETRIES: [&str; 9] = [
    "local_ack_timeout_err",
    "packet_seq_err",
    "out_of_sequence",
    "retry_exceeded_err",
    "retry_rnr_exceeded_err",
    "rcvd_seq_err",
    "completer_retry_err",
    "to_retransmits",
    "seq_err_naks_rcvd",
];

/// And of a receiver that was not ready.
const NOT_READY: [&str; 4] = ["rnr_nak_retry_err", "send_rnr_err", "rcvd_rnr_err", "rnr_naks_rcvd"];

#[derive(Default)]
pub(super) struct Nics {
    before: Option<BTreeMap<&'static str, u64>>,
}

impl Nics {
    pub(super) fn begin(&mut self, root: &Root) {
        self.before = read(root);
    }

    pub(super) fn end(&self, root: &Root, totals: &mut Totals) {
        for name in ["rdma_retries", "rdma_not_ready"] {
            let figure = match (&self.before, read(root)) {
                (Some(before), Some(after)) => match (before.get(name), after.get(name)) {
                    (Some(before), Some(after)) => Ok(after.saturating_sub(*before) as f64),
                    _ => Err("the driver of the RDMA device has no such counter".to_owned()),
                },
                _ => Err("there is no RDMA device".to_owned()),
            };
            totals.sums.insert(name, figure);
        }
    }
}

/// Sums over all devices and ports; `None` without a device.
fn read(root: &Root) -> Option<BTreeMap<&'static str, u64>> {
    const CLASS: &str = "/sys/class/infiniband";
    let devices = root.list(CLASS).ok().filter(|devices| !devices.is_empty())?;
    let mut sums = BTreeMap::new();
    for device in devices {
        for port in root.list(format!("{CLASS}/{device}/ports")).unwrap_or_default() {
            let folder = format!("{CLASS}/{device}/ports/{port}/hw_counters");
            for (name, files) in [("rdma_retries", &RETRIES[..]), ("rdma_not_ready", &NOT_READY)] {
                let read = |file| root.read_number(format!("{folder}/{file}")).ok();
                for value in files.iter().filter_map(read) {
                    *sums.entry(name).or_default() += value;
                }
            }
        }
    }
    Some(sums)
}
