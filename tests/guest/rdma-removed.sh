#!/bin/bash
# An RDMA device that is removed under load: the server says so, ends its connections, gives its
# slots back or counts them, and ends with an error; it does not crash and does not hang.
# vm: --rxe 2 --drives 0 --hugepages 64 --timeout 300
set -euo pipefail
source "$(dirname "$0")/lib.bash"

# The clients' device is another one.
serve --backend mem --device mem:16MiB --fabric rdma --listen 10.77.0.1:4790 --insecure \
    --depth 16 --slot-size 64KiB --hugepages 2m
loads=()
for client in 0 1; do
    "$millrace" bench --raw --connect "$server_address" --io-size 16KiB --depth 4 --warmup 1s \
        --duration 120s --hugepages none >"$out/load$client" 2>&1 &
    loads+=("$!")
done
sleep 8
for load in "${loads[@]}"; do kill -0 "$load" || { cat "$out"/load*; fail "no load"; }; done
rdma link delete rxe0 || fail "rdma link delete"
ok "rxe0 is gone"

ended() { ! kill -0 "$1" 2>/dev/null; }
wait_for 60 ended "$server_pid" || fail "the server neither reports nor ends"
code=0
wait "$server_pid" || code=$?
[[ $code == 1 ]] || fail "the server ended with $code"
grep -q "RDMA device rxe0 was removed\|RDMA device rxe0 failed" "$out/serve.log" || fail "not said"
grep -q "start the server again" "$out/serve.log" || fail "no remedy"
grep -q "stopped: [1-9].* 0 slots leaked" "$out/serve.log" || fail "slots were lost, or not counted"
grep -qi "panic" "$out/serve.log" && fail "a panic"
ok "$(grep -o 'stopped: .*' "$out/serve.log")"
for load in "${loads[@]}"; do
    wait_for 60 ended "$load" || fail "a client does not notice"
    if wait "$load"; then fail "a client took it for a good end"; fi
done
ok "clients: $(tail -n 2 "$out/load0" | tr '\n' ' ')"
passed
