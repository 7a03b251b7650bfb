#!/bin/bash
# Objects over soft-RoCE, on both paths to the drives: put, get and delete by the program, and what
# `store fill` has put, verified to the byte by bench.
# vm: --drives 2 --drive-size 64M --rxe 1 --hugepages 512 --mem 5G --timeout 900
set -euo pipefail
source "$(dirname "$0")/lib.bash"

head -c 1000000 /dev/urandom >"$out/large"
printf x >"$out/small"

# object COMMAND KEY: on the server.
object() { "$millrace" "$1" "$2" --connect "$server_address"; }

# objects BACKEND DRIVES...: all of it, on a store that is there.
objects() {
    local backend=$1
    shift
    serve_store --backend "$backend" --writable --fabric rdma --listen 10.77.0.1:4790 --insecure \
        --hugepages 2m --depth 16 "$@"
    local file
    for file in large small; do
        object put "$backend/$file" <"$out/$file" || fail "put $file on $backend"
        object get "$backend/$file" >"$out/back" || fail "get $file on $backend"
        cmp "$out/$file" "$out/back" || fail "$file is not what was put on $backend"
    done
    object put "$backend/small" <"$out/large" || fail "overwrite on $backend"
    object get "$backend/small" | cmp - "$out/large" || fail "the old one is still there"
    object delete "$backend/small" || fail "delete on $backend"
    if object get "$backend/small" >"$out/back" 2>"$out/why"; then fail "it was deleted"; fi
    grep -q 'no object of that key' "$out/why" || fail "$(cat "$out/why")"
    ok "$backend: put, get, overwrite, delete over RDMA"
    "$millrace" bench --objects 20 --connect "$server_address" --depth 8 --connections 2 \
        --duration 2s --warmup 200ms --rounds 1 --verify --json "$out/$backend.json" ||
        fail "bench --objects on $backend"
    ok "$backend: every object verified: $(summary "$out/$backend.json")"
    stop_server
    "$millrace" store verify --backend "$backend" "$@" || fail "store verify on $backend"
    ok "$backend: store verify agrees"
}

# A drive that is bound keeps its name.
drives=()
for serial in mill0 mill1; do drives+=(--device "/dev/$(disk_of "$serial")"); done
"$millrace" store create --object-size 1MiB "${drives[@]}" || fail "store create"
"$millrace" store fill --count 20 "${drives[@]}" || fail "store fill"
objects uring "${drives[@]}"

if [[ -z ${MILLRACE_SPDK_TEST:-} ]]; then
    skip "no SPDK on this machine"
    passed
    exit 0
fi
for number in 0 1; do
    "$millrace" device bind "${drives[2 * number + 1]}" --yes-i-mean "mill$number" \
        >"$out/bind" 2>&1 || { cat "$out/bind"; fail "bind of mill$number"; }
done
objects spdk "${drives[@]}"
passed
