//! Where interrupts land.

use super::Family;
use crate::doctor::case::Case;
use crate::doctor::check::Check;
use crate::doctor::ruling::{Ruling, do_it, run};
use crate::host::fact::list_text;
use crate::host::interrupts::Interrupt;

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "irq-balance",
        family: Family::Irq,
        why: "irqbalance moves the NIC's interrupts from core to core, workers' cores among them: \
              550 K reads/s against 523 K with it off.",
        rule: balance,
    },
    Check {
        id: "irq-workers",
        family: Family::Irq,
        why: "Every interrupt of another device stops the worker on its core.",
        rule: workers,
    },
    Check {
        id: "irq-queues",
        family: Family::Irq,
        why: "CPUs that share a queue of the drive wait for each other, and for one interrupt.",
        rule: queues,
    },
    Check {
        id: "irq-map",
        family: Family::Irq,
        why: "A completion whose interrupt goes to another core has to be handed over.",
        rule: map,
    },
];

fn balance(case: &Case) -> Ruling {
    let mut ruling = Ruling::new();
    let process = &case.machine.process;
    match process.irqbalance.first() {
        Some(pid) => {
            let what = format!("irqbalance is running (PID {pid})");
            let mends = vec![run("systemctl disable --now irqbalance")];
            ruling.loses(0.05, format!("/proc/{pid}/comm"), "irqbalance", what, mends);
        }
        // A process list that cannot be read has not even this process in it.
        None if process.user.why_unread().is_some() => ruling.note(&process.user),
        None if process.user.get().is_none() => ruling.unread("could not read /proc"),
        None => ruling.fine("/proc/*/comm", "no irqbalance"),
    }
    ruling
}

/// Foreign interrupts per second that a worker feels.
const FELT: f64 = 100.0;

fn workers(case: &Case) -> Ruling {
    if case.job.cores.is_empty() {
        return Ruling::skip("no --cores given");
    }
    let mut ruling = Ruling::new();
    let fact = &case.machine.interrupts;
    let uptime = ruling.read(&case.machine.kernel.uptime).copied();
    let (Some(table), Some(uptime)) = (ruling.read(fact), uptime) else { return ruling };
    // The job's own drives and NICs are meant to interrupt them.
    let own: Vec<u32> = case
        .all_functions()
        .iter()
        .flat_map(|(_, function)| &function.interrupts)
        .map(|interrupt| interrupt.number)
        .collect();
    let mut worst: Option<(usize, u64, &str)> = None;
    for cpu in &case.job.cores {
        let Some(column) = table.cpus.iter().position(|c| c == cpu) else { continue };
        for (number, (counts, name)) in &table.numbered {
            let count = counts.get(column).copied().unwrap_or(0);
            if !own.contains(number) && worst.is_none_or(|(_, most, _)| count > most) {
                worst = Some((*cpu, count, name));
            }
        }
    }
    let Some((cpu, count, name)) = worst else { return Ruling::skip("no other device interrupts") };
    let rate = count as f64 / uptime.max(1.0);
    let name = name.split_whitespace().last().unwrap_or(name);
    let value = format!("{name}: {count} on CPU {cpu} since boot, {rate:.0}/s");
    if rate < FELT {
        ruling.fine(&fact.path, value);
        return ruling;
    }
    let what = format!("{name} interrupts the worker on CPU {cpu} {rate:.0} times/s");
    let others = list_text(&case.job.cores);
    let mends = vec![do_it(format!(
        "move it: echo LIST > /proc/irq/N/smp_affinity_list with CPUs other than {others}; or \
         choose other cores"
    ))];
    ruling.loses(if rate >= 100.0 * FELT { 0.25 } else { 0.05 }, &fact.path, value, what, mends);
    ruling
}

fn queues(case: &Case) -> Ruling {
    if !case.job.uring {
        return Ruling::skip("only for --for uring");
    }
    let mut ruling = Ruling::new();
    let online = &case.machine.cpus.online;
    let Some(cpus) = ruling.read(online).map(Vec::len) else { return ruling };
    for drive in &case.drives {
        let Some(queue) = &drive.queue else { continue };
        let Some(count) = ruling.read(&queue.queues).copied() else { continue };
        let value = format!("{count} queues for {cpus} CPUs");
        let workers = case.job.cores.len() as u64;
        let what = format!("{} has {count} queues for {cpus} CPUs", drive.title());
        let mends = vec![do_it(
            "use no more workers than queues; a guest gets more by the device's own option \
             (QEMU: max_ioqpairs=)",
        )];
        if count >= cpus as u64 {
            ruling.fine(&queue.queues.path, value);
        } else if (count == 1 && cpus > 1) || workers > count {
            ruling.loses(0.3, &queue.queues.path, value, what, mends);
        } else {
            ruling.loses(0.03, &queue.queues.path, value, what, mends);
        }
    }
    ruling
}

fn map(case: &Case) -> Ruling {
    if case.job.cores.is_empty() || !case.job.uring {
        return Ruling::skip("only for --for uring with --cores");
    }
    let mut ruling = Ruling::new();
    for (drive, function) in case.functions() {
        let queues = function.interrupts.iter().filter(|i| is_queue(i));
        for queue in queues {
            let affinity = ruling.read(&queue.affinity);
            let Some(affinity) = affinity else { continue };
            let served: Vec<usize> =
                case.job.cores.iter().copied().filter(|cpu| affinity.contains(cpu)).collect();
            if served.is_empty() {
                continue;
            }
            let Some(effective) = ruling.read(&queue.effective) else { continue };
            let value = format!("{} goes to CPU {}", queue.name, list_text(effective));
            let away: Vec<usize> =
                served.into_iter().filter(|cpu| !effective.contains(cpu)).collect();
            if away.is_empty() {
                ruling.fine(&queue.effective.path, value);
                continue;
            }
            let what = format!(
                "completions of {} for CPU {} interrupt CPU {} ({})",
                drive.title(),
                list_text(&away),
                list_text(effective),
                queue.name
            );
            let mends = vec![do_it(
                "the kernel manages these interrupts, so writing their affinity fails: choose \
                 --cores that are first in a queue's smp_affinity_list",
            )];
            ruling.loses(0.05, &queue.effective.path, value, what, mends);
        }
    }
    ruling
}

/// `nvme0q1` and up; q0 is the admin queue.
fn is_queue(interrupt: &Interrupt) -> bool {
    let Some((head, number)) = interrupt.name.rsplit_once('q') else { return false };
    head.starts_with("nvme") && number.parse::<u32>().is_ok_and(|number| number > 0)
}
