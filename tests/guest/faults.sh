#!/bin/bash
# Faults of drives, kernel and NIC on the kernel's path: each ends the requests it concerns with a
# status that names it, or the start with a message that says what to do; nothing else suffers.
# vm: --kernel 6.12 --drives 2 --drive-size 32M --fill --rxe 1 --hugepages 40 --inject 1=tests/guest/bad-sector.blkdebug --timeout 600
set -euo pipefail
source "$(dirname "$0")/lib.bash"

good=/dev/$(disk_of mill0) bad=/dev/$(disk_of mill1)
small=(--depth 8 --slot-size 64KiB --hugepages none)

# refused TEXT ARGS...: `serve` must not start, and say so with this text.
refused() {
    local text=$1
    shift
    if timeout 60 "$millrace" serve --raw --backend uring --device "$good" "${small[@]}" "$@" \
        >"$out/refused" 2>&1; then
        fail "served in spite of: $text"
    fi
    grep -qF -- "$text" "$out/refused" || { cat "$out/refused"; fail "no \"$text\""; }
    ok "refused: $text"
}

# A bad sector fails its own request only, and the message names drive, offset and class.
serve --backend uring --fabric rdma --listen 10.77.0.1:4790 --insecure "${small[@]}" \
    --device "$bad" --device "$good"
# Eight neighbours at a time, which the kernel merges: a merged command fails as a whole, and what
# failed is read once more alone.
if "$millrace" bench --raw --connect "$server_address" --io-size 4KiB --depth 8 --sequential \
    --duration 8s --hugepages none --json "$out/bad.json" >"$out/bad.out" 2>&1; then
    fail "the bad sector was read"
fi
grep -q "medium error" "$out/bad.out" || { cat "$out/bad.out"; fail "no medium error"; }
python3 - "$out/bad.json" <<'PY' || fail "the errors are not those of one sector"
import json, sys
s = json.load(open(sys.argv[1]))["summary"]
# One 4 KiB read of a whole pass over two drives of 32 MiB, and a pass may be begun.
passes = -(-(s["ops"] + s["errors"]) // (2 * 32 * 256)) + 1
assert s["ops"] > 100 and 0 < s["errors"] <= passes, (s["ops"], s["errors"])
PY
grep -q "at offset 1048576 of $bad failed: .*medium error" "$out/serve.log" || fail "not named"
ok "bad sector: $(summary "$out/bad.json")"

# A drive that is pulled: its requests fail, the other drive goes on.
"$millrace" bench --raw --connect "$server_address" --io-size 4KiB --depth 4 --duration 12s \
    --hugepages none --json "$out/pulled.json" >"$out/pulled.out" 2>&1 &
load=$!
sleep 5
scripts/vm-qmp --wait DEVICE_DELETED '{"execute":"device_del","arguments":{"id":"nvme1"}}' \
    >/dev/null || fail "device_del"
if wait "$load"; then fail "reads of a drive that is gone went well"; fi
grep -q "drive gone" "$out/pulled.out" || { cat "$out/pulled.out"; fail "not said to be gone"; }
python3 - "$out/pulled.json" <<'PY' || fail "the other drive did not go on"
import json, sys
last = json.load(open(sys.argv[1]))["rounds"][-1]
assert last["ops"] > 0 and last["errors"] > 0, last
PY
ok "pulled drive: $(summary "$out/pulled.json")"
stop_server

# io_uring switched off, for the unprivileged or for all.
sysctl -qw kernel.io_uring_disabled=2
refused "kernel.io_uring_disabled"
sysctl -qw kernel.io_uring_disabled=0
# For the unprivileged alone: told apart from an old kernel by a test that gives up its rights.
"${MILLRACE_UNIT_TESTS:?the unit tests of the library}" --ignored the_sysctl_is_named_as_the_cause \
    >"$out/sysctl" 2>&1 || { cat "$out/sysctl"; fail "the sysctl for the unprivileged"; }
grep -q '^test result: ok\. 1 passed' "$out/sysctl" || { cat "$out/sysctl"; fail "no test ran"; }
ok "refused: kernel.io_uring_disabled = 1, without CAP_SYS_ADMIN"

# The NIC: no such address, and a link that is down.
refused "no RDMA device has the address" --fabric rdma --listen 10.99.0.1:0 --insecure
ip link set net0 down
refused "DOWN" --fabric rdma --listen 10.77.0.1:0 --insecure
passed
