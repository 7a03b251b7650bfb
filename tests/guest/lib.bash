# What the tests in the guest share. Source it; call `passed` at the end.

millrace=${MILLRACE_BIN:?the program under test}
out=$(mktemp -d)
server_pid= server_address=

fail() {
    echo "FAILED: $*" >&2
    [[ ! -e $out/serve.log ]] || sed 's/^/  serve: /' "$out/serve.log" >&2
    exit 1
}

ok() { echo "ok: $*"; }

# A test that cannot run here: scripts/test lists it with its reason.
skip() { echo "skipped: guest: $(basename "$0" .sh): $*"; }

# The marker that scripts/test looks for.
passed() { echo "GUEST-TEST $(basename "$0" .sh) PASSED"; }

# disk_of SERIAL: the block device's name. There is no udev, and names follow no order.
disk_of() {
    local serial
    for serial in /sys/block/nvme*/device/serial; do
        if [[ $(<"$serial") =~ ^$1\ *$ ]]; then basename "${serial%/device/serial}"; return; fi
    done
    fail "no drive with serial $1"
}

# wait_for SECONDS COMMAND...: until it succeeds.
wait_for() {
    local end=$((SECONDS + $1))
    shift
    until "$@"; do
        ((SECONDS < end)) || return 1
        sleep 0.1
    done
}

# serve ARGS...: starts `millrace serve --raw` and waits until it listens.
serve() { serve_store --raw "$@"; }

# serve_store ARGS...: starts `millrace serve`, which serves objects without --raw.
serve_store() {
    "$millrace" serve "$@" >"$out/serve.out" 2>"$out/serve.log" &
    server_pid=$!
    listening() { grep -q '^listening on ' "$out/serve.out" || ! kill -0 "$server_pid"; }
    wait_for 60 listening || fail "the server does not listen: serve $*"
    server_address=$(sed -n 's/^listening on //p' "$out/serve.out")
    [[ -n $server_address ]] || fail "the server ended: serve $*"
}

# bench ARGS...: loads that server.
bench() {
    "$millrace" bench --raw --connect "$server_address" "$@" || fail "bench $*"
}

# stop_server: SIGTERM; it must end well and have lost no slot.
stop_server() {
    kill -TERM "$server_pid"
    wait "$server_pid" || fail "the server ended with $?"
    grep -q ' 0 slots leaked' "$out/serve.log" || fail "slots were lost"
    server_pid=
}

# summary FILE: rate and errors of a result, in a line.
summary() {
    python3 -c 'import json, sys
s = json.load(open(sys.argv[1]))["summary"]
print("%.0f reads/s, %.1f MiB/s, %d errors" % (
    s["iops"], s["bytes_per_sec"] / 2**20, s["errors"]))' "$1"
}
