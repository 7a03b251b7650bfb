//! What this process may do: user, capabilities, seccomp, limits (proc_pid_status(5),
//! proc_pid_limits(5)).

use serde::{Serialize, Serializer};

use super::Root;
use super::fact::Fact;

/// CAP_IPC_LOCK: memory may be locked beyond the limit (capabilities(7)).
const CAP_IPC_LOCK: u32 = 14;

/// A resource limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// At most so much.
    Most(u64),
    /// No limit.
    None,
}

impl Limit {
    /// True where `need` is within it.
    pub fn allows(self, need: u64) -> bool {
        match self {
            Limit::Most(most) => need <= most,
            Limit::None => true,
        }
    }
}

impl Serialize for Limit {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Limit::Most(most) => serializer.serialize_u64(*most),
            Limit::None => serializer.serialize_str("unlimited"),
        }
    }
}

/// This process.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Process {
    /// Effective user id.
    pub user: Fact<u64>,
    /// Effective capabilities, a bit each.
    pub capabilities: Fact<u64>,
    /// 0: no seccomp; 2: a filter.
    pub seccomp: Fact<u64>,
    /// Bytes that it may lock.
    pub locked: Fact<Limit>,
    /// Files that it may have open.
    pub files: Fact<Limit>,
    /// Mounts that it sees.
    pub mounts: Fact<u64>,
    /// Processes named irqbalance, by PID.
    pub irqbalance: Vec<u32>,
    /// What contains this process, such as `docker`; `None` where nothing is known to.
    pub container: Option<String>,
}

impl Process {
    /// Reads them below `root`.
    pub fn read(root: &Root) -> Self {
        let status = "/proc/self/status";
        let field = |name: &'static str, radix: u32, place: usize| {
            Fact::parse(root, status, move |text| {
                let line = text.lines().find_map(|line| line.strip_prefix(name))?;
                u64::from_str_radix(line.split_whitespace().nth(place)?, radix).ok()
            })
        };
        Self {
            user: field("Uid:", 10, 1),
            capabilities: field("CapEff:", 16, 0),
            seccomp: field("Seccomp:", 10, 0),
            locked: limit(root, "Max locked memory"),
            files: limit(root, "Max open files"),
            mounts: Fact::parse(root, "/proc/self/mountinfo", |text| {
                Some(text.lines().count() as u64)
            }),
            irqbalance: named(root, "irqbalance"),
            container: container(root),
        }
    }

    /// True where locked memory is not limited for this process.
    pub fn may_lock_all(&self) -> bool {
        let capable = self.capabilities.copied().is_some_and(|caps| caps >> CAP_IPC_LOCK & 1 == 1);
        capable || self.locked.copied() == Some(Limit::None)
    }
}

/// The soft limit of this name.
fn limit(root: &Root, name: &'static str) -> Fact<Limit> {
    Fact::parse(root, "/proc/self/limits", move |text| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        match line.split_whitespace().next()? {
            "unlimited" => Some(Limit::None),
            number => Some(Limit::Most(number.parse().ok()?)),
        }
    })
}

/// PIDs of the processes with this command name.
fn named(root: &Root, name: &str) -> Vec<u32> {
    let entries = root.list("/proc").unwrap_or_default();
    let pids = entries.iter().filter_map(|entry| entry.parse::<u32>().ok());
    pids.filter(|pid| root.read(format!("/proc/{pid}/comm")).is_ok_and(|c| c == name)).collect()
}

/// By the files that the runtimes put into a container, and by the name of its first control group.
fn container(root: &Root) -> Option<String> {
    for (file, name) in [("/.dockerenv", "docker"), ("/run/.containerenv", "podman")] {
        if root.exists(file) {
            return Some(name.to_owned());
        }
    }
    let groups = root.read("/proc/1/cgroup").ok()?;
    let known = ["kubepods", "docker", "lxc", "containerd", "libpod"];
    Some((*known.iter().find(|name| groups.contains(**name))?).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        put(
            "proc/self/status",
            "Uid:\t0\t1000\t0\t0\nCapEff:\t0000000000004000\nSeccomp:\t2\nSeccomp_filters:\t1\n",
        );
        put(
            "proc/self/limits",
            "Max open files            1024                 4096                 files     \n\
             Max locked memory         unlimited            unlimited            bytes     \n",
        );
        put("proc/77/comm", "irqbalance\n");
        put("proc/78/comm", "bash\n");
        put(".dockerenv", "");
        let process = Process::read(&Root::at(dir.path()));
        assert_eq!((process.user.copied(), process.seccomp.copied()), (Some(1000), Some(2)));
        assert_eq!(process.files.copied(), Some(Limit::Most(1024)));
        assert_eq!(process.locked.copied(), Some(Limit::None));
        assert!(process.may_lock_all());
        assert_eq!(process.irqbalance, [77]);
        assert_eq!(process.container.as_deref(), Some("docker"));
        assert!(Limit::Most(5).allows(5) && !Limit::Most(5).allows(6));
    }
}
