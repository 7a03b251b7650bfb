#!/bin/bash
# The userspace path on emulated NVMe drives behind a real IOMMU: the contract, resets and a pulled
# drive under load, a bad sector. Binds by plain sysfs.
# vm: --drives 3 --drive-size 32M --hugepages 192 --inject 2=tests/guest/bad-sector.blkdebug --timeout 600
set -euo pipefail
source "$(dirname "$0")/lib.bash"

program=${MILLRACE_SPDK_TEST:-$(ls -t target/*/deps/spdk_pci-* 2>/dev/null | grep -v '\.d$' | head -1)}
[[ -x $program ]] || fail "no test program: cargo test --features spdk --test spdk_pci --no-run"

# bind SERIAL: hands the drive to vfio-pci, prints its PCI address.
bind() {
    local address
    address=$(basename "$(readlink -f "/sys/block/$(disk_of "$1")/device/device")")
    echo "$address" >"/sys/bus/pci/devices/$address/driver/unbind"
    echo vfio-pci >"/sys/bus/pci/devices/$address/driver_override"
    echo "$address" >/sys/bus/pci/drivers_probe
    [[ $(readlink "/sys/bus/pci/devices/$address/driver") == */vfio-pci ]] || fail "bind $1"
    echo "$address"
}

for module in vfio vfio_iommu_type1 vfio-pci; do modprobe "$module" 2>/dev/null || true; done
first=$(bind mill0) second=$(bind mill1) bad=$(bind mill2)
ok "bound $first $second $bad"

# What DPDK is known to leave behind.
files() { find /dev/hugepages /var/run/dpdk -mindepth 1 2>/dev/null || true; }
before=$(files)

export RUST_LOG=info
MILLRACE_SPDK_BAD=$bad "$program" --nocapture a_bad_sector || fail "bad sector"
ok "bad sector"
pull="exec scripts/vm-qmp --wait DEVICE_DELETED '{\"execute\":\"device_del\",\"arguments\":{\"id\":\"nvme1\"}}'"
MILLRACE_SPDK_DRIVES=$first,$second MILLRACE_SPDK_PULL=$pull "$program" --nocapture pci_drives ||
    fail "reset and removal"
ok "resets and removal under load"
[[ $(files) == "$before" ]] || fail "files are left: $(files)"
ok "nothing is left behind"
passed
