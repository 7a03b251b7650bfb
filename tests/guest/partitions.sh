#!/bin/bash
# Partition tables as this program reads them, against the kernel's own reading on loop devices:
# the kernel of the machine that builds may have been built without partitions.
# vm: --drives 0 --mem 2G --timeout 300
set -euo pipefail
source "$(dirname "$0")/lib.bash"

modprobe loop
export MILLRACE_SKIPS=$out/skips
: >"$MILLRACE_SKIPS"
"${MILLRACE_UNIT_TESTS:?the unit tests of the library}" storage::partition --nocapture \
    >"$out/tests" 2>&1 || { cat "$out/tests"; fail "partitions"; }
grep -q 'the_kernel_agrees ... ok' "$out/tests" || { cat "$out/tests"; fail "not compared"; }
if grep -qi 'skip' "$out/tests" "$MILLRACE_SKIPS"; then cat "$out/tests"; fail "skipped"; fi
ok "the kernel reads the same partitions"
passed
