# shellcheck shell=bash disable=SC2154,SC2034
# Builds the guest's initramfs, once per kernel and version of these scripts. Sourced by scripts/vm.

# Lists of modules that guest/init loads: what the root needs; what every guest has; what --rxe adds.
# Loading from here is much faster than modprobe on an emulated CPU, the more so as this machine
# has decompressed them.
list_names=(root drivers rdma)
list_root=(virtio_pci 9p 9pnet_virtio overlay)
list_drivers=(virtio_console nvme vfio-pci vfio_iommu_type1)
list_rdma=(ib_uverbs rdma_cm rdma_ucm rdma_rxe dummy macvlan)

# unpack_module FILE DEST: busybox's insmod need not know the distribution's compression.
unpack_module() {
    case $1 in
    *.xz) xz -dc "$1" >"$2" ;;
    *.zst) zstd -qdc "$1" >"$2" ;;
    *.gz) gzip -dc "$1" >"$2" ;;
    *) cp "$1" "$2" ;;
    esac
}

# pack_list TREE LIST: the list's modules and all they need, in the order of loading. A module that
# the kernel has built in needs no file.
pack_list() {
    local tree=$1 word file base options
    local -n modules=list_$2
    while read -r word file _; do
        [[ $word == insmod ]] || continue
        base=${file##*/}
        base=${base%%.ko*}
        base=${base//-/_}.ko
        [[ -e $tree/modules/$base ]] && continue
        unpack_module "$file" "$tree/modules/$base"
        options=
        # The guest names its interfaces itself.
        if [[ $base == dummy.ko ]]; then options=' numdummies=0'; fi
        echo "$base$options" >>"$tree/modules/$2.list"
    done < <(modprobe -d "$modules_root" -S "$release" --show-depends -a "${modules[@]}" ||
        echo "vm: kernel $release lacks some of: ${modules[*]}" >&2)
}

# build_initramfs: sets initramfs. Concurrent runs may build the same file: the last rename wins,
# and both are whole.
build_initramfs() {
    local busybox key tree list
    busybox=$(command -v busybox) || fail "busybox is missing: run scripts/setup"
    key=$(cat "$here/guest/init" "$here/vm.d/initramfs.sh" "$busybox" \
        "$modules_root/lib/modules/$release/modules.dep" | sha256sum | cut -c1-16)
    initramfs=$vm_dir/initramfs/$release-$key.cpio.gz
    [[ -e $initramfs ]] && return

    # An initramfs has no libraries.
    if head -c 4096 "$busybox" | grep -qa 'ld-linux'; then
        fail "$busybox is not static: run scripts/setup (busybox-static)"
    fi
    tree=$run_dir/initramfs
    mkdir -p "$tree"/{bin,modules} "$vm_dir/initramfs"
    cp "$busybox" "$tree/bin/busybox"
    cp "$here/guest/init" "$tree/init"
    chmod 755 "$tree/init" "$tree/bin/busybox"
    for list in "${list_names[@]}"; do
        : >"$tree/modules/$list.list"
        pack_list "$tree" "$list"
    done
    (cd "$tree" && find . -print0 | cpio --quiet -0 -o -H newc -R 0:0) | gzip -1 >"$tree.cpio.gz"
    mv "$tree.cpio.gz" "$initramfs"
    rm -rf "$tree"
}
