#!/usr/bin/env bash
# Holes: truncate both ways, fallocate, punch, zero, SEEK_HOLE and SEEK_DATA, copy_file_range.
. "$(dirname "$0")/common.bash"
need fallocate util-linux
compile holes
"$scratch/holes" file

truncate -s 1G huge
same 0 "$(du -k huge | cut -f1)" "KiB of a file that is all hole"
same 1073741824 "$(stat -c %s huge)" "its size"
printf tail | dd of=huge bs=1 seek=1073741000 conv=notrunc status=none
same tail "$(dd if=huge bs=1 skip=1073741000 count=4 status=none)" "bytes behind a hole"
truncate -s 100 huge
truncate -s 1000 huge
same 900 "$(tail -c 900 huge | tr -d -c '\0' | wc -c)" "zeros after shrinking and growing"

for bytes in 0 1 4095 4096 8191 8192 8193 16384 65536 1000001; do
    head -c "$bytes" /dev/urandom >"$scratch/data"
    cp "$scratch/data" here
    cmp "$scratch/data" here
    truncate -s $((bytes + 5000)) here "$scratch/data"
    cmp "$scratch/data" here
    truncate -s $((bytes / 2)) here "$scratch/data"
    cmp "$scratch/data" here
    echo tail | tee -a here >>"$scratch/data"
    cmp "$scratch/data" here
done
