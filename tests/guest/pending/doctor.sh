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

# ask EXPRESSION...: of the JSON `d`, with `f` the findings by id; a line for each. One process for
# all of them, since each takes an emulated CPU seconds to start.
ask() {
    python3 -c 'import json, sys
d = json.load(open(sys.argv[1]))
f = {x["id"]: x for x in d["findings"]}
for expression in sys.argv[2:]:
    print(eval(expression))' "$out/doctor.json" "$@"
}

# expect EXPRESSION...: that all of them are true.
expect() {
    local answers
    answers=$(ask "$@")
    [[ ! $answers =~ (False|None) ]] && return
    ask '"\n".join("%s %s %s" % (k, v["outcome"], v["what"]) for k, v in f.items())'
    paste <(printf '%s\n' "$@") <(echo "$answers")
    fail "not all true"
}

# same ID ARGS...: the check stops a run, and the server with these arguments says what it says.
same() {
    local id=$1 what
    shift
    what=$(ask "f['$id']['stops'] and f['$id']['what']")
    [[ $what != False ]] || fail "$id does not stop a run"
    if timeout 60 "$millrace" serve --raw --listen 127.0.0.1:0 --depth 4 --slot-size 64KiB "$@" \
        >"$out/serve.log" 2>&1; then
        fail "served in spite of: $what"
    fi
    grep -qF -- "$what" "$out/serve.log" || fail "the server does not say: $what"
    ok "doctor and server: $what"
}

finds() {
    local kind group
    doctor --for uring,rdma --device "/dev/$disk" "${small[@]}"
    group=$(readlink "/sys/bus/pci/devices/$address/iommu_group")
    # The real domain of the drive, which decides what the kernel's path costs.
    kind=$(<"/sys/kernel/iommu_groups/${group##*/}/type")
    expect "f['drive-emulated']['outcome'] == 'warn'" "f['host-virtual']['outcome'] == 'warn'" \
        "f['rdma-soft']['outcome'] == 'warn' and 'rxe0' in f['rdma-soft']['what']" \
        "f['rdma-gid']['outcome'] == 'pass' and f['rdma-link']['outcome'] == 'pass'" \
        "f['drive-state']['outcome'] == 'pass' and f['uring-seccomp']['outcome'] == 'pass'" \
        "d['facts']['drives'][0]['function']['domain'] == '$kind'" \
        "f['iommu-domain']['outcome'] == {'identity': 'pass', 'DMA-FQ': 'warn', 'DMA': 'fail'}['$kind']" \
        "d['facts']['drives'][0]['function']['iommu_bits'] == 48"
    ok "emulated drive, vIOMMU of 48 bits ($kind), soft-RoCE"
}

# Requests per read: foretold, and as the drive's own counters have them.
requests() {
    local pages size bytes before after foretold seen
    for pages in none 2m; do
        for size in 512 1024 1028 4096; do
            doctor --for uring --device "/dev/$disk" --io-size ${size}KiB --depth 1 --hugepages $pages
            foretold=$(ask "d['requests'][0]['least'] == d['requests'][0]['most'] and d['requests'][0]['most']")
            read -r -a before <"/sys/block/$disk/stat"
            "$millrace" local --backend uring --device "/dev/$disk" --io-size ${size}KiB --depth 1 \
                --align 4KiB --warmup 0 --duration 1s --rounds 1 --check none --hugepages $pages \
                --json "$out/local.json" >"$out/local.out" 2>&1 || { cat "$out/local.out"; fail "local $size"; }
            read -r -a after <"/sys/block/$disk/stat"
            # Requests in hundredths for each read, of which there were as many as the bytes say.
            bytes=$(((after[2] - before[2]) * 512))
            seen=$(((after[0] - before[0]) * 100 * size * 1024 / bytes))
            echo "  $size KiB on $pages: $foretold requests foretold, $((after[0] - before[0])) seen of" \
                "$((bytes / 1024 / (after[0] - before[0]))) KiB: $seen/100 for each read"
            [[ $seen == "${foretold}00" ]] || fail "$size KiB on $pages pages: $foretold foretold, $seen/100 seen"
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
