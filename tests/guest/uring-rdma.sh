#!/bin/bash
# The main job on the kernel's path: eight emulated drives, io_uring, RDMA over soft-RoCE, one
# worker. Every payload is verified by the client, and ranges are compared with the drives'
# known contents.
# vm: --kernel 6.1 --drives 8 --drive-size 64M --fill --rxe 1 --hugepages 160 --timeout 900
# vm: --kernel 6.12 --drives 8 --drive-size 64M --fill --rxe 1 --hugepages 160 --timeout 900
set -euo pipefail
source "$(dirname "$0")/lib.bash"

devices=()
for drive in /dev/nvme?n1; do devices+=(--device "$drive"); done
[[ ${#devices[@]} == 16 ]] || fail "eight drives expected: ${devices[*]}"

serve --backend uring --fabric rdma --listen 10.77.0.1:4790 --insecure --hugepages 2m \
    "${devices[@]}"

MILLRACE_TEST_SERVER=$server_address "${MILLRACE_READ_TESTS:?the program of tests/guest_reads.rs}" \
    --nocapture >"$out/reads" 2>&1 || { cat "$out/reads"; fail "contents"; }
grep -q ' are right' "$out/reads" || fail "contents were not compared"
ok "contents: $(grep ' are right' "$out/reads")"

# Every depth on the newer kernel, both ends and the middle on the older.
depths="1 2 4 8 16 32 64"
[[ $(uname -r) != 6.1.* ]] || depths="1 8 64"
for depth in $depths; do
    bench --io-size 1MiB --depth "$depth" --duration 1s --warmup 200ms --rounds 1 --verify \
        --json "$out/depth-$depth.json"
    ok "1 MiB at depth $depth: $(summary "$out/depth-$depth.json")"
done
bench --io-size 4KiB --depth 16 --connections 4 --duration 1s --warmup 200ms --verify \
    --json "$out/4k.json"
ok "4 KiB on four connections: $(summary "$out/4k.json")"

stop_server
passed
