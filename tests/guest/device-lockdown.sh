#!/bin/bash
# Kernel lockdown does not keep a drive from being moved; where a module cannot be loaded, it is
# named as a possible reason.
# vm: --append lockdown=integrity
# shellcheck disable=SC2154 # value is set by find_*
set -euo pipefail
# shellcheck source=tests/guest/device.bash
. "$(dirname "$0")/device.bash"

lockdown() {
    mountpoint -q /sys/kernel/security || mount -t securityfs securityfs /sys/kernel/security
    grep -q '\[integrity\]\|\[confidentiality\]' /sys/kernel/security/lockdown ||
        fail "no lockdown"
    module_missing
    says "under kernel lockdown"
    succeeds bind mill0
    says "lockdown is in force"
    is_away "$pci"
    opens "$pci"
    succeeds restore
    is_home mill0 "$pci"
}

find_pci mill0
pci=$value
cases lockdown
passed
