#!/bin/bash
# RDMA beside perftest, in a guest with soft-RoCE and one emulated drive (scripts/bench boots it).
# Interleaved pairs; prints `ratio` lines as benches/peers does. Argument: number of pairs.
set -euo pipefail
source "$(dirname "$0")/../../tests/guest/lib.bash"

pairs=${1:-5}
address=10.77.0.1

# perftest TOOL ARGS...: server and client of one of its programs, over rxe0; prints its table.
perftest() {
    local tool=$1 server
    shift
    "$tool" -d rxe0 -x 1 -F "$@" >"$out/perftest" 2>&1 &
    server=$!
    for _ in {1..50}; do
        sleep 0.2
        if "$tool" -d rxe0 -x 1 -F "$@" "$address" >"$out/perftest.client" 2>&1; then
            wait "$server" || true
            cat "$out/perftest.client"
            return
        fi
        kill -0 "$server" 2>/dev/null || break
    done
    fail "$tool: $(tail -n 5 "$out/perftest.client")"
}

figure() { python3 -c 'import json, sys; s = json.load(open(sys.argv[1]))["summary"]
print(eval(sys.argv[2], {"s": s}))' "$out/run.json" "$1"; }

# print_ratio NAME VALUE...
print_ratio() {
    python3 - "$@" <<'PY'
import statistics, sys
name, values = sys.argv[1], sorted(map(float, sys.argv[2:]))
print("ratio %s %.3f (%.3f-%.3f) n=%d" % (
    name, statistics.median(values), values[0], values[-1], len(values)))
PY
}

load() { bench --duration 4s --warmup 1s --hugepages none --json "$out/run.json" "$@" >"$out/bench"; }

serve --backend mem --device mem:64MiB --fabric rdma --listen "$address:0" --insecure \
    --check none --depth 16 --slot-size 1MiB --hugepages none
ratios=()
for ((pair = 0; pair < pairs; pair++)); do
    ours() { load --io-size 1MiB --depth 8; we=$(figure 's["bytes_per_sec"] / 2**20'); }
    theirs() { they=$(perftest ib_write_bw -s 1048576 -t 8 -D 5 | awk '$1 == 1048576 {print $4}'); }
    if ((pair % 2)); then theirs && ours; else ours && theirs; fi
    echo "#   ours $we MiB/s, ib_write_bw $they MiB/s"
    ratios+=("$(python3 -c "print($we / $they)")")
done
print_ratio rdma-1m-8 "${ratios[@]}"
stop_server

serve --backend uring --device "/dev/$(disk_of mill0)" --fabric rdma --listen "$address:0" \
    --insecure --depth 4 --slot-size 64KiB --hugepages none
ratios=()
for ((pair = 0; pair < pairs; pair++)); do
    ours() {
        load --io-size 4KiB --depth 1
        we=$(figure 's["latency_ns"]["mean"] / 1000') drive=$(figure 's["stages"]["drive_ns"] / 1000')
    }
    theirs() { they=$(perftest ib_write_lat -s 4096 -n 2000 | awk '$1 == 4096 {print $6}'); }
    if ((pair % 2)); then theirs && ours; else ours && theirs; fi
    echo "#   ours $we us of which the drive $drive us, ib_write_lat $they us one way"
    ratios+=("$(python3 -c "print((2 * $they + $drive) / $we)")")
done
# Above 1: faster than two one-way writes and the drive. The aim of "within 1.5x" is 0.667 here.
print_ratio rdma-4k-1-latency "${ratios[@]}"
stop_server
passed
