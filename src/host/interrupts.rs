//! Interrupts: how many each CPU took, and where those of a device may go (/proc/interrupts,
//! /proc/irq; Documentation/core-api/irq/irq-affinity.rst of the kernel).

use std::collections::BTreeMap;

use serde::Serialize;

use super::Root;
use super::fact::Fact;
use super::pci::{self, Address};

/// The table of /proc/interrupts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Table {
    /// CPUs of the columns.
    pub cpus: Vec<usize>,
    /// Numbered rows: the count of each column, and the names at the end of the row.
    pub numbered: BTreeMap<u32, (Vec<u64>, String)>,
    /// Rows with a name, such as `TLB` and `LOC`.
    pub named: BTreeMap<String, Vec<u64>>,
}

impl Table {
    /// Reads it.
    pub fn read(root: &Root) -> Fact<Self> {
        Fact::parse(root, "/proc/interrupts", Self::parse)
    }

    /// Makes sense of the text; `None` where it has no header of CPUs.
    pub fn parse(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        let header = lines.next()?.split_whitespace();
        let cpus: Vec<usize> =
            header.map(|word| word.strip_prefix("CPU")?.parse().ok()).collect::<Option<_>>()?;
        if cpus.is_empty() {
            return None;
        }
        let mut table = Self { cpus, ..Self::default() };
        for line in lines {
            let Some((head, rest)) = line.split_once(':') else { continue };
            let mut words = rest.split_whitespace().peekable();
            let mut counts = Vec::with_capacity(table.cpus.len());
            while counts.len() < table.cpus.len() {
                let Some(count) = words.peek().and_then(|word| word.parse().ok()) else { break };
                counts.push(count);
                words.next();
            }
            // ERR and MIS have one figure for the machine.
            if counts.len() < table.cpus.len() {
                continue;
            }
            match head.trim().parse() {
                Ok(number) => {
                    let names = words.collect::<Vec<_>>().join(" ");
                    table.numbered.insert(number, (counts, names));
                }
                Err(_) => {
                    table.named.insert(head.trim().to_owned(), counts);
                }
            }
        }
        Some(table)
    }

    /// The count of a named row on one CPU.
    pub fn of_cpu(&self, row: &str, cpu: usize) -> Option<u64> {
        let column = self.cpus.iter().position(|c| *c == cpu)?;
        self.named.get(row)?.get(column).copied()
    }

    /// Device interrupts that one CPU took.
    pub fn devices_of_cpu(&self, cpu: usize) -> Option<u64> {
        let column = self.cpus.iter().position(|c| *c == cpu)?;
        Some(self.numbered.values().filter_map(|(counts, _)| counts.get(column)).sum())
    }
}

/// An interrupt of a device.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Interrupt {
    /// Its number.
    pub number: u32,
    /// What /proc/interrupts calls it: `nvme0q3`, `mlx5_comp0@pci:0000:17:00.0`.
    pub name: String,
    /// CPUs that it may go to.
    pub affinity: Fact<Vec<usize>>,
    /// CPU that it goes to.
    pub effective: Fact<Vec<usize>>,
}

/// The message interrupts of a PCI function, by number.
pub fn of_function(root: &Root, address: Address, table: &Fact<Table>) -> Vec<Interrupt> {
    let names = root.list(format!("{}/msi_irqs", pci::dir(address))).unwrap_or_default();
    let mut numbers: Vec<u32> = names.iter().filter_map(|name| name.parse().ok()).collect();
    numbers.sort_unstable();
    let interrupt = |number: u32| {
        let (_, name) = table.get()?.numbered.get(&number)?;
        Some(Interrupt {
            number,
            name: name.split_whitespace().last().unwrap_or_default().to_owned(),
            affinity: Fact::list(root, format!("/proc/irq/{number}/smp_affinity_list")),
            effective: Fact::list(root, format!("/proc/irq/{number}/effective_affinity_list")),
        })
    };
    numbers.into_iter().filter_map(interrupt).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "            CPU0       CPU2       \n\
        \x20 24:          1          7  IR-PCI-MSIX-0000:5e:00.0   1-edge      nvme0q1\n\
        \x20 30:          2          0  IO-APIC   4-edge      ttyS0\n\
        NMI:          0          0   Non-maskable interrupts\n\
        TLB:      31864      32338   TLB shootdowns\n\
        ERR:          0\n";

    #[test]
    fn the_table_is_read_by_column() {
        let table = Table::parse(TEXT).unwrap();
        assert_eq!(table.cpus, [0, 2]);
        assert_eq!(table.of_cpu("TLB", 2), Some(32338));
        assert_eq!(table.of_cpu("TLB", 1), None);
        assert_eq!(table.devices_of_cpu(0), Some(3));
        assert!(!table.named.contains_key("ERR"));
        assert_eq!(Table::parse("nothing of the kind"), None);
        assert_eq!(Table::parse(""), None);
    }

    #[test]
    fn interrupts_of_a_device_have_names_and_affinity() {
        let dir = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        put("proc/interrupts", TEXT);
        put("sys/bus/pci/devices/0000:5e:00.0/msi_irqs/24", "msix\n");
        put("sys/bus/pci/devices/0000:5e:00.0/msi_irqs/25", "msix\n");
        put("proc/irq/24/smp_affinity_list", "0-3\n");
        let root = Root::at(dir.path());
        let table = Table::read(&root);
        let found = of_function(&root, "5e:00.0".parse().unwrap(), &table);
        assert_eq!(found.len(), 1, "25 is not in use: {found:?}");
        assert_eq!((found[0].number, found[0].name.as_str()), (24, "nvme0q1"));
        assert_eq!(found[0].affinity.get(), Some(&vec![0, 1, 2, 3]));
    }
}
