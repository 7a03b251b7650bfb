#!/bin/bash
# doctor in the guest: it finds the emulated drives, the virtual IOMMU and soft-RoCE; what it passes
# for SPDK binds and runs; where it fails a check, the server fails in the same words; and a read
# becomes as many requests as it says.
# vm: --kernel 6.1 --iommu-pt --drives 1 --drive-size 64M --drive-opt mdts=8 --rxe 1 --hugepages 96 --timeout 900
# vm: --kernel 6.12 --iommu-pt --drives 1 --drive-size 64M --drive-opt mdts=8 --rxe 1 --hugepages 96 --timeout 900
# vm: --kernel 6.12 --drives 1 --drive-size 64M --rxe 1 --hugepages 96 --timeout 900
# vm: --no-iommu --drives 1 --drive-size 32M --hugepages 64
# vm: --no-modules vfio-pci,vfio_pci --drives 1 --drive-size 32M --hugepages 64
set -euo pipefail
source "$(dirname "$0")/../lib.bash"

disk=$(disk_of mill0)
address=$(basename "$(readlink -f "/sys/block/$disk/device/device")")
small=(--io-size 64KiB --depth 4)

# doctor ARGS...: runs it for JSON in $out/doctor.json; its code is in $code.
doctor() {
    code=0
    "$millrace" doctor --json "$@" >"$out/doctor.json" 2>"$out/doctor.log" || code=$?
    ((code == 0 || code == 3 || code == 4)) || { cat "$out/doctor.log"; fail "code $code: doctor $*"; }
}

# ask EXPRESSION: of the JSON `d`, with `f` the findings by id.
ask() {
    python3 -c 'import json, sys
d = json.load(open(sys.argv[1]))
f = {x["id"]: x for x in d["findings"]}
print(eval(sys.argv[2]))' "$out/doctor.json" "$1"
}

# expect EXPRESSION: that is true.
expect() {
    [[ $(ask "$1") == True ]] || { ask "{k: (v[\"outcome\"], v[\"what\"]) for k, v in f.items()}"; fail "not so: $1"; }
}

# same ID ARGS...: the check stops a run, and the server with these arguments says what it says.
same() {
    local id=$1 what
    shift
    expect "f['$id']['stops']"
    what=$(ask "f['$id']['what']")
    if timeout 60 "$millrace" serve --raw --listen 127.0.0.1:0 --depth 4 --slot-size 64KiB "$@" \
        >"$out/serve.log" 2>&1; then
        fail "served in spite of: $what"
    fi
    grep -qF -- "$what" "$out/serve.log" || fail "the server does not say: $what"
    ok "doctor and server: $what"
}

finds() {
    doctor --for uring,rdma --device "/dev/$disk" "${small[@]}"
    expect "f['drive-emulated']['outcome'] == 'warn'"
    expect "f['host-virtual']['outcome'] == 'warn'"
    expect "f['rdma-soft']['outcome'] == 'warn' and 'rxe0' in f['rdma-soft']['what']"
    expect "f['rdma-gid']['outcome'] == 'pass' and f['rdma-link']['outcome'] == 'pass'"
    expect "f['drive-state']['outcome'] == 'pass' and f['uring-seccomp']['outcome'] == 'pass'"
    # The real domain of the drive, which decides what the kernel's path costs.
    local kind
    kind=$(<"/sys/kernel/iommu_groups/$(basename "$(readlink "/sys/bus/pci/devices/$address/iommu_group")")/type")
    expect "d['facts']['drives'][0]['function']['domain'] == '$kind'"
    expect "f['iommu-domain']['outcome'] == {'identity': 'pass', 'DMA-FQ': 'warn', 'DMA': 'fail'}['$kind']"
    expect "d['facts']['drives'][0]['function']['iommu_bits'] == 48"
    ok "emulated drive, vIOMMU of 48 bits ($kind), soft-RoCE"
}

# Requests per read: foretold, and as the drive's own counters have them.
requests() {
    local pages size before after foretold seen
    for pages in none 2m; do
        for size in 512KiB 1MiB 1028KiB 4MiB; do
            doctor --for uring --device "/dev/$disk" --io-size $size --depth 1 --hugepages $pages
            expect "d['requests'][0]['least'] == d['requests'][0]['most']"
            foretold=$(ask "d['requests'][0]['most']")
            read -r -a before <"/sys/block/$disk/stat"
            "$millrace" local --backend uring --device "/dev/$disk" --io-size $size --depth 1 \
                --align 4KiB --warmup 0 --duration 1s --rounds 1 --check none --hugepages $pages \
                --json "$out/local.json" >"$out/local.out" 2>&1 || { cat "$out/local.out"; fail "local $size"; }
            read -r -a after <"/sys/block/$disk/stat"
            seen=$(python3 -c 'import sys
requests, sectors, unit = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
size = int(unit[:-3]) << (10 if unit.endswith("KiB") else 20)
reads = sectors * 512 / size
print("%.2f %.2f" % (requests / reads, sectors / 2 / requests))' \
                $((after[0] - before[0])) $((after[2] - before[2])) $size)
            echo "  $size on $pages: $foretold requests foretold, ${seen% *} seen, of ${seen#* } KiB"
            [[ ${seen% *} == "$foretold.00" ]] || fail "$size on $pages pages: $foretold foretold, $seen seen"
        done
    done
    ok "requests per read on $(uname -r), max_segments $(<"/sys/block/$disk/queue/max_segments"), max_sectors_kb $(<"/sys/block/$disk/queue/max_sectors_kb")"
}

passes_for_spdk() {
    doctor --for spdk --device "$address" "${small[@]}"
    expect "not any(x['stops'] for x in d['findings'])"
    "$millrace" device bind "$address" --yes-i-mean mill0 --journal "$out/journal" >"$out/bind" 2>&1 ||
        { cat "$out/bind"; fail "bind"; }
    "$millrace" local --backend spdk --device "$address" "${small[@]}" --duration 1s --warmup 0 \
        --json "$out/spdk.json" >"$out/spdk" 2>&1 || { cat "$out/spdk"; fail "local --backend spdk"; }
    # Of a drive that is away, doctor still knows what it can.
    doctor --device "$address" "${small[@]}"
    expect "d['facts']['job']['spdk'] and f['drive-driver']['outcome'] == 'pass'"
    "$millrace" device restore "$address" --journal "$out/journal" >"$out/restore" 2>&1 ||
        { cat "$out/restore"; fail "restore"; }
    ok "passed for spdk, bound, ran: $(summary "$out/spdk.json")"
}

fails_alike() {
    local pool=/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages had
    had=$(<$pool)
    echo 3 >$pool
    doctor --for spdk --device "$address" "${small[@]}"
    same hugepages-free --backend spdk --device "$address"
    echo "$had" >$pool
    umount -a -t hugetlbfs 2>/dev/null || true
    if ! grep -q hugetlbfs /proc/mounts; then
        doctor --for spdk --device "$address" "${small[@]}"
        same hugepages-mount --backend spdk --device "$address"
        mkdir -p /dev/hugepages && mount -t hugetlbfs nodev /dev/hugepages
    fi
    if [[ -e /proc/sys/kernel/io_uring_disabled ]]; then
        sysctl -qw kernel.io_uring_disabled=2
        doctor --for uring --device "/dev/$disk" "${small[@]}"
        same uring-sysctl --backend uring --device "/dev/$disk"
        sysctl -qw kernel.io_uring_disabled=0
    fi
    ip link set net0 down
    doctor --for uring,rdma --device "/dev/$disk" "${small[@]}"
    expect "f['rdma-link']['stops']"
    same rdma-link --backend uring --device "/dev/$disk" --fabric rdma --insecure
    ip link set net0 up
}

if [[ -z $(ls /sys/kernel/iommu_groups 2>/dev/null) ]]; then
    doctor --for spdk --device "$address" "${small[@]}"
    ((code == 4)) || fail "code $code without an IOMMU"
    same iommu-on --backend spdk --device "$address"
elif [[ ! -e /sys/bus/pci/drivers/vfio-pci ]] && ! modprobe vfio-pci 2>/dev/null; then
    doctor --for spdk --device "$address" "${small[@]}"
    ((code == 4)) || fail "code $code without vfio-pci"
    same vfio-modules --backend spdk --device "$address"
else
    finds
    requests
    if "$millrace" local --backend spdk --device none --duration 1s 2>&1 | grep -q "no SPDK backend"; then
        skip "passes_for_spdk: this build has no SPDK"
    else
        passes_for_spdk
        fails_alike
    fi
fi
passed
