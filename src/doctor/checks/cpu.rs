//! How deep CPUs sleep, how fast they run, and what slows them down.

use super::Family;
use crate::doctor::case::{Case, alike};
use crate::doctor::check::Check;
use crate::doctor::ruling::{Ruling, do_it, run};
use crate::host::cpu::{Cpu, IdleState, SHALLOW_US};
use crate::host::fact::Fact;
use crate::units::format_nanos;

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "cpu-cstates",
        family: Family::Cpu,
        why: "A core that waits for a completion falls asleep, and each wake-up adds its latency: \
              286 K reads/s became 523 K without deep states.",
        rule: cstates,
    },
    Check {
        id: "cpu-governor",
        family: Family::Cpu,
        why: "A governor that follows the load keeps a core slow that waits between reads.",
        rule: governor,
    },
    Check {
        id: "cpu-preference",
        family: Family::Cpu,
        why: "A processor that governs itself holds back as far as this hint says.",
        rule: preference,
    },
    Check {
        id: "cpu-limit",
        family: Family::Cpu,
        why: "A limit on the frequency slows every core down, whatever the governor is.",
        rule: limit,
    },
    Check {
        id: "cpu-turbo",
        family: Family::Cpu,
        why: "Without turbo the few busy cores of a server do not use what the idle ones leave.",
        rule: turbo,
    },
    Check {
        id: "cpu-throttling",
        family: Family::Cpu,
        why: "A processor that is too hot runs slower than any setting says.",
        rule: throttling,
    },
    Check {
        id: "cpu-timer",
        family: Family::Cpu,
        why: "Without ARAT the timer of a core stops in deep sleep, and another has to wake it.",
        rule: timer,
    },
    Check {
        id: "cpu-crc",
        family: Family::Cpu,
        why: "The CRC-64 of each payload is computed by carry-less multiplication, four times as \
              wide with AVX-512.",
        rule: crc,
    },
    Check {
        id: "cpu-steal",
        family: Family::Cpu,
        why: "Time that a hypervisor gives to others is missing in every latency.",
        rule: steal,
    },
    Check {
        id: "clock-source",
        family: Family::Cpu,
        why: "Each read is stamped several times; a clock that is a device takes 1 us each time.",
        rule: clock,
    },
];

fn cstates(case: &Case) -> Ruling {
    let mut ruling = Ruling::new();
    let cpus = case.worker_cpus();
    let uptime = case.machine.kernel.uptime.copied();
    // CPUs whose deepest state is the same are told as one.
    let mut groups: Vec<(&Cpu, &IdleState, usize)> = Vec::new();
    for cpu in &cpus {
        let Some(states) = ruling.read(&cpu.idle) else { continue };
        let entered = states.iter().filter(|state| !state.disabled);
        let Some(deepest) = entered.max_by_key(|state| state.latency_us) else { continue };
        match groups.iter_mut().find(|(_, other, _)| {
            (other.index, other.latency_us) == (deepest.index, deepest.latency_us)
        }) {
            Some(group) => {
                // The CPU that slept most in it speaks for all.
                if deepest.time_us > group.1.time_us {
                    (group.0, group.1) = (cpu, deepest);
                }
                group.2 += 1;
            }
            None => groups.push((cpu, deepest, 1)),
        }
    }
    for (cpu, state, count) in groups {
        let file = format!(
            "/sys/devices/system/cpu/cpu{}/cpuidle/state{}/latency",
            cpu.number, state.index
        );
        let latency = format_nanos(state.latency_us * 1000);
        let share = uptime.map(|s| state.time_us as f64 / 1e4 / s.max(1.0)).unwrap_or(0.0);
        let value = format!(
            "{} us ({}: entered {} times, {share:.0} % of the time since boot)",
            state.latency_us, state.name, state.usage
        );
        if !state.is_deep() {
            ruling.fine(file, value);
            continue;
        }
        let what = format!(
            "{count} of {} CPUs may sleep in {}, which takes {latency} to leave; {SHALLOW_US}us is \
             what a drive's latency hides",
            cpus.len(),
            state.name
        );
        let mends = vec![
            run(format!("cpupower idle-set --disable-by-latency {SHALLOW_US}")),
            do_it("for good, at boot: intel_idle.max_cstate=1 processor.max_cstate=1"),
        ];
        // 523 K to 286 K reads/s with states of hundreds of microseconds.
        let lost = if state.latency_us > 100 { 0.45 } else { 0.15 };
        ruling.loses(lost, file, value, what, mends);
    }
    ruling
}

fn governor(case: &Case) -> Ruling {
    let mut ruling = Ruling::new();
    for (cpus, fact) in alike(&case.worker_cpus(), |cpu| &cpu.governor) {
        let Some(governor) = ruling.read(fact) else { continue };
        let value = format!("{governor} (CPUs {cpus})");
        if governor == "performance" {
            ruling.fine(&fact.path, value);
            continue;
        }
        // With these drivers "powersave" follows the load, with others it is the lowest frequency.
        let drivers = case.worker_cpus();
        let driver = drivers.iter().find(|cpu| cpu.governor.path == fact.path);
        let driver = driver.and_then(|cpu| cpu.driver.as_deref()).unwrap_or("an unknown driver");
        let follows = matches!(driver, "intel_pstate" | "amd-pstate-epp" | "amd_pstate_epp");
        let lowest = governor == "powersave" && !follows;
        let what = match lowest {
            true => format!("CPUs {cpus} run at their lowest frequency ({governor} of {driver})"),
            false => format!("CPUs {cpus} follow the load ({governor} of {driver})"),
        };
        let mends = vec![run("cpupower frequency-set -g performance")];
        ruling.loses(if lowest { 0.4 } else { 0.1 }, &fact.path, value, what, mends);
    }
    ruling
}

fn preference(case: &Case) -> Ruling {
    let mut ruling = Ruling::new();
    for (cpus, fact) in alike(&case.worker_cpus(), |cpu| &cpu.preference) {
        let Some(preference) = ruling.read(fact) else { continue };
        let value = format!("{preference} (CPUs {cpus})");
        let lost = match preference.as_str() {
            "power" => 0.3,
            "balance_power" => 0.1,
            _ => {
                ruling.fine(&fact.path, value);
                continue;
            }
        };
        let what = format!("CPUs {cpus} prefer to save power ({preference})");
        let mends = vec![run(
            "for f in /sys/devices/system/cpu/cpu*/cpufreq/energy_performance_preference; do echo \
             performance > $f; done",
        )];
        ruling.loses(lost, &fact.path, value, what, mends);
    }
    ruling
}

fn limit(case: &Case) -> Ruling {
    let mut ruling = Ruling::new();
    let cpus = case.worker_cpus();
    for (list, fact) in alike(&cpus, |cpu| &cpu.limit_khz) {
        let Some(limit) = ruling.read(fact).copied() else { continue };
        let Some(cpu) = cpus.iter().find(|cpu| cpu.limit_khz.path == fact.path) else { continue };
        let Some(best) = ruling.read(&cpu.best_khz).copied() else { continue };
        let value = format!("{} MHz of {} (CPUs {list})", limit / 1000, best / 1000);
        if limit >= best {
            ruling.fine(&fact.path, value);
            continue;
        }
        let what = format!("CPUs {list} may run at {} MHz of {}", limit / 1000, best / 1000);
        let mends = vec![run(format!("cpupower frequency-set --max {best}"))];
        ruling.loses(1.0 - limit as f64 / best as f64, &fact.path, value, what, mends);
    }
    ruling
}

fn turbo(case: &Case) -> Ruling {
    let mut ruling = Ruling::new();
    let cpus = &case.machine.cpus;
    for (fact, off, command) in [(&cpus.no_turbo, 1, "echo 0"), (&cpus.boost, 0, "echo 1")] {
        match ruling.read(fact) {
            Some(value) if *value == off => {
                let mends = vec![run(format!("{command} > {}", fact.path))];
                ruling.loses(0.15, &fact.path, value, "turbo is switched off", mends);
            }
            Some(value) => ruling.fine(&fact.path, value),
            None => {}
        }
    }
    ruling
}

/// Throttling events in an hour that are no longer a hot minute now and then.
const HOT: f64 = 100.0;

fn throttling(case: &Case) -> Ruling {
    let mut ruling = Ruling::new();
    let hours = case.machine.kernel.uptime.copied().unwrap_or(3600.0).max(3600.0) / 3600.0;
    let mut worst: Option<(&Fact<u64>, u64)> = None;
    for cpu in case.worker_cpus() {
        for fact in [&cpu.core_throttles, &cpu.package_throttles] {
            let Some(count) = ruling.read(fact).copied() else { continue };
            if worst.is_none_or(|(_, most)| count > most) {
                worst = Some((fact, count));
            }
        }
    }
    match worst {
        Some((fact, 0)) => ruling.fine(&fact.path, 0),
        Some((fact, count)) => {
            let rate = count as f64 / hours;
            let what = format!("slowed down for heat {count} times since boot, {rate:.1} an hour");
            let mends = vec![do_it("check fans, air flow and the firmware's power limits")];
            ruling.loses(if rate >= HOT { 0.3 } else { 0.05 }, &fact.path, count, what, mends);
        }
        None => {}
    }
    ruling
}

fn timer(case: &Case) -> Ruling {
    let cpus = case.worker_cpus();
    let deep = |cpu: &&Cpu| cpu.idle.get().is_some_and(|s| s.iter().any(IdleState::is_deep));
    let mut ruling = Ruling::new();
    let fact = &case.machine.cpus.flags;
    let Some(flags) = ruling.read(fact) else { return ruling };
    if flags.contains("arat") {
        ruling.fine(&fact.path, "arat");
    } else if cpus.iter().any(deep) {
        let sleep = if flags.contains("monitor") { "mwait" } else { "no mwait" };
        let what = format!("the CPU has no ARAT ({sleep}), and may sleep deeply");
        let mends = vec![do_it("limit the idle states: see cpu-cstates")];
        ruling.loses(0.05, &fact.path, "no arat", what, mends);
    } else {
        return Ruling::skip("no ARAT, and no deep idle state that would need it");
    }
    ruling
}

fn crc(case: &Case) -> Ruling {
    let mut ruling = Ruling::new();
    let fact = &case.machine.cpus.flags;
    let Some(flags) = ruling.read(fact) else { return ruling };
    let has = |flag: &str| flags.contains(flag);
    if has("vpclmulqdq") && has("avx512f") {
        ruling.fine(&fact.path, "vpclmulqdq avx512f");
    } else if has("pclmulqdq") {
        let what = "the CPU has no VPCLMULQDQ with AVX-512: the CRC runs on 128 bits at a time";
        let mends = vec![do_it("give the check more cores; doctor's ceiling has what one does")];
        ruling.loses(0.1, &fact.path, "pclmulqdq, no avx512f with vpclmulqdq", what, mends);
    } else {
        let what = "the CPU has no carry-less multiplication: the CRC runs on tables";
        let mends = vec![do_it("use --check none, or let a guest have the host's CPU model")];
        ruling.loses(0.5, &fact.path, "no pclmulqdq", what, mends);
    }
    ruling
}

fn steal(case: &Case) -> Ruling {
    let mut ruling = Ruling::new();
    let fact = &case.machine.platform.steal;
    let Some((stolen, all)) = ruling.read(fact).copied() else { return ruling };
    let share = stolen as f64 / all.max(1) as f64;
    let value = format!("steal {stolen} of {all} jiffies ({:.1} %)", share * 100.0);
    if share < 0.01 {
        ruling.fine(&fact.path, value);
        return ruling;
    }
    let what = format!("{:.0} % of this guest's time went to others since boot", share * 100.0);
    let mends = vec![do_it("pin the guest's CPUs on its host, or measure elsewhere")];
    // A tenth is enough to make figures unusable.
    ruling.loses(
        if share >= 0.1 { share.max(0.25) } else { share },
        &fact.path,
        value,
        what,
        mends,
    );
    ruling
}

fn clock(case: &Case) -> Ruling {
    let mut ruling = Ruling::new();
    let fact = &case.machine.platform.clock;
    let Some(clock) = ruling.read(fact) else { return ruling };
    let lost = match clock.as_str() {
        "hpet" | "acpi_pm" | "refined-jiffies" | "jiffies" => 0.3,
        "tsc" | "kvm-clock" | "hyperv_clocksource_tsc_page" | "arch_sys_counter" => {
            ruling.fine(&fact.path, clock);
            return ruling;
        }
        _ => 0.05,
    };
    let others = case.machine.platform.clocks.as_deref().unwrap_or_default();
    let what = format!("the clock is {clock}, which is read by an access to a device or a trap");
    let mend = match others.split_whitespace().any(|name| name == "tsc") {
        true => run(format!("echo tsc > {}", fact.path)),
        false => do_it("dmesg | grep -i tsc says why the TSC was given up; firmware updates help"),
    };
    ruling.loses(lost, &fact.path, clock, what, vec![mend]);
    ruling
}
