#!/bin/bash
# Without an IOMMU no drive is moved, and the message says how to switch it on.
# vm: --no-iommu
# shellcheck disable=SC2154 # value is set by find_*
set -euo pipefail
# shellcheck source=tests/guest/device.bash
. "$(dirname "$0")/device.bash"

iommu_off() {
    refused bind mill0
    says "the IOMMU is off"
    says "intel_iommu=on|firmware"
    is_home mill0 "$pci"
}

noiommu_mode() {
    local mode=/sys/module/vfio/parameters/enable_unsafe_noiommu_mode
    modprobe vfio enable_unsafe_noiommu_mode=1 2>"$work/out" || true
    if [[ ! -e $mode || $(<$mode) != Y ]]; then
        skip "noiommu_mode: this kernel has no CONFIG_VFIO_NOIOMMU"
        return
    fi
    refused bind mill0
    says "no-IOMMU mode"
    is_home mill0 "$pci"
}

find_pci mill0
pci=$value
cases iommu_off noiommu_mode
passed
