#!/usr/bin/env bash
# Times of a file that is written through a shared mapping. They stood still: pages the kernel wrote
# back were taken to bring times of their own, which they only do with its write-back cache.
. "$(dirname "$0")/common.bash"
compile mapped
"$scratch/mapped" "$dir"
