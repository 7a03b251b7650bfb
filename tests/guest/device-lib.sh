# shellcheck shell=bash
# What tests/guest/device.sh is made of: running the binary, and looking at a drive from outside.
# Expects $millrace, $journal, $work and $passed.

fail() {
    echo "FAILED: $*"
    echo "--- output of the last command:"
    cat "$work/out" || true
    echo "--- drives:"
    "$millrace" device list --journal "$journal" || true
    dmesg | tail -n 20
    exit 1
}

ok() {
    passed=$((passed + 1))
    echo "ok $1"
}

# device COMMAND ARGUMENT...: runs millrace device; its output is in $work/out, its code in $code.
device() {
    local command=$1
    shift
    code=0
    "$millrace" device "$command" --journal "$journal" "$@" >"$work/out" 2>&1 || code=$?
}
says() { grep -qE -- "$1" "$work/out" || fail "the output lacks \"$1\""; }
succeeds() {
    device "$@"
    ((code == 0)) || fail "code $code from: device $*"
}
refused() {
    device "$@"
    ((code != 0)) || fail "not refused: device $*"
    says "to mend it"
}

# disk_of SERIAL: the block device's name; pci_of SERIAL: its PCI address.
disk_of() {
    local serial
    for serial in /sys/block/nvme*/device/serial; do
        if [[ $(<"$serial") =~ ^$1\ *$ ]]; then
            basename "${serial%/device/serial}"
            return
        fi
    done 2>/dev/null
    return 1
}
pci_of() {
    local disk
    disk=$(disk_of "$1") || return 1
    basename "$(readlink -f "/sys/block/$disk/device/device")"
}
driver_of() { basename "$(readlink "/sys/bus/pci/devices/$1/driver" || echo none)"; }
group_of() { basename "$(readlink -f "/sys/bus/pci/devices/$1/iommu_group")"; }
override_of() { cat "/sys/bus/pci/devices/$1/driver_override"; }

# The drive is with nvme, under its serial, free to go anywhere.
is_home() { # SERIAL ADDRESS
    [[ $(driver_of "$2") == nvme ]] || fail "$1 is with $(driver_of "$2"), not with nvme"
    [[ $(override_of "$2") == "(null)" ]] || fail "driver_override left on $2: $(override_of "$2")"
    disk_of "$1" >/dev/null || fail "no block device with serial $1"
    ! grep -qs "\"$2\"" "$journal" || fail "the journal still names $2"
}
is_away() { # ADDRESS
    [[ $(driver_of "$1") == vfio-pci ]] || fail "$1 is with $(driver_of "$1"), not with vfio-pci"
    [[ $(override_of "$1") == "(null)" ]] || fail "driver_override left on $1"
    grep -q "\"$1\"" "$journal" || fail "the journal does not name $1"
}

# A userspace driver can have it: container, group and IOMMU.
opens() { # ADDRESS
    /usr/bin/python3 "$here/vfio-viable" "$(group_of "$1")" || fail "VFIO does not open $1"
}

blank() { # SERIAL
    local disk
    disk=/dev/$(disk_of "$1")
    dd if=/dev/zero of="$disk" bs=1M count=4 conv=fsync status=none
    dd if=/dev/zero of="$disk" bs=1M seek=252 count=4 conv=fsync status=none
    blockdev --rereadpt "$disk" || true
}

# hold PATH: a process ($holder) that has it open; let_go ends it.
hold() {
    sleep 1000 <"$1" &
    holder=$!
    until [[ $(readlink "/proc/$holder/fd/0") == "$1" && $(<"/proc/$holder/comm") == sleep ]]; do
        sleep 0.1
    done
}
let_go() {
    kill "$holder"
    wait "$holder" || true
}
