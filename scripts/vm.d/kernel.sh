# shellcheck shell=bash disable=SC2154,SC2034
# Finds the guest's kernel and its modules. Sourced by scripts/vm.
#
# Kernels that scripts/setup unpacked under target/vm/kernels come first; they are there so that no
# kernel need be installed (and reach the boot loader) just for testing. /boot is the second choice.

# list_kernels: the images there are, one a line, in order of preference between places.
list_kernels() {
    local file
    for file in "$vm_dir"/kernels/*/boot/vmlinuz-* /boot/vmlinuz-*; do
        if [[ -r $file ]]; then echo "$file"; fi
    done
}

# match_kernel VERSION: the newest image of the first place that has this version or a later part
# of it: 6.1 means 6.1.0-57-amd64, never 6.12.
match_kernel() {
    local wanted=$1 place newest
    for place in "$vm_dir/kernels/" /boot/; do
        newest=$(list_kernels | awk -v place="$place" -v wanted="$wanted" '
            index($0, place) == 1 {
                version = $0
                sub(/.*\/vmlinuz-/, "", version)
                rest = substr(version, length(wanted) + 1, 1)
                if (index(version, wanted) == 1 && rest ~ /^[-.+]?$/) print version " " $0
            }' | sort -V | tail -n 1 | cut -d' ' -f2-)
        if [[ -n $newest ]]; then
            echo "$newest"
            return
        fi
    done
}

# kernel_release FILE: the release that a bzImage names in its own header, since the file's name
# need not tell.
kernel_release() {
    local offset
    [[ $(od -An -tx1 -j514 -N4 "$1" | tr -d ' \n') == 48647253 ]] ||
        fail "$1 is not a Linux kernel image (bzImage)"
    offset=$(od -An -tu2 -j526 -N2 "$1" | tr -d ' \n')
    dd if="$1" bs=1 skip=$((offset + 512)) count=128 status=none | tr '\0' ' ' |
        cut -d' ' -f1
}

# no_kernel TEXT: ends the run with what is there instead.
no_kernel() {
    echo "vm: $1; kernels found:" >&2
    list_kernels | sed 's/^/  /' >&2
    fail "choose one of them with --kernel, or run scripts/setup to fetch kernels"
}

# find_kernel: sets kernel, release, modules_root (what modprobe takes as -d).
find_kernel() {
    if [[ $opt_kernel == */* ]]; then
        [[ -r $opt_kernel ]] || no_kernel "cannot read kernel $opt_kernel"
        kernel=$opt_kernel
    elif [[ -n $opt_kernel ]]; then
        kernel=$(match_kernel "$opt_kernel")
        [[ -n $kernel ]] || no_kernel "no readable kernel matches $opt_kernel"
    else
        kernel=$(match_kernel 6.1)
        if [[ -z $kernel ]]; then
            kernel=$(list_kernels | sort -V | tail -n 1)
            [[ -n $kernel ]] || no_kernel "no readable kernel"
            echo "vm: no 6.1 kernel here, booting $kernel" >&2
        fi
    fi
    release=$(kernel_release "$kernel")

    modules_root=$(dirname "$(dirname "$(readlink -f "$kernel")")")
    if [[ ! -e $modules_root/lib/modules/$release/modules.dep ]]; then
        modules_root=/
    fi
    [[ -e $modules_root/lib/modules/$release/modules.dep ]] ||
        fail "no modules of kernel $release beside $kernel or in /lib/modules"
}

# unpack_kernel: replaces kernel, if it can, by the ELF image inside, which QEMU boots directly
# (PVH): decompressing it takes an emulated CPU four seconds of every run. A kernel without that
# entry point, or packed in another way, is booted as it is.
unpack_kernel() {
    local setup offset length unpacked tool
    unpacked=$vm_dir/vmlinux/$release-$(stat -L -c '%s-%Y' "$kernel")
    if [[ ! -e $unpacked ]]; then
        setup=$(od -An -tu1 -j497 -N1 "$kernel")
        offset=$(od -An -tu4 -j584 -N4 "$kernel")
        length=$(od -An -tu4 -j588 -N4 "$kernel")
        offset=$(((setup + 1) * 512 + offset))
        tail -c "+$((offset + 1))" "$kernel" >"$run_dir/payload"
        truncate -s "$length" "$run_dir/payload"
        mkdir -p "$vm_dir/vmlinux"
        # The payload's size follows the compressed stream, so every tool complains of garbage.
        for tool in 'xz -dc --single-stream' 'zstd -qdc' 'gzip -qdc'; do
            $tool <"$run_dir/payload" >"$run_dir/vmlinux" 2>/dev/null || true
            if [[ $(head -c 4 "$run_dir/vmlinux" | od -An -tx1 | tr -d ' ') == 7f454c46 ]]; then
                break
            fi
        done
        # In the notes: 4 bytes of name, 4 or 8 of value, type 18 (PHYS32_ENTRY), name "Xen".
        grep -qaP '\x04\x00\x00\x00[\x04\x08]\x00\x00\x00\x12\x00\x00\x00Xen\x00' \
            "$run_dir/vmlinux" || cp "$kernel" "$run_dir/vmlinux"
        mv "$run_dir/vmlinux" "$unpacked"
        rm -f "$run_dir/payload"
    fi
    kernel=$unpacked
}
