# shellcheck shell=bash disable=SC2034
# What tests/guest/device-*.sh are made of: running `millrace device`, and looking at a drive from
# outside. Source it. Arguments of such a test choose some of its cases.
#
# Starting a program takes an emulated CPU a tenth of a second, and these tests would consist of
# little else; so what bash can do by itself, it does here. A function that finds something sets
# `value` to it, since a substitution would be a process, too.

# shellcheck source=tests/guest/lib.bash
. "$(dirname "$0")/lib.bash"

here=$(dirname "$(readlink -f "$0")")
work=$out
journal=$work/journal.json
chosen=("$@")
# Only a debug build looks at MILLRACE_CRASH_AFTER, which aborts it after a step.
debug_millrace=${MILLRACE_DEBUG_BIN:-$here/../../target/debug/millrace}

fail() {
    echo "FAILED: $*"
    echo "--- output of the last command:"
    cat "$work/out" || true
    echo "--- drives:"
    "$millrace" device list --journal "$journal" || true
    dmesg | tail -n 20
    exit 1
}

# cases NAME...: runs these, or those of the test's own arguments. A case is a function.
cases() {
    local one start
    if ((${#chosen[@]} > 0)); then set -- "${chosen[@]}"; fi
    for one in "$@"; do
        declare -F "$one" >/dev/null || fail "no such case: $one"
        start=$SECONDS
        "$one"
        echo "-- $one: $((SECONDS - start)) s"
    done
}

# device COMMAND ARGUMENT...: runs millrace device; its output is in $work/out, its code in $code.
device() {
    local command=$1
    shift
    code=0
    "$millrace" device "$command" --journal "$journal" "$@" >"$work/out" 2>&1 || code=$?
}

# says PATTERN: whether a line of the output matches the extended regular expression.
says() {
    local line
    while IFS= read -r line; do
        if [[ $line =~ $1 ]]; then return; fi
    done <"$work/out"
    fail "the output lacks \"$1\""
}
succeeds() {
    device "$@"
    ((code == 0)) || fail "code $code from: device $*"
}
refused() {
    device "$@"
    ((code != 0)) || fail "not refused: device $*"
    says "to mend it"
}
# crashes STEP COMMAND ARGUMENT...
crashes() {
    local step=$1 millrace=$debug_millrace
    shift
    [[ -x $millrace ]] || fail "no debug build at $millrace"
    MILLRACE_CRASH_AFTER=$step device "$@" 2>/dev/null
    ((code == 134)) || fail "no crash after $step, code $code"
}

# find_disk SERIAL: its block device's name.
find_disk() {
    local file
    for file in /sys/block/nvme*/device/serial; do
        # It may go away at any moment.
        { read -r value <"$file"; } 2>/dev/null || continue
        if [[ $value == "$1" ]]; then
            file=${file%/device/serial}
            value=${file##*/}
            return 0
        fi
    done
    return 1
}
# find_end LINK: the last part of what it points to.
find_end() {
    value=none
    [[ -d $1 ]] || return 0
    cd -P "$1" || fail "no way to $1"
    value=${PWD##*/}
    cd "$OLDPWD" || fail "no way back"
}
# find_pci SERIAL: its PCI address.
find_pci() {
    find_disk "$1" || fail "no drive $1"
    find_end "/sys/block/$value/device/device"
}
find_group() { find_end "/sys/bus/pci/devices/$1/iommu_group"; }

# has_driver ADDRESS DRIVER, and nothing says where it must go next.
has_driver() {
    find_end "/sys/bus/pci/devices/$1/driver"
    [[ $value == "$2" ]] || fail "$1 is with $value, not with $2"
    read -r value <"/sys/bus/pci/devices/$1/driver_override"
    [[ $value == "(null)" ]] || fail "driver_override left on $1: $value"
}
in_journal() { [[ -e $journal && $(<"$journal") == *"\"$1\""* ]]; }

# The drive is with nvme, under its serial, free to go anywhere.
is_home() { # SERIAL ADDRESS
    has_driver "$2" nvme
    find_disk "$1" || fail "no block device with serial $1"
    ! in_journal "$2" || fail "the journal still names $2"
}
is_away() { # ADDRESS
    has_driver "$1" vfio-pci
    in_journal "$1" || fail "the journal does not name $1"
}

# A userspace driver can have it: container, group and IOMMU.
opens() { # ADDRESS
    find_group "$1"
    /usr/bin/python3 "$here/vfio-viable" "$value" || fail "VFIO does not open $1"
}

# As long as no module of VFIO is loaded.
module_missing() {
    local modules
    modprobe -r vfio_pci vfio_iommu_type1 2>/dev/null || true
    [[ ! -e /sys/module/vfio_iommu_type1 ]] || fail "vfio_iommu_type1 cannot be unloaded"
    modules=$(modinfo --filename vfio_iommu_type1)
    mv "$modules" "$work/hidden"
    refused bind mill0
    says "module vfio_iommu_type1 .*cannot be"
    says "linux-image-$(</proc/sys/kernel/osrelease)"
    is_home mill0 "$pci"
    mv "$work/hidden" "$modules"
}
