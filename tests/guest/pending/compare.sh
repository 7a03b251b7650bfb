#!/bin/bash
# Comparisons on one emulated drive: both paths, local and over soft-RoCE, the drive given back each
# time, also after SIGINT and SIGKILL; then one switch at a time, with what the block layer saw.
# vm: --kernel 6.1 --cpus 4 --drives 1 --drive-size 64M --drive-opt mdts=8 --fill --rxe 1 --hugepages 512 --mem 4G --timeout 1800
# vm: --kernel 6.12 --iommu-pt --cpus 4 --drives 1 --drive-size 64M --drive-opt mdts=8 --fill --hugepages 512 --mem 4G --timeout 900
set -euo pipefail
source "$(dirname "$0")/../lib.bash"

mount -t tracefs tracefs /sys/kernel/tracing 2>/dev/null || true
drive=/dev/$(disk_of mill0)
quick=(--device "$drive" --yes-i-mean mill0 --cores 1 --warmup 100ms --duration 400ms)

# with_kernel: the drive is the kernel's, by its serial.
with_kernel() { [[ /dev/$(disk_of mill0) == "$drive" && -b $drive ]] || fail "$drive is not back"; }

# value FILE EXPRESSION: from a result.
value() { python3 -c "import json,sys; r=json.load(open(sys.argv[1])); print($2)" "$1"; }

paths() {
    local name=$1
    shift
    "$millrace" compare --set paths "${quick[@]}" --rounds 2 --io-size 4KiB --depth 1,8 \
        --out "$out/$name" "$@" >"$out/$name.md" 2>"$out/$name.log" ||
        { tail -20 "$out/$name.log"; fail "compare $name"; }
    with_kernel
    grep -q '^| spdk | ' "$out/$name.md" || fail "no spdk in the report of $name"
    [[ -s $out/$name/compare.html && -s $out/$name/compare.json ]] || fail "no report of $name"
    [[ $(value "$out/$name/compare.json" 'len(r["runs"])') == 8 ]] || fail "runs of $name"
    [[ $(value "$out/$name/compare.json" 'sum(x["summary"]["errors"] for x in r["runs"])') == 0 ]] ||
        fail "errors of $name"
    ok "paths, $name: both compared, the drive is back, report made"
}

# Ended half-way, on the userspace path: SIGINT gives back at once, SIGKILL leaves it to the next.
half_way() {
    "$millrace" compare --set paths "${quick[@]}" --rounds 50 --io-size 4KiB --depth 8 \
        --out "$out/half" >"$out/half.out" 2>&1 &
    local pid=$!
    wait_for 120 test ! -b "$drive" || fail "it never bound the drive"
    kill "-$1" "$pid"
    ! wait "$pid" || fail "it ended well after SIG$1"
}

both_paths() {
    paths local
    paths rdma --fabric rdma --listen 10.77.0.1:4790
    half_way INT
    with_kernel
    ok "given back after SIGINT"
    half_way KILL
    "$millrace" compare --set paths "${quick[@]}" --rounds 1 --io-size 4KiB --depth 8 \
        --out "$out/next" >"$out/next.out" 2>&1 || { tail -5 "$out/next.out"; fail "the next one"; }
    grep -q 'given back to the kernel first' "$out/next.out" || fail "SIGKILL: it was not away"
    with_kernel
    ok "given back by the next comparison after SIGKILL"
}

if [[ -z ${MILLRACE_SPDK_TEST:-} ]]; then
    skip "both paths: no SPDK on this machine"
elif [[ $(uname -r) == 6.1.* ]]; then
    both_paths
fi

# One switch at a time: 1,028 KiB.
"$millrace" compare --set article "${quick[@]}" --rounds "${COMPARE_ROUNDS:-2}" \
    --out "$out/article" >"$out/article.md" 2>"$out/article.log" ||
    { tail -20 "$out/article.log"; fail "article"; }
with_kernel
cat >"$out/show.py" <<'PY'
import json, os, sys
r = json.load(open(sys.argv[1]))
names = [v["name"] for v in r["matrix"]["variants"]]
print("kernel", r["host"]["kernel"])
points = {names[p["variant"]]: p for p in r["points"]}
for name, p in points.items():
    get = lambda n: p["figures"].get(n, {}).get("median", p["traced"].get(n))
    size = get("drive_request_bytes")
    f = lambda v, s=1: "null" if v is None else f"{v / s:.2f}"
    print(f"article: {name}: request {f(size, 1024)} KiB, system CPU {f(get('cpu_system_ns_per_read'), 1e3)} us,",
          f"io-wq {f(get('io_wq_requests_per_read'))}, fget {f(get('fget_per_read'))},",
          f"syscalls {f(get('syscalls_per_read'))}, check {f(get('check_ns'), 1e3)} us")
for c in r["comparisons"]:
    for n in ("iops", "cpu_system_ns_per_read", "cpu_user_ns_per_read", "drive_request_bytes"):
        q = c["ratios"].get(n)
        if q: print(f"ratio: {names[c['variant']]} / {names[c['from']]}: {n} {q['ratio']:.3f} ({q['low']:.3f} to {q['high']:.3f}) {q['verdict']}")
size = lambda name: points[name]["figures"]["drive_request_bytes"]["median"] / 1024
# What the kernels of docs/COMPARE.md do with 1,028 KiB, max_sectors_kb 1024 and 127 segments.
split = size("baseline")
assert 300 < split < 400, f"registered 4 KiB pages: {split}"
assert split < size("READ") < 530, size("READ")
assert 300 < size("2 MiB pages") < 530 and 500 < size("2 MiB pages, READ") < 530
for name in ("no registered files", "check none"):
    assert abs(size(name) - split) < 60, name
PY
python3 "$out/show.py" "$out/article/compare.json" || fail "the table"
sed -n '/^- /p' "$out/article.md"
ok "article on $(uname -r)"
passed
