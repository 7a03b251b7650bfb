//! VFIO: its modules and what they allow (Documentation/driver-api/vfio.rst of the kernel).

use serde::Serialize;

use super::Root;
use super::fact::{Fact, why};
use crate::error::{Error, Kind};

/// Modules of VFIO, by the place that shows them to be there, loaded or built in. `vfio` itself
/// comes with vfio-pci; where it is built in, /sys/module need not show it.
pub const MODULES: [(&str, &str); 2] = [
    ("vfio-pci", "/sys/bus/pci/drivers/vfio-pci"),
    ("vfio_iommu_type1", "/sys/module/vfio_iommu_type1"),
];

/// The parameter that lets VFIO take devices without an IOMMU.
pub const NOIOMMU: &str = "/sys/module/vfio/parameters/enable_unsafe_noiommu_mode";

/// Where a module is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Presence {
    /// In the kernel.
    Loaded,
    /// On the disk, for modprobe to load.
    Loadable,
    /// Nowhere.
    Missing,
}

/// A module.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Module {
    /// Its name.
    pub name: &'static str,
    /// Where it is, with the file that says so.
    pub presence: Fact<Presence>,
}

/// VFIO on this machine.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Vfio {
    /// IOMMU groups that the kernel has; 0: the IOMMU is off.
    pub groups: Fact<u64>,
    /// `Y` where VFIO would take devices without an IOMMU; absent where the kernel cannot.
    pub noiommu: Fact<String>,
    /// Its modules.
    pub modules: Vec<Module>,
    /// Most mappings of one container.
    pub entry_limit: Fact<u64>,
}

impl Vfio {
    /// Reads it below `root`, whose kernel has this release.
    pub fn read(root: &Root, release: &Fact<String>) -> Self {
        let folder = "/sys/kernel/iommu_groups";
        let groups = match root.list(folder) {
            Ok(names) => Fact::known(folder, names.len() as u64),
            // A kernel without IOMMU support has no such folder.
            Err(e) if !root.exists(folder) && root.exists("/sys/kernel") => {
                log::debug!("{}", e.report());
                Fact::known(folder, 0)
            }
            Err(e) => Fact { path: folder.to_owned(), value: Err(why(&e)) },
        };
        let module = |(name, place): (&'static str, &str)| Module {
            name,
            presence: presence(root, name, place, release),
        };
        Self {
            groups,
            noiommu: Fact::text(root, NOIOMMU),
            modules: MODULES.into_iter().map(module).collect(),
            entry_limit: Fact::number(
                root,
                "/sys/module/vfio_iommu_type1/parameters/dma_entry_limit",
            ),
        }
    }
}

/// The error of a module that is not there and cannot be loaded, for this reason, on a kernel of
/// this release, under this lockdown if any is in force.
pub fn cannot_load(module: &str, why: &str, release: &str, locked: Option<&str>) -> Error {
    let (what, remedy) = match locked {
        Some(state) => (
            format!("the module {module} cannot be loaded under kernel lockdown ({state}): {why}"),
            format!(
                "lockdown takes only modules signed with a key that the kernel trusts: install the \
                 distribution's own (Debian: apt install linux-image-{release}), or enrol your \
                 key: mokutil --import KEY.der"
            ),
        ),
        None => (
            format!("the module {module} is not loaded and cannot be: {why}"),
            format!(
                "install the modules of kernel {release} (Debian: apt install \
                 linux-image-{release}), then modprobe {module}"
            ),
        ),
    };
    Error::new(Kind::Unsupported, what).remedy(remedy)
}

fn presence(root: &Root, name: &str, place: &str, release: &Fact<String>) -> Fact<Presence> {
    if root.exists(place) {
        return Fact::known(place, Presence::Loaded);
    }
    let Some(release) = release.get() else {
        return Fact::failed(place, "the kernel's release is not known");
    };
    let folder = format!("/lib/modules/{release}");
    // modules.dep has a line "kernel/drivers/vfio/pci/vfio-pci.ko.xz: ..." for each module, with
    // the name spelled with hyphens or underscores.
    let find = |file: &str| {
        let same = |path: &str| {
            let name_of = path.rsplit('/').next().unwrap_or_default();
            let name_of = name_of.split(".ko").next().unwrap_or_default();
            name_of.replace('_', "-") == name.replace('_', "-")
        };
        Fact::parse(root, format!("{folder}/{file}"), |text| {
            let mut paths = text.lines().filter_map(|line| line.split(':').next());
            Some(paths.any(same))
        })
    };
    // Built in, so that it needs no loading, though it shows in no other place until it is used.
    let builtin = find("modules.builtin");
    if builtin.copied() == Some(true) {
        return Fact::known(builtin.path, Presence::Loaded);
    }
    find("modules.dep")
        .and_then(|found| Some(if found { Presence::Loadable } else { Presence::Missing }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_are_loaded_loadable_or_missing() {
        let dir = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        let root = Root::at(dir.path());
        let release = Fact::known("/proc/sys/kernel/osrelease", "6.1.0".to_owned());
        let look = || {
            let vfio = Vfio::read(&root, &release);
            (vfio.modules[0].presence.copied(), vfio.modules[1].presence.copied(), vfio.groups)
        };
        put("sys/kernel/uevent_seqnum", "1");
        let (pci, type1, groups) = look();
        assert_eq!((pci, type1, groups.copied()), (None, None, Some(0)));
        put("lib/modules/6.1.0/modules.dep", "kernel/vfio/pci/vfio-pci.ko.xz: kernel/x.ko\n");
        let (pci, type1, _) = look();
        assert_eq!((pci, type1), (Some(Presence::Loadable), Some(Presence::Missing)));
        put("lib/modules/6.1.0/modules.builtin", "kernel/vfio/vfio_iommu_type1.ko\n");
        put("sys/bus/pci/drivers/vfio-pci/bind", "");
        let (pci, type1, _) = look();
        assert_eq!((pci, type1), (Some(Presence::Loaded), Some(Presence::Loaded)));
    }
}
