#!/bin/bash
# Moves real (emulated) drives between nvme and vfio-pci, and shows that everything that speaks
# against a move leaves the drive where it was and names the way out.
# vm: --drives 2 --mem 1G --timeout 900
# shellcheck disable=SC2154 # value is set by find_*
set -euo pipefail
# shellcheck source=tests/guest/device.bash
. "$(dirname "$0")/device.bash"

round_trip() {
    succeeds bind --dry-run mill0
    says "move $pci \(nvme.*serial mill0\) from nvme to vfio-pci"
    is_home mill0 "$pci"
    succeeds bind mill0
    is_away "$pci"
    opens "$pci"
    ! find_disk mill0 || fail "mill0 still has a block device"
    succeeds list
    says "$pci +mill0 .* 256MiB +vfio-pci"
    says "serial, model and size are the journal's"
    succeeds list --json
    says '"from_journal": true'
    succeeds bind mill0
    says "is on vfio-pci already"
    succeeds restore --dry-run
    says "move $pci"
    is_away "$pci"
    succeeds restore
    says "$pci \(serial mill0\) is back with nvme as nvme"
    is_home mill0 "$pci"
    succeeds restore
    says "nothing to restore"
    succeeds restore mill0
    says "already"
    succeeds bind "$pci"
    succeeds unbind --all
    is_home mill0 "$pci"
    find_disk mill0
    succeeds bind "/dev/$value"
    succeeds unbind mill0
    is_home mill0 "$pci"
    device unbind
    ((code == 2)) || fail "unbind without a drive: code $code"
    device bind no-such-drive
    ((code == 1)) || fail "bind of no such drive: code $code"
    says 'no NVMe drive "no-such-drive"'
}

data() {
    mkfs.ext4 -q "$disk"
    refused bind mill0
    says "holds data: ext4 on $disk"
    says "--yes-i-mean mill0"
    refused bind mill0 --yes-i-mean mill1
    says "mill1 is not the serial of a drive named here"
    is_home mill0 "$pci"
    succeeds bind mill0 --yes-i-mean mill0
    is_away "$pci"
    succeeds restore
    is_home mill0 "$pci"
    find_disk mill0
    e2fsck -fn "/dev/$value" >"$work/out" 2>&1 || fail "the file system suffered"
}

mounted() {
    mount "$disk" /mnt
    refused bind mill0 --yes-i-mean mill0
    says "$disk is mounted at /mnt"
    says "umount /mnt"
    succeeds list
    says "mounted at /mnt"
    umount /mnt
    is_home mill0 "$pci"
    # In a mount namespace of its own, which no table here shows.
    unshare --mount --propagation private sh -c \
        "mount $disk /mnt; touch $work/up; until [ -e $work/down ]; do sleep 0.2; done" &
    until [[ -e $work/up ]]; do sleep 0.1; done
    refused bind mill0 --yes-i-mean mill0
    says "$disk is held by the kernel"
    touch "$work/down"
    wait
    is_home mill0 "$pci"
}

blank() {
    # Both ends, where signatures are.
    dd if=/dev/zero of="$disk" bs=1M count=4 conv=fsync status=none
    dd if=/dev/zero of="$disk" bs=1M seek=252 count=4 conv=fsync status=none
    blockdev --rereadpt "$disk" || true
}

partition() {
    blank
    # A table with one Linux partition of 100 MiB from sector 2048 on.
    printf '\0\0\0\0\x83\0\0\0\0\x08\0\0\0\x20\x03\0' |
        dd of="$disk" bs=1 seek=446 conv=notrunc status=none
    printf '\x55\xAA' | dd of="$disk" bs=1 seek=510 conv=notrunc,fsync status=none
    blockdev --rereadpt "$disk"
    mkfs.ext4 -q "${disk}p1"
    device bind "${disk}p1"
    ((code == 2)) || fail "a partition was taken for a drive: code $code"
    says "is a partition"
    refused bind mill0
    says "MBR on $disk, ext4 on ${disk}p1"
    mount "${disk}p1" /mnt
    refused bind mill0 --yes-i-mean mill0
    says "${disk}p1 is mounted at /mnt"
    umount /mnt
    is_home mill0 "$pci"
    succeeds bind mill0 --yes-i-mean mill0
    succeeds restore
    find_disk mill0
    [[ -e /dev/${value}p1 ]] || fail "the partition did not come back"
    blank
}

swap() {
    mkswap "$disk" >/dev/null
    swapon "$disk"
    refused bind mill0 --yes-i-mean mill0
    says "$disk is swap space in use"
    says "swapoff $disk"
    swapoff "$disk"
    refused bind mill0
    says "swap on $disk"
    is_home mill0 "$pci"
    blank
}

lvm_member() {
    # No udev here.
    local config='activation { udev_sync=0 udev_rules=0 }
        devices { obtain_device_list_from_udev=0 }'
    modprobe dm-mod
    lvm pvcreate -q --config "$config" "$disk" >/dev/null
    lvm vgcreate -q --config "$config" my-group "$disk" >/dev/null
    lvm lvcreate -q --config "$config" -Zn -Wn -L 32M -n volume my-group \
        >/dev/null 2>&1
    refused bind mill0 --yes-i-mean mill0
    says "$disk is held by /dev/dm-0 \(LVM my--group-volume\)"
    says "vgchange --activate n my-group"
    lvm vgchange -q --config "$config" --activate n my-group >/dev/null
    refused bind mill0
    says "LVM2 member on $disk"
    is_home mill0 "$pci"
    lvm vgremove -qf --config "$config" my-group >/dev/null
    blank
}

md_member() {
    export MDADM_NO_UDEV=1
    local version
    modprobe raid1
    for version in 1.2 1.0 0.90; do
        mdadm --create /dev/md0 --quiet --run --metadata=$version --level=1 --raid-devices=2 \
            "$disk" missing 2>"$work/out" || fail mdadm
        refused bind mill0 --yes-i-mean mill0
        says "$disk is held by /dev/md0 \(md\)"
        says "mdadm --stop /dev/md0"
        mdadm --stop --quiet /dev/md0
        refused bind mill0
        says "md member.* on $disk"
        is_home mill0 "$pci"
        blank
    done
}

loop_device() {
    modprobe loop
    losetup --read-only /dev/loop0 "$disk"
    refused bind mill0
    says "$disk is what /dev/loop0 reads from|$disk is held by the kernel"
    says "losetup --detach /dev/loop0"
    losetup --detach /dev/loop0
    is_home mill0 "$pci"
}

open_by_process() {
    local path
    # The block device and the controller's character device.
    find_end "/sys/block/${disk#/dev/}/device"
    for path in "$disk" "/dev/$value"; do
        hold "$path"
        refused bind mill0
        says "$path is open by PID $holder \(sleep\)"
        says "kill $holder"
        let_go
        is_home mill0 "$pci"
    done
}

busy_group() {
    succeeds bind mill0
    local node
    find_group "$pci"
    node=/dev/vfio/$value
    hold "$node"
    refused restore
    says "$node is open by PID $holder \(sleep\)"
    is_away "$pci"
    refused unbind mill0
    let_go
    succeeds restore
    is_home mill0 "$pci"
}

locked_journal() {
    exec 8>>"$journal.lock"
    flock 8
    refused bind mill0
    says "locked by another millrace process"
    exec 8>&-
    is_home mill0 "$pci"
}

crash() {
    local step
    for step in journal override unbind probe verify clear; do
        crashes "$step" bind mill0
        in_journal "$pci" || fail "after a crash at $step the journal lacks $pci"
        succeeds list
        says "$pci +mill0"
        if [[ $step == unbind ]]; then
            refused bind "$pci"
            says "no driver"
        fi
        succeeds restore
        is_home mill0 "$pci"
    done
    for step in override unbind probe verify clear; do
        succeeds bind mill0
        crashes "$step" restore
        succeeds restore
        is_home mill0 "$pci"
    done
}

failing_midway() {
    # Swallows the override: the drive is unbound, and the probe gives it back to nvme.
    mount --bind /dev/null "/sys/bus/pci/devices/$pci/driver_override"
    refused bind mill0
    says "could not be moved and is back with nvme as nvme"
    says "did not attach to vfio-pci"
    umount "/sys/bus/pci/devices/$pci/driver_override"
    is_home mill0 "$pci"
    # Swallows the probe, so that the way back is barred as well: the journal knows.
    mount --bind /dev/null /sys/bus/pci/drivers_probe
    refused bind mill0
    says "nor be put back"
    says "millrace device restore $pci"
    find_end "/sys/bus/pci/devices/$pci/driver"
    [[ $value == none ]] || fail "expected no driver"
    umount /sys/bus/pci/drivers_probe
    succeeds restore
    is_home mill0 "$pci"
}

leftover_override() {
    local override=/sys/bus/pci/devices/$pci/driver_override
    echo pci-stub >"$override"
    succeeds list
    says "driver_override says pci-stub"
    refused bind mill0
    says "driver_override says pci-stub"
    find_end "/sys/bus/pci/devices/$pci/driver"
    [[ $value == nvme ]] || fail "moved all the same"
    succeeds restore "$pci"
    is_home mill0 "$pci"
    # Another tool's bind that got no further than this.
    echo vfio-pci >"$override"
    echo "$pci" >/sys/bus/pci/drivers/nvme/unbind
    succeeds list
    says "$pci: has no driver"
    refused bind "$pci"
    succeeds restore "$pci"
    is_home mill0 "$pci"
    echo vfio-pci >"$override"
    succeeds bind mill0
    says "leftover driver_override \(vfio-pci\) will be cleared"
    is_away "$pci"
    succeeds restore
    is_home mill0 "$pci"
}

foreign_bind() {
    local device=/sys/bus/pci/devices/$pci
    echo vfio-pci >"$device/driver_override"
    echo "$pci" >"$device/driver/unbind"
    echo "$pci" >/sys/bus/pci/drivers_probe
    succeeds list
    says "$pci: was not bound by millrace"
    succeeds restore
    find_end "/sys/bus/pci/devices/$pci/driver"
    [[ $value == vfio-pci ]] || fail "restore touched a drive that was not named"
    succeeds restore "$pci"
    is_home mill0 "$pci"
}

several() {
    local second
    find_pci mill1
    second=$value
    succeeds bind mill0 mill1
    is_away "$pci"
    is_away "$second"
    succeeds restore
    is_home mill0 "$pci"
    is_home mill1 "$second"
    # One that is in use keeps all of them.
    find_disk mill1
    hold "/dev/$value"
    refused bind mill0 mill1
    let_go
    is_home mill0 "$pci"
    is_home mill1 "$second"
}

hugepages() {
    local pool=/sys/kernel/mm/hugepages/hugepages-2048kB
    succeeds bind mill0 --hugepages 8
    [[ $(<$pool/free_hugepages) == 8 ]] || fail "$(<$pool/free_hugepages) free pages, not 8"
    succeeds restore
    succeeds bind mill0 --hugepages 4
    [[ $(<$pool/nr_hugepages) == 8 ]] || fail "the pool shrank"
    succeeds restore
    # As much as a machine of this size can never have.
    refused bind mill0 --hugepages 4000
    echo 0 >$pool/nr_hugepages
    says "granted [0-9]+ of [0-9]+ further hugepages"
    says "hugepagesz=2M"
    is_home mill0 "$pci"
}

# hold PATH: a process ($holder) that has it open; let_go ends it.
hold() {
    # shellcheck disable=SC2217 # it is to be open, not read
    sleep 1000 <"$1" &
    holder=$!
    # Open under its own name, which the message gives.
    until [[ $(<"/proc/$holder/comm") == sleep ]]; do sleep 0.1; done
}
let_go() {
    kill "$holder"
    wait "$holder" || true
}

find_pci mill0
pci=$value
find_disk mill0
disk=/dev/$value
cases module_missing round_trip data mounted partition swap lvm_member md_member loop_device \
    open_by_process busy_group locked_journal crash failing_midway leftover_override \
    foreign_bind several hugepages
passed
