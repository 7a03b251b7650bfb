#!/bin/bash
# Both data paths on one and the same drive, over RDMA: the same 2,000 ranges with the same CRCs,
# also of a partition; the same error class for the same bad sector; and what the userspace path's
# worker asks of the kernel while it serves.
# vm: --drives 3 --drive-size 64M --fill --rxe 1 --hugepages 512 --mem 5G --inject 2=tests/guest/bad-sector.blkdebug --timeout 1500
set -euo pipefail
source "$(dirname "$0")/lib.bash"

listen=(--fabric rdma --listen 10.77.0.1:4790 --insecure)
big=(--depth 4 --slot-size 8MiB --hugepages 2m)
small=(--depth 8 --slot-size 64KiB --hugepages 2m)

# crcs LIST COPY: the ranges of the server's drive.
crcs() {
    MILLRACE_TEST_CRC_SERVER=$server_address MILLRACE_TEST_CRC_LIST=$1 MILLRACE_TEST_CRC_COPY=$2 \
        "${MILLRACE_READ_TESTS:?the program of tests/guest_reads.rs}" --nocapture crcs_of \
        >"$out/crcs" 2>&1 || { cat "$out/crcs"; fail "ranges"; }
    [[ $(wc -l <"$1") == 2000 ]] || fail "$(wc -l <"$1") ranges in place of 2000"
}

# same_on_both NAME SERIAL DISK: --device NAME gives the same bytes by either path; DISK is the
# drive to be bound.
same_on_both() {
    local name=$1 serial=$2 disk=$3
    dd if="$name" of="$out/copy" bs=1M iflag=direct status=none
    serve --backend uring "${listen[@]}" "${big[@]}" --device "$name"
    crcs "$out/uring" "$out/copy"
    stop_server
    "$millrace" device bind "$disk" --yes-i-mean "$serial" >"$out/bind" 2>&1 ||
        { cat "$out/bind"; fail "bind $disk"; }
    [[ ! -e $disk ]] || fail "$disk is still there"
    serve --backend spdk "${listen[@]}" "${big[@]}" --device "$name"
    crcs "$out/spdk" "$out/copy"
    stop_server
    cmp "$out/uring" "$out/spdk" || fail "the paths differ on $name"
    ok "2,000 ranges of $name are the same by both paths"
}

drive=/dev/$(disk_of mill0)
same_on_both "$drive" mill0 "$drive"

# Steady load on the bound drive: what the server asks of the kernel, all threads, for 10 s.
serve --backend spdk "${listen[@]}" "${small[@]}" --device "$drive"
"$millrace" bench --raw --connect "$server_address" --io-size 4KiB --depth 4 --warmup 4s \
    --duration 24s --hugepages none --json "$out/load.json" >"$out/load" 2>&1 &
load=$!
sleep 8
worker=$(grep -lx worker-0 /proc/"$server_pid"/task/*/comm | cut -d/ -f5)
tlb() { awk '/TLB:/ {n = 0; for (i = 2; $i ~ /^[0-9]+$/; i++) n += $i; print n}' /proc/interrupts; }
shootdowns=$(tlb)
timeout -s INT 10 strace -f -y -qq -p "$server_pid" -o "$out/strace" 2>"$out/strace.err" || true
ok "TLB shootdowns of all processes meanwhile: $(($(tlb) - shootdowns))"
wait "$load" || { cat "$out/load"; fail "the load"; }
[[ -s $out/strace ]] || { cat "$out/strace.err"; fail "strace saw nothing"; }
# Soft-RoCE has no doorbell to write to: its provider posts by a write to the verbs device. Anything
# else the worker would have asked of its own accord.
post='write\([0-9]+</dev/infiniband/uverbs|<\.\.\. write resumed>'
awk -v worker="$worker" '$1 == worker' "$out/strace" | grep -vE "$post" >"$out/others" || true
[[ ! -s $out/others ]] || { head "$out/others"; fail "$(wc -l <"$out/others") other calls"; }
posts=$(grep -c "^$worker .*write(" "$out/strace" || true)
memory=$(grep -cE ' (mmap|munmap|mprotect|madvise|mremap|brk)\(' "$out/strace" || true)
[[ $memory == 0 ]] || fail "$memory calls that change the address space, which cost shootdowns"
ok "10 s under strace: $posts posts by soft-RoCE, no other call of the worker, no change of mappings"
stop_server

# One bad sector, one class by either path.
bad=/dev/$(disk_of mill2)
# class_of BACKEND: the class that `serve` names for it, in $class. Not by its output: the server
# has to be this shell's.
class_of() {
    serve --backend "$1" "${listen[@]}" "${small[@]}" --device "$bad"
    # One at a time: the kernel merges neighbours of one batch, which then fail as one.
    if "$millrace" bench --raw --connect "$server_address" --io-size 4KiB --depth 1 --sequential \
        --duration 5s --hugepages none >"$out/bad" 2>&1; then
        fail "the bad sector was read"
    fi
    class=$(sed -n 's/.* at offset 1048576 of .* failed: .*: \([a-z ]*\) (.*/\1/p' \
        "$out/serve.log" | head -1)
    stop_server
}
class_of uring
kernel=$class
"$millrace" device bind "$bad" --yes-i-mean mill2 >"$out/bind" 2>&1 || fail "bind $bad"
class_of spdk
userspace=$class
[[ $kernel == "medium error" && $userspace == "$kernel" ]] ||
    fail "classes \"$kernel\" and \"$userspace\""
ok "a bad sector is a $kernel by both paths"

# A partition names the same bytes on both.
whole=/dev/$(disk_of mill1)
printf 'label: gpt\nstart=2048, size=40960\nstart=45056, size=65536\n' |
    sfdisk --quiet "$whole" || fail "sfdisk"
wait_for 10 test -e "${whole}p2" || fail "no partition"
same_on_both "${whole}p2" mill1 "$whole"

# Everything back where it was.
"$millrace" device restore >"$out/restore" 2>&1 || { cat "$out/restore"; fail "restore"; }
for serial in mill0 mill1 mill2; do disk_of "$serial" >"$out/disk"; done
ok "all drives are back"
passed
