#!/bin/bash
# Compares a path with itself, again and again: how often `millrace compare` shows a difference of
# reads per second where there is none. Aim: in 1 of 20 at most.
# Usage: benches/itself.sh [COMPARISONS]
set -euo pipefail
millrace=${MILLRACE_BIN:?the program under test}
runs=${1:-20}
dir=$(mktemp -d -p /dev/shm)
trap 'rm -rf "$dir"' EXIT

head -c 64M /dev/urandom >"$dir/drive"
cat >"$dir/set.toml" <<'TOML'
name = "itself"
rounds = 8
seconds = 0.3
warmup = 0.1
[load]
io-size = ["4KiB"]
depth = [32]
[base]
check = "none"
wait = "block"
[[variant]]
name = "A"
set = {}
[[variant]]
name = "A again"
set = {}
TOML

same=0
for ((k = 1; k <= runs; k++)); do
    "$millrace" compare --set "$dir/set.toml" --device "$dir/drive" --traced off --seed "$k" \
        --out "$dir/out$k" --json "$dir/$k.json" >"$dir/log" 2>&1 || { tail -5 "$dir/log"; exit 1; }
    verdict=$(python3 -c 'import json, sys
ratio = json.load(open(sys.argv[1]))["comparisons"][0]["ratios"]["iops"]
print("%s: %.3f (%.3f to %.3f)" % (ratio["verdict"], ratio["ratio"], ratio["low"], ratio["high"]))' "$dir/$k.json")
    echo "# $k: $verdict"
    [[ $verdict != "no-difference-shown"* ]] || same=$((same + 1))
done
echo "no difference shown in $same of $runs comparisons of a path with itself"
