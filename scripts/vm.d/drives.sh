# shellcheck shell=bash disable=SC2154,SC2034
# Makes the drives' images and QEMU's arguments for them. Sourced by scripts/vm.

# Properties that QEMU keeps at the namespace; every other one belongs to the controller.
namespace_properties=" logical_block_size physical_block_size min_io_size opt_io_size
    discard_granularity write-cache ms mset pi pil pif detached shared zoned zoned.zone_size
    zoned.zone_capacity zoned.max_active zoned.max_open eui64 uuid nguid mssrl mcl msrc "

# comma TEXT: as QEMU wants a value that may contain commas.
comma() { printf '%s' "${1//,/,,}"; }

# make_image DRIVE NSID: sets image. Cached images are only ever opened below a throw-away
# snapshot, so that runs can share them. The content of a filled one is the AES-128-CTR keystream
# of the key DRIVE * 65536 + NSID and counter 0: a test can compute any block of it.
make_image() {
    local kind=sparse
    if ((opt_fill)); then kind=fill-$1-$2; fi
    image=$vm_dir/images/$kind-$opt_drive_size.img
    [[ -e $image ]] && return
    mkdir -p "$vm_dir/images"
    if ((opt_fill)); then
        head -c "$drive_bytes" /dev/zero | openssl enc -aes-128-ctr \
            -K "$(printf '%032x' $(($1 * 65536 + $2)))" -iv "$(printf '%032d' 0)" \
            >"$run_dir/image"
    else
        truncate -s "$drive_bytes" "$run_dir/image"
    fi
    mv "$run_dir/image" "$image"
}

# add_namespace DRIVE NSID FILE SNAPSHOT
add_namespace() {
    local id=drive$1n$2 spec file
    file=$(comma "$3")
    if [[ -n ${inject[$1]:-} ]]; then
        spec=driver=raw,file.driver=blkdebug,file.config=$(comma "${inject[$1]}")
        spec+=,file.image.driver=file,file.image.filename=$file
    else
        spec=format=raw,file=$file
    fi
    qemu_args+=(-drive "if=none,id=$id,$spec,snapshot=$4"
        -device "nvme-ns,drive=$id,bus=nvme$1,nsid=$2$namespace_options")
}

# add_drives: own images first, then the made ones; a root port each, because a drive can only be
# unplugged from a slot of its own, which also gives it an IOMMU group of its own.
add_drives() {
    local k nsid total=$((${#drive_files[@]} + opt_drives)) property
    local controller_options='' namespace_options='' properties
    IFS=, read -ra properties <<<"$opt_drive_opt"
    for property in "${properties[@]}"; do
        if [[ $namespace_properties == *[[:space:]]"${property%%=*}"[[:space:]]* ]]; then
            namespace_options+=,$property
        else
            controller_options+=,$property
        fi
    done
    # QEMU refuses a logical block larger than the physical one, 512 by default.
    if [[ $namespace_options =~ ,logical_block_size=([0-9]+) &&
        $namespace_options != *,physical_block_size=* ]]; then
        namespace_options+=,physical_block_size=${BASH_REMATCH[1]}
    fi
    for k in "${!inject[@]}"; do
        ((k < total)) || usage_error "--inject $k: there are only $total drives"
    done

    for ((k = 0; k < total; k++)); do
        qemu_args+=(-device "pcie-root-port,id=rp$k,bus=pcie.0,chassis=$((k + 1)),slot=$((k + 1))"
            -device "nvme,id=nvme$k,serial=mill$k,bus=rp$k$controller_options")
        if ((k < ${#drive_files[@]})); then
            add_namespace "$k" 1 "${drive_files[k]}" off
            continue
        fi
        for ((nsid = 1; nsid <= opt_namespaces; nsid++)); do
            make_image "$k" "$nsid"
            add_namespace "$k" "$nsid" "$image" on
        done
    done
}
