#!/bin/bash
# Faults of drives under `serve --backend spdk`, with a client for each of two drives that verifies
# what it reads: a drive that hangs and is reset, one that is pulled, one that is dead on its bus.
# Each request of theirs ends once, slots are back or counted, the other client sees data alone, and
# the server ends well.
# vm: --drives 4 --drive-size 16M --fill --rxe 1 --hugepages 256 --timeout 900
set -euo pipefail
source "$(dirname "$0")/lib.bash"

# The deadline of requests is not what this test is about.
small=(--backend spdk --insecure --depth 16 --slot-size 64KiB --hugepages 2m --command-timeout 3s
    --deadline 120s)

# take K: hands drive K to vfio-pci; its copy is in copyK.
address=()
take() {
    local disk
    disk=$(disk_of "mill$1")
    dd if="/dev/$disk" of="$out/copy$1" bs=1M iflag=direct status=none
    address[$1]=$(basename "$(readlink -f "/sys/block/$disk/device/device")")
    "$millrace" device bind "/dev/$disk" --yes-i-mean "mill$1" >"$out/bind" 2>&1 ||
        { cat "$out/bind"; fail "bind $disk"; }
}

# read_drive NUMBER K: a client that reads drive NUMBER of the server, which is mill K.
readers=()
read_drive() {
    rm -f "$out/$1".{counts,stop}
    MILLRACE_TEST_READER_SERVER=$server_address MILLRACE_TEST_READER_DRIVE=$1 \
        MILLRACE_TEST_READER_COPY=$out/copy$2 MILLRACE_TEST_READER_FILES=$out/$1 \
        "${MILLRACE_READ_TESTS:?the program of tests/guest_reads.rs}" --nocapture \
        a_reader_of_one_drive >"$out/reader$1" 2>&1 &
    readers[$1]=$!
}

# counts NUMBER: how the reads of that client have ended, in ok, gone and aborted.
counts() {
    ok=0 gone=0 aborted=0
    [[ ! -e $out/$1.counts ]] || read -r ok gone aborted <"$out/$1.counts"
}

# at_least NUMBER WHAT COUNT: waits for it, and sees that the client lives.
at_least() {
    reached() {
        kill -0 "${readers[$1]}" 2>/dev/null || { cat "$out/reader$1"; fail "client $1 ended"; }
        counts "$1"
        ((${!2} >= $3))
    }
    wait_for 120 reached "$@" || fail "client $1: $ok ok, $gone gone, $aborted aborted"
}

# goes_on NUMBER: 100 more reads of that client are well.
goes_on() { counts "$1"; at_least "$1" ok $((ok + 100)); }

# end_reader NUMBER: it must have seen nothing wrong.
end_reader() {
    touch "$out/$1.stop"
    wait "${readers[$1]}" || { cat "$out/reader$1"; fail "client $1"; }
    counts "$1"
}

# unharmed NUMBER: ends a client that must have seen data alone.
unharmed() {
    end_reader "$1"
    ((gone == 0 && aborted == 0)) || fail "client $1: $ok ok, $gone gone, $aborted aborted"
    ok "the other client: $ok reads, all well"
}

# throttle K RATE: bytes per second of drive K; 0 for no bound. What is held up hangs in the drive,
# which does not abort it, until the controller is reset: that drains it.
throttle() {
    scripts/vm-qmp '{"execute":"block_set_io_throttle","arguments":{"device":"drive'"$1"'n1","bps":0,
        "bps_rd":'"$2"',"bps_wr":0,"iops":0,"iops_rd":0,"iops_wr":0}}' >"$out/qmp" ||
        { cat "$out/qmp"; fail "throttle"; }
}

pull() {
    scripts/vm-qmp --wait DEVICE_DELETED \
        '{"execute":"device_del","arguments":{"id":"nvme'"$1"'"}}' >"$out/qmp" ||
        { cat "$out/qmp"; fail "device_del"; }
}

# start_two FABRIC A B: a server on mill A and mill B, a client on each.
start_two() {
    serve "${small[@]}" --fabric "$1" --listen 10.77.0.1:4790 --device "${address[$2]}" \
        --device "${address[$3]}"
    read_drive 0 "$2"
    read_drive 1 "$3"
    goes_on 0
    goes_on 1
}

for k in 0 1 2 3; do take $k; done

start_two rdma 0 1
throttle 0 1
at_least 0 aborted 4
goes_on 1
throttle 0 0
goes_on 0
grep -q "the controller is to be reset" "$out/serve.log" || fail "no reset was asked for"
grep -q "reset in " "$out/serve.log" || fail "no reset"
counts 0
((gone == 0)) || fail "$gone reads of a drive that came back are gone"
ok "rdma: a drive that hangs: aborts, a reset, $aborted reads aborted, then it goes on"

pull 0
at_least 0 gone 50
goes_on 1
end_reader 0
ok "rdma: a pulled drive: $ok reads well, $gone gone, $aborted aborted"
unharmed 1
stop_server

start_two tcp 1 2
pull 1
at_least 0 gone 50
goes_on 1
end_reader 0
((aborted == 0)) || fail "$aborted reads aborted"
ok "tcp: a pulled drive: $ok reads well, $gone gone"
unharmed 1
stop_server

# Dead where it is: no memory and no bus mastering, so neither its registers nor its DMA work.
start_two rdma 2 3
printf '\0\0' | dd of="/sys/bus/pci/devices/${address[2]}/config" bs=1 seek=4 conv=notrunc status=none
at_least 0 gone 50
goes_on 1
end_reader 0
ok "rdma: a dead drive: $ok reads well, $gone gone, $aborted aborted"
unharmed 1
grep -q "is given up" "$out/serve.log" || fail "not given up"
kill -TERM "$server_pid"
over() { ! kill -0 "$server_pid" 2>/dev/null; }
wait_for 60 over || fail "the server does not end"
wait "$server_pid" || fail "the server ended with $?"
ok "$(grep -o 'stopped: .*' "$out/serve.log")"
passed
