#!/bin/bash
# The RDMA fabric's own tests on soft-RoCE: on a machine without a device they skip.
# vm: --rxe 2 --drives 0 --timeout 1200
set -euo pipefail
# shellcheck source=tests/guest/lib.bash
. "$(dirname "$0")/lib.bash"

# What they skip here is told to scripts/test below: the guest's files do not outlive it.
export MILLRACE_SKIPS=$out/skips
: >"$MILLRACE_SKIPS"

# program FILE ARGUMENT...: one that runs no test must not pass for one whose tests passed.
program() {
    local start=$SECONDS
    "$@" | tee "$out/tests" || fail "$*"
    grep -qE '^test result: ok\. [1-9]' "$out/tests" || fail "no test ran: $*"
    ok "$(basename "$1") ($((SECONDS - start)) s)"
}

program "${MILLRACE_UNIT_TESTS:?the unit tests of the library}" fabric::rdma
# One at a time: server and client poll, and there are two processors.
program "${MILLRACE_RDMA_TESTS:?the program of tests/rdma_guest.rs}" --test-threads=1
program "${MILLRACE_FABRIC_TESTS:?the program of tests/fabric_contract.rs}" rdma:: --test-threads=1
if grep -q 'no RDMA device' "$MILLRACE_SKIPS"; then fail "no RDMA device in the guest"; fi
while read -r line; do skip "$line"; done <"$MILLRACE_SKIPS"
passed
