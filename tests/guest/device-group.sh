#!/bin/bash
# Two drives that share an IOMMU group move together or not at all.
# Two functions of one PCI device share a group.
# vm: --drives 0 --qemu -drive --qemu if=none,id=g0,driver=null-co,size=256M,read-zeroes=on --qemu -drive --qemu if=none,id=g1,driver=null-co,size=256M,read-zeroes=on --qemu -device --qemu nvme,drive=g0,serial=group0,bus=pcie.0,addr=10.0,multifunction=on --qemu -device --qemu nvme,drive=g1,serial=group1,bus=pcie.0,addr=10.1
# shellcheck disable=SC2154 # value is set by find_*
set -euo pipefail
# shellcheck source=tests/guest/device.bash
. "$(dirname "$0")/device.bash"

group_not_viable() {
    local pci other
    wait_for 10 find_disk group1 || fail "no drive group1"
    find_pci group0
    pci=$value
    find_pci group1
    other=$value
    find_group "$pci"
    local group=$value
    find_group "$other"
    [[ $group == "$value" ]] || fail "the drives do not share a group"
    refused bind group0
    says "IOMMU group [0-9]+ is not viable: its member $other \(class 010802\) has the driver nvme"
    says "millrace device bind $pci $other"
    is_home group0 "$pci"
    succeeds list
    says "shares its IOMMU group with $other"
    succeeds bind group0 group1
    is_away "$pci"
    is_away "$other"
    succeeds restore
    is_home group0 "$pci"
    is_home group1 "$other"
}

cases group_not_viable
passed
