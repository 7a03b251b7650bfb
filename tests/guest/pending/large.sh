#!/bin/bash
# The large layout in small: two server processes, each with two shards of four drives and two
# workers, each shard a store behind one of two soft-RoCE devices; one client over both devices, a
# connection from each to every worker. Objects of 1 MiB, 1,028 KiB on the drives, --check crc, every
# byte verified at the client; both backends on the same drives.
# vm: --cpus 4 --drives 16 --drive-size 40M --rxe 2 --hugepages 512 --mem 5G --timeout 1800
set -euo pipefail
source "$(dirname "$0")/../lib.bash"

for k in {0..15}; do disk=$(disk_of "mill$k"); disks[k]=/dev/$disk; done
servers=() pids=()

# config NAME PORT FIRST: the file of one process: two shards, four drives each from number FIRST on.
config() {
    local shard k
    echo "insecure = true"
    echo "metrics = \"127.0.0.1:$(($2 + 1000))\""
    echo "[defaults]"
    echo "backend = \"$backend\""
    echo "fabric = \"rdma\""
    echo "depth = 2"
    echo "credits = 4"
    echo "max_connections = 8"
    echo "hugepages = \"2m\""
    echo "check = \"crc\""
    for shard in 0 1; do
        echo "[[shard]]"
        echo "name = \"$1$shard\""
        echo "listen = \"10.77.$shard.1:$2\""
        echo "cores = \"$((2 * shard))-$((2 * shard + 1))\""
        echo "drives = ["
        for ((k = $3 + 4 * shard; k < $3 + 4 * shard + 4; k++)); do echo "    \"${disks[k]}\","; done
        echo "]"
    done
}

# start NAME PORT FIRST: starts a process and waits until both of its shards listen.
start() {
    config "$@" >"$out/$1.toml"
    "$millrace" serve --config "$out/$1.toml" --dry-run >"$out/$1.plan" || fail "the plan of $1"
    # Eight workers that poll on four emulated CPUs: the kernel's threads of soft-RoCE come first.
    nice -n 19 "$millrace" serve --config "$out/$1.toml" >"$out/$1.out" 2>"$out/$1.log" &
    pids+=($!)
    both_listen() { [[ $(grep -c '^listening on ' "$out/$1.out") == 2 ]] || ! kill -0 "${pids[-1]}"; }
    wait_for 120 both_listen "$1" || { cat "$out/$1.log"; fail "$1 does not listen"; }
    local found
    mapfile -t found < <(sed -n 's/^listening on //p' "$out/$1.out")
    [[ ${#found[@]} == 2 ]] || { cat "$out/$1.log"; fail "$1 ended"; }
    servers+=("${found[@]}")
}

# metric PORT NAME LABEL: the sum of a metric's samples with that label.
metric() {
    exec {web}<>"/dev/tcp/127.0.0.1/$(($1 + 1000))"
    printf 'GET /metrics HTTP/1.1\r\n\r\n' >&"$web"
    awk -v name="$2{" -v label="$3" 'index($0, name) == 1 && index($0, label) {n += $NF}
        END {printf "%d\n", n}' <&"$web"
    exec {web}>&-
}

layout() {
    backend=$1
    servers=() pids=()
    start a 4790 0
    start b 4791 8
    ok "$backend: four shards listen: ${servers[*]}"

    "$millrace" bench --objects 120 --connect "$(IFS=,; echo "${servers[*]}")" \
        --local 10.77.0.1,10.77.1.1 --connections 16 --depth 1 \
        --duration 10s --warmup 1s --rounds 2 --verify --hugepages none \
        --json "$out/$backend.json" >"$out/bench" 2>&1 || { cat "$out/bench"; fail "bench"; }
    python3 - "$out/$backend.json" "$backend" <<'PYTHON'
import json, sys
result, backend = json.load(open(sys.argv[1])), sys.argv[2]
assert result["summary"]["errors"] == 0, result["summary"]
assert len({server["store"] for server in result["servers"]}) == 4
for server in result["servers"]:
    assert server["backend"] == backend and server["check"] == "crc", server
    assert server["connections"] == 4 and server["reconnects"] == 0, server
    summary = server["summary"]
    assert summary["ops"] > 0 and summary["errors"] == 0, summary
    print("  %s: %d objects verified" % (server["address"], summary["ops"]))
PYTHON
    ok "$backend: $(summary "$out/$backend.json")"

    # Every worker had its connections and its share; every drive was read.
    local port name worker k
    for name in a b; do
        [[ $name == a ]] && port=4790 || port=4791
        for shard in 0 1; do
            for worker in 0 1; do
                label="shard=\"$name$shard\",worker=\"$worker\""
                (($(metric $port millrace_connections_opened_total "$label") >= 2)) ||
                    fail "$label had no connections"
                (($(metric $port millrace_requests_total "$label,status=\"ok\"") > 2)) ||
                    fail "$label had no requests"
            done
            for k in 0 1 2 3; do
                (($(metric $port millrace_drive_bytes_total "shard=\"$name$shard\",drive=\"$k\"") > 0)) ||
                    fail "drive $k of $name$shard was not read"
            done
        done
        [[ $(metric $port millrace_drive_errors_total shard=) == 0 ]] || fail "errors"
    done
    ok "$backend: eight workers and sixteen drives had their share"

    # One process goes: its shards fail their own requests, the others serve on.
    local before
    before=$(metric 4791 millrace_requests_total 'status="ok"')
    "$millrace" bench --objects 120 --connect "$(IFS=,; echo "${servers[*]}")" \
        --local 10.77.0.1,10.77.1.1 --connections 8 --depth 1 --duration 30s \
        --warmup 0s --rounds 1 --verify --hugepages none --json "$out/loss.json" \
        >"$out/loss" 2>&1 &
    local load=$!
    # Connections take time here; the process must be read from when it goes.
    busy() {
        (($(metric 4791 millrace_requests_total 'status="ok"') > before + 16)) ||
            ! kill -0 "$load" 2>/dev/null
    }
    wait_for 90 busy || fail "no load on b"
    kill -KILL "${pids[1]}"
    wait "${pids[1]}" || true
    ! wait "$load" || fail "what was lost is no failure"
    python3 - "$out/loss.json" <<'PYTHON' || { cat "$out/loss"; fail "the loss of a process"; }
import json, sys
servers = json.load(open(sys.argv[1]))["servers"]
for server in servers[:2]:
    assert server["summary"]["errors"] == 0 and server["reconnects"] == 0, server
    assert server["away_seconds"] == 0 and server["summary"]["ops"] > 0, server
for server in servers[2:]:
    assert server["summary"]["errors"] > 0 and server["away_seconds"] > 1, server
PYTHON
    ok "$backend: with one process killed the other's shards had no error"

    kill -TERM "${pids[0]}"
    wait "${pids[0]}" || { cat "$out/a.log"; fail "a ended with $?"; }
    grep -q ' 0 slots leaked' "$out/a.log" || fail "slots were lost"
}

# While nothing else runs: how long the checks take on a host with this many drives.
code=0
began=${EPOCHREALTIME/./}
"$millrace" doctor --json >"$out/doctor.json" 2>"$out/doctor.log" || code=$?
took=$(((${EPOCHREALTIME/./} - began) / 1000))
((code == 0 || code == 3)) || { cat "$out/doctor.log"; fail "doctor ended with $code"; }
looked=$(python3 -c 'import json, sys
print(len(json.load(open(sys.argv[1]))["facts"]["drives"]))' "$out/doctor.json")
((looked == 16)) || fail "doctor looked at $looked drives"
ok "doctor: 16 drives in $took ms of an emulated CPU"

# Four stores of the same objects: of each, the one that rendezvous hashing names is asked.
for first in 0 4 8 12; do
    drives=()
    for ((k = first; k < first + 4; k++)); do drives+=(--device "${disks[k]}"); done
    "$millrace" store create --object-size 1MiB "${drives[@]}" >"$out/store" 2>&1 &&
        "$millrace" store fill --count 120 "${drives[@]}" >>"$out/store" 2>&1 ||
        { cat "$out/store"; fail "a store from drive $first on"; }
done
ok "four stores of 120 objects"

layout uring
if [[ -z ${MILLRACE_SPDK_TEST:-} ]]; then
    skip "spdk: no SPDK on this machine"
    passed
    exit 0
fi
for k in {0..15}; do
    "$millrace" device bind "${disks[k]}" --yes-i-mean "mill$k" >"$out/bind" 2>&1 ||
        { cat "$out/bind"; fail "bind ${disks[k]}"; }
done
layout spdk
passed
